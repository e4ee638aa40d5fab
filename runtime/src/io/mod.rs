//! Readiness of descriptors, and operations of the worker's ring.
//!
//! [`AsyncFd`] waits for readiness, on every driver. [`RingFd`] has operations of the ring for files
//! and pipes, and [`submit`] takes any other. Sockets are in the crate `lull-net`.

mod async_fd;
mod ring_fd;
mod ring_operation;

use std::sync::atomic::Ordering;

pub use policies::descriptors::incoming_napi_id;

pub use self::async_fd::{
    AsyncFd, AsyncFdReadyGuard, OnItsWorker, StaysOnItsWorkerUseRuntimeSpawn, TryIoError,
};
pub use self::ring_fd::RingFd;
pub use self::ring_operation::{NoRing, RingOperation, has_ring, submit};
pub use crate::coop::poll_operation;
pub use crate::driver::readiness::{Direction, SourceKind};
use crate::worker::current;

/// The NAPI that the calling worker polls, or would poll under a policy that polls. 0: it has none.
#[track_caller]
pub fn own_napi() -> u32 {
    current::with(|worker| worker.handle.napi.load(Ordering::Relaxed))
}
