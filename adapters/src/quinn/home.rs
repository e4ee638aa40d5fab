//! The worker of an endpoint, and what stays there.

use std::io;
use std::mem::ManuallyDrop;

use runtime::Handle;
use send_wrapper::SendWrapper;

/// One worker, as quinn's [`Runtime`](::quinn::Runtime): the endpoint that is made with it, and its
/// connections, run there, wherever their handles are used.
#[derive(Debug, Clone)]
pub struct Runtime {
    handle: Handle,
    worker: usize,
}

impl Runtime {
    /// The worker of the calling task.
    pub fn current() -> Self {
        Self::of_worker(runtime::current_worker())
    }

    pub(super) fn of_worker(worker: usize) -> Self {
        Self { handle: Handle::current(), worker }
    }

    #[track_caller]
    pub(super) fn spawn_with<F, Fut>(&self, make: F) -> runtime::JoinHandle<Fut::Output>
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output: Send + 'static> + 'static,
    {
        self.handle.spawn_on(self.worker, make)
    }
}

/// A value that stays on its worker. Dropped on another thread, it is sent there.
pub(super) struct Local<T: 'static> {
    /// None only while it is dropped.
    value: Option<SendWrapper<T>>,
    home: Runtime,
}

impl<T> Local<T> {
    /// Binds the value to the calling thread, which has to be the worker of `home`.
    pub(super) fn new(value: T, home: &Runtime) -> Self {
        Self { value: Some(SendWrapper::new(value)), home: home.clone() }
    }

    pub(super) fn get(&self) -> io::Result<&T> {
        self.value.as_ref().filter(|value| value.valid()).map(|value| &**value).ok_or_else(elsewhere)
    }

    pub(super) fn get_mut(&mut self) -> io::Result<&mut T> {
        self.value.as_mut().filter(|value| value.valid()).map(|value| &mut **value).ok_or_else(elsewhere)
    }
}

pub(super) fn elsewhere() -> io::Error {
    io::Error::other("quinn's socket was polled on another thread than its worker's")
}

impl<T> Drop for Local<T> {
    fn drop(&mut self) {
        let Some(value) = self.value.take().filter(|value| !value.valid()) else { return };
        // Not dropped with the closure, which a runtime that has ended drops here. A few bytes are
        // lost then.
        let value = ManuallyDrop::new(value);
        drop(self.home.spawn_with(move || async move { drop(ManuallyDrop::into_inner(value)) }));
    }
}
