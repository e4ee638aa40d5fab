//! Synchronization primitives: the standard library's, or under `--cfg loom` the model checker's,
//! which tries every order in which threads may see each other's steps.

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering},
    sync::{Condvar, Mutex, MutexGuard},
};
#[cfg(not(loom))]
pub(crate) use std::{
    sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering},
    sync::{Condvar, Mutex, MutexGuard},
};

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;

/// Locks, also after a panic: no critical section of this crate leaves its data half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a thread that is not joined.
#[cfg(not(loom))]
pub(crate) fn spawn_thread(
    thread: std::thread::Builder,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    thread.spawn(run).map(drop)
}

#[cfg(loom)]
pub(crate) fn spawn_thread(
    _thread: std::thread::Builder,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    loom::thread::spawn(run);
    Ok(())
}

/// Runs foreign code (a drop, a waker) whose panic must not end the caller. The panic hook has
/// reported it. The payload is leaked, because dropping it may panic too.
pub(crate) fn contain_panic(action: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(action)) {
        std::mem::forget(payload);
    }
}

/// The standard cell, with the model checker's way of access.
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
