//! Why a task has no result.

use std::any::Any;
use std::fmt;
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};

use super::identity::Id;

pub(crate) type PanicPayload = Box<dyn Any + Send>;

/// A task was cancelled, or panicked.
pub struct JoinError {
    task: Id,
    /// `None`: it was cancelled. Boxed, as the results of all tasks have room for it.
    panic: Option<Box<Panic>>,
}

struct Panic {
    /// Never locked: it makes the error `Sync`, which the payload is not.
    payload: Mutex<PanicPayload>,
    message: String,
}

impl Panic {
    fn new(payload: PanicPayload) -> Self {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let message = text.unwrap_or("with a value that is not a string").to_owned();
        Self { payload: Mutex::new(payload), message }
    }
}

impl JoinError {
    /// Without a panic the task was cancelled.
    pub(crate) fn new(task: Id, panic: Option<PanicPayload>) -> Self {
        Self { task, panic: panic.map(|payload| Box::new(Panic::new(payload))) }
    }

    /// The task's number.
    pub fn id(&self) -> Id {
        self.task
    }

    /// Whether the task was aborted, or dropped at the end of its runtime.
    pub fn is_cancelled(&self) -> bool {
        self.panic.is_none()
    }

    /// Whether the task panicked.
    pub fn is_panic(&self) -> bool {
        self.panic.is_some()
    }

    /// What the task panicked with: the argument of `panic_any`, or the message as `String` or
    /// `&str`.
    ///
    /// # Errors
    /// Returns the error unchanged if the task was cancelled.
    pub fn try_into_panic(self) -> Result<Box<dyn Any + Send>, Self> {
        match self.panic {
            Some(panic) => Ok(panic.payload.into_inner().unwrap_or_else(PoisonError::into_inner)),
            None => Err(self),
        }
    }

    /// As [`JoinError::try_into_panic`], for [`resume_unwind`], for example.
    ///
    /// # Panics
    /// If the task was cancelled.
    pub fn into_panic(self) -> Box<dyn Any + Send> {
        self.try_into_panic().expect("a task that was cancelled has not panicked")
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
        match &self.panic {
            Some(panic) => write!(f, "the task panicked: {}", panic.message),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panics_error_can_be_shared_and_gives_its_payload_back() {
        fn shared<T: Send + Sync>(value: T) -> T {
            value
        }
        let error = shared(JoinError::new(Id::next(), Some(Box::new("seven"))));
        assert_eq!(error.to_string(), "the task panicked: seven");
        assert_eq!(error.try_into_panic().unwrap().downcast_ref(), Some(&"seven"));
    }
}
