//! A listening socket as its operation sees it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Waker;

use crate::driver::waiters::Waiters;

/// A listener's descriptor, which stays open until the accept operation has completed, and what it
/// accepted.
pub(super) struct ListenerState {
    descriptor: Arc<dyn AsFd>,
    pub(super) accepts: RefCell<AcceptState>,
    pub(super) waiters: Waiters,
}

impl ListenerState {
    pub(super) fn new(descriptor: Arc<dyn AsFd>) -> Self {
        Self { descriptor, accepts: RefCell::default(), waiters: Waiters::default() }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[derive(Default)]
pub(super) struct AcceptState {
    pub(super) operation: Option<NonZeroU64>,
    /// Whether that is cancelled, and will complete for the last time.
    pub(super) cancelled: bool,
    /// Accepted connections that nobody has taken yet.
    pub(super) untaken: VecDeque<OwnedFd>,
    pub(super) failed: Option<io::Error>,
    /// Of the one task that polls without a place among the waiters.
    pub(super) waker: Option<Waker>,
    /// The listener is dropped: nobody takes connections any more.
    pub(super) dropped: bool,
}
