//! Messages between two threads: a number each way, and the waker of who waits for it.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use futures_util::task::AtomicWaker;

/// One direction. The next message may be sent when the answer to the last one has come.
#[derive(Debug, Default)]
pub(super) struct Direction {
    /// The number of the last message, from 1.
    number: AtomicU64,
    value: AtomicU64,
    waker: AtomicWaker,
}

impl Direction {
    pub(super) fn send(&self, number: u64, value: u64) {
        self.value.store(value, Ordering::Relaxed);
        self.number.store(number, Ordering::Release);
        self.waker.wake();
    }

    /// Waits for the message of this number, and returns its value.
    pub(super) async fn receive(&self, number: u64) -> u64 {
        let sent = || self.number.load(Ordering::Acquire) >= number;
        poll_fn(|context| {
            if sent() {
                return Poll::Ready(());
            }
            self.waker.register(context.waker());
            // It may have been sent before the waker was there.
            if sent() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        self.value.load(Ordering::Relaxed)
    }
}

/// Both directions.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    /// To the answering side.
    pub(super) request: Direction,
    /// To the asking side.
    pub(super) reply: Direction,
}
