//! What networking libraries build sockets from.
//!
//! A socket either takes its operations to the worker's io_uring ([`RingSocket`], [`RingListener`])
//! or, where the worker's driver has no ring, waits for readiness ([`AsyncFd`]).
//! [`worker_of_napi`], [`own_napi`] and [`CountedConnection`] say which worker a connection belongs
//! to.
//!
//! [`RingFd`] has operations of the ring for files and pipes, and [`submit`] takes any other.

mod async_fd;
mod placement;
mod ready_guard;
mod ring;
mod ring_fd;
mod ring_operation;

pub use io_uring;
pub use policies::socket_options::{incoming_napi_id, steer_by_queue};

pub use self::async_fd::AsyncFd;
pub use self::placement::{
    CountedConnection, first_queue_number, own_napi, owned_queues, socket_busy_poll, worker_of_napi,
};
pub use self::ready_guard::{AsyncFdReadyGuard, TryIoError};
pub use self::ring::{ring_listener, ring_socket};
pub use self::ring_fd::RingFd;
pub use self::ring_operation::{NoRing, RingOperation, has_ring, submit};
pub use crate::coop::poll_operation;
pub use crate::driver::readiness::{Direction, SourceKind};
pub use crate::driver::uring::listener::RingListener;
pub use crate::driver::uring::socket::RingSocket;
pub use crate::driver::uring::socket_state::Received;
pub use crate::not_send::{OnItsWorker, StaysOnItsWorkerUseRuntimeSpawn};
pub use crate::worker::OwnedQueue;
