//! Sockets on the worker's io_uring.

use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::driver::readiness::SourceKind;
use crate::driver::uring::listener::RingListener;
use crate::driver::uring::socket::RingSocket;
use crate::worker::current;

/// Takes a connected stream socket onto this worker's ring. `None` where the worker's driver has no
/// ring ([`DriverKind::Epoll`](crate::DriverKind::Epoll)): use an [`AsyncFd`](crate::io::AsyncFd)
/// there.
#[track_caller]
pub fn ring_socket(descriptor: Arc<impl AsFd + 'static>, kind: SourceKind) -> Option<RingSocket> {
    current::with(|worker| {
        let ring = worker.driver.ring()?;
        let in_queue = match kind {
            SourceKind::Napi(id) => id == worker.handle.napi.load(Ordering::Relaxed),
            SourceKind::Datagrams | SourceKind::Other => false,
        };
        Some(RingSocket::new(Rc::clone(ring), descriptor, in_queue))
    })
}

/// Takes a listening socket onto this worker's ring. `None` where the worker's driver has no ring.
#[track_caller]
pub fn ring_listener(descriptor: Arc<impl AsFd + 'static>) -> Option<RingListener> {
    current::with(|worker| {
        let ring = worker.driver.ring()?;
        Some(RingListener::new(Rc::clone(ring), descriptor))
    })
}
