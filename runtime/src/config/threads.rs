//! The names and stacks of the threads that a runtime starts.

use std::fmt::Display;
use std::thread;

/// What threads of workers and of blocking work have in common.
#[derive(Debug, Clone, Default)]
pub(crate) struct ThreadOptions {
    pub(crate) name: Option<String>,
    pub(crate) stack_size: Option<usize>,
}

impl ThreadOptions {
    /// A thread that is called `kind`, after the name that all have in common.
    pub(crate) fn builder(&self, kind: impl Display) -> thread::Builder {
        let name = self.name.as_deref().unwrap_or("lull");
        let builder = thread::Builder::new().name(format!("{name}-{kind}"));
        match self.stack_size {
            Some(bytes) => builder.stack_size(bytes),
            None => builder,
        }
    }
}
