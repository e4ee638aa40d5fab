//! What the application is called for.

use std::fmt;

use crate::worker::stall::StallHook;

/// The application's functions that workers call.
#[derive(Clone, Default)]
pub(crate) struct Hooks {
    pub(crate) on_stall: Option<StallHook>,
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks").field("on_stall", &self.on_stall.is_some()).finish()
    }
}
