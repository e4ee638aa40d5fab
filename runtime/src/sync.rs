//! The primitives that threads share. Under `--cfg loom` they are the model checker's, which tries
//! every order in which threads may see each other's steps.

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering, fence},
    sync::{Mutex, MutexGuard},
};
#[cfg(not(loom))]
pub(crate) use std::{
    sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering, fence},
    sync::{Mutex, MutexGuard},
};

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;

/// Locks; a panic elsewhere leaves nothing half done here that would matter.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs foreign code whose panic must not end what is going on. What it was raised with is not dropped,
/// for that may panic, too; the panic hook has told.
pub(crate) fn contain(action: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(action)) {
        std::mem::forget(payload);
    }
}

/// The standard cell, with the checker's way of access.
#[cfg(not(loom))]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    pub(crate) fn with_mut<R>(&self, action: impl FnOnce(*mut T) -> R) -> R {
        action(self.0.get())
    }
}
