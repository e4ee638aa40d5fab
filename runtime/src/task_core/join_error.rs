//! Why a task has no result.

use std::any::Any;
use std::fmt;
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};

type PanicPayload = Box<dyn Any + Send>;

/// A task was cancelled, or panicked.
pub struct JoinError(Reason);

enum Reason {
    Cancelled,
    Panicked {
        /// Never locked: it makes the error `Sync`, which the payload is not.
        payload: Mutex<PanicPayload>,
        message: String,
    },
}

impl JoinError {
    pub(crate) fn cancelled() -> Self {
        Self(Reason::Cancelled)
    }

    pub(crate) fn panicked(payload: PanicPayload) -> Self {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let message = text.unwrap_or("with a value that is not a string").to_owned();
        Self(Reason::Panicked { payload: Mutex::new(payload), message })
    }

    /// Whether the task was aborted, or dropped at the end of its runtime.
    pub fn is_cancelled(&self) -> bool {
        matches!(self.0, Reason::Cancelled)
    }

    /// Whether the task panicked.
    pub fn is_panic(&self) -> bool {
        matches!(self.0, Reason::Panicked { .. })
    }

    /// What the task panicked with: the argument of `panic_any`, or the message as `String` or
    /// `&str`.
    ///
    /// # Errors
    /// Returns the error unchanged if the task was cancelled.
    pub fn try_into_panic(self) -> Result<Box<dyn Any + Send>, Self> {
        match self.0 {
            Reason::Panicked { payload, .. } => {
                Ok(payload.into_inner().unwrap_or_else(PoisonError::into_inner))
            }
            Reason::Cancelled => Err(self),
        }
    }

    /// Resumes the task's panic in the caller. Returns normally if the task was cancelled.
    ///
    /// # Panics
    /// If the task panicked.
    pub fn resume_panic(self) {
        if let Ok(payload) = self.try_into_panic() {
            resume_unwind(payload);
        }
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Reason::Panicked { message, .. } => write!(f, "the task panicked: {message}"),
            Reason::Cancelled => write!(f, "the task was cancelled"),
        }
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinError({self})")
    }
}

impl std::error::Error for JoinError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panics_error_can_be_shared_and_gives_its_payload_back() {
        fn shared<T: Send + Sync>(value: T) -> T {
            value
        }
        let error = shared(JoinError::panicked(Box::new("seven")));
        assert_eq!(error.to_string(), "the task panicked: seven");
        assert_eq!(error.try_into_panic().unwrap().downcast_ref(), Some(&"seven"));
    }
}
