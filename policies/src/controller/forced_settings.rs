//! Settings in the place of a controller's choices.

use std::sync::{Arc, Mutex, PoisonError};

use super::queue_settings::QueueSettings;

/// Settings that a test asks for in the place of a controller's choices: for tests of what a change
/// of settings does to requests.
#[doc(hidden)]
#[derive(Debug, Clone, Default)]
pub struct ForcedSettings(Arc<Mutex<Option<QueueSettings>>>);

impl ForcedSettings {
    /// Chooses settings when the controller would be asked next.
    pub fn choose(&self, settings: QueueSettings) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(settings);
    }

    /// What was chosen since the last call.
    pub fn take(&self) -> Option<QueueSettings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
