//! Sockets on the worker's io_uring.

use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::driver::readiness::SourceKind;
use crate::driver::uring::listener::RingListener;
use crate::driver::uring::socket::RingSocket;
use crate::worker::current;

/// Takes a connected stream socket onto this worker's ring. `None` where the worker's driver has no ring
/// ([`DriverKind::Epoll`](crate::DriverKind::Epoll)): use an [`AsyncFd`](crate::io::AsyncFd) there.
///
/// # Errors
/// If the kernel refuses to add the socket to the worker's epoll instance.
///
/// # Panics
/// Outside of a runtime.
#[track_caller]
pub fn ring_socket(descriptor: Arc<impl AsFd + 'static>, kind: SourceKind) -> io::Result<Option<RingSocket>> {
    current::with(|worker| {
        let Some(ring) = worker.driver.ring() else { return Ok(None) };
        let in_napi = match kind {
            SourceKind::Napi(id) => ring.polls_by_epoll() && id == worker.handle.napi.load(Ordering::Relaxed),
            SourceKind::Other => false,
        };
        RingSocket::new(Rc::clone(ring), descriptor, in_napi).map(Some)
    })
}

/// Takes a listening socket onto this worker's ring. `None` where the worker's driver has no ring.
///
/// # Panics
/// Outside of a runtime.
#[track_caller]
pub fn ring_listener(descriptor: Arc<impl AsFd + 'static>) -> Option<RingListener> {
    current::with(|worker| {
        let ring = worker.driver.ring()?;
        Some(RingListener::new(Rc::clone(ring), descriptor))
    })
}
