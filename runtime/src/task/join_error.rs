//! Why a task has no result.

use std::any::Any;
use std::fmt;
use std::panic::resume_unwind;

/// The value that a panic was raised with.
type PanicPayload = Box<dyn Any + Send>;

/// A task was cancelled, or panicked.
pub struct JoinError(Reason);

enum Reason {
    Cancelled,
    Panicked(PanicPayload),
}

impl JoinError {
    pub(super) fn cancelled() -> Self {
        Self(Reason::Cancelled)
    }

    pub(super) fn panicked(payload: PanicPayload) -> Self {
        Self(Reason::Panicked(payload))
    }

    /// Whether the task was aborted, or dropped at the end of its runtime.
    pub fn is_cancelled(&self) -> bool {
        matches!(self.0, Reason::Cancelled)
    }

    /// Whether the task panicked.
    pub fn is_panic(&self) -> bool {
        matches!(self.0, Reason::Panicked(_))
    }

    /// The panic's payload.
    ///
    /// # Errors
    /// Returns the error unchanged if the task was cancelled.
    pub fn try_into_panic(self) -> Result<Box<dyn Any + Send>, Self> {
        match self.0 {
            Reason::Panicked(payload) => Ok(payload),
            Reason::Cancelled => Err(self),
        }
    }

    /// Resumes the task's panic in the caller. Returns normally if the task was cancelled.
    ///
    /// # Panics
    /// If the task panicked.
    pub fn resume_panic(self) {
        if let Reason::Panicked(payload) = self.0 {
            resume_unwind(payload);
        }
    }

    fn panic_message(&self) -> Option<&str> {
        let Reason::Panicked(payload) = &self.0 else { return None };
        payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .or(Some("with a value that is not a string"))
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.panic_message() {
            Some(message) => write!(f, "the task panicked: {message}"),
            None => write!(f, "the task was cancelled"),
        }
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinError({self})")
    }
}

impl std::error::Error for JoinError {}
