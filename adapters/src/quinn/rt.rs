//! What quinn needs of a runtime.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use ::quinn::{AsyncTimer, AsyncUdpSocket};
use runtime::Handle;

use super::socket::Socket;

/// One worker, as quinn's [`Runtime`](::quinn::Runtime): the endpoint that is made with it, and its connections, run there,
/// wherever their handles are used.
#[derive(Debug, Clone)]
pub struct Runtime {
    handle: Handle,
    worker: usize,
}

impl Runtime {
    /// The worker of the calling task.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn current() -> Self {
        Self::of_worker(runtime::current_worker())
    }

    /// A worker of the current runtime.
    pub(super) fn of_worker(worker: usize) -> Self {
        Self { handle: Handle::current(), worker }
    }

    /// Spawns a task on the worker.
    #[track_caller]
    pub(super) fn spawn_with<F, Fut>(&self, make: F) -> runtime::JoinHandle<Fut::Output>
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output: Send + 'static> + 'static,
    {
        self.handle.spawn_on(self.worker, make)
    }
}

impl ::quinn::Runtime for Runtime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        Box::pin(Timer(runtime::sleep_until(at)))
    }

    #[track_caller]
    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        drop(self.spawn_with(move || future));
    }

    fn wrap_udp_socket(&self, socket: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        Ok(Arc::new(Socket::new(socket, self.clone(), None)?))
    }

    fn now(&self) -> Instant {
        runtime::time::now()
    }
}

#[derive(Debug)]
struct Timer(runtime::Sleep);

impl AsyncTimer for Timer {
    fn reset(mut self: Pin<&mut Self>, at: Instant) {
        self.0.reset(at);
    }

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(context)
    }
}
