//! A number that one thread increases and another waits for. The executor's benchmark uses it, too.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use futures_util::task::AtomicWaker;

#[derive(Default)]
pub struct AwaitedNumber {
    value: AtomicU64,
    waker: AtomicWaker,
}

impl AwaitedNumber {
    pub fn set(&self, value: u64) {
        self.value.store(value, Ordering::Release);
        self.waker.wake();
    }

    /// Waits until the number is at least this one. One task at a time.
    pub async fn reaches(&self, value: u64) {
        poll_fn(|context| {
            if self.value.load(Ordering::Acquire) >= value {
                return Poll::Ready(());
            }
            self.waker.register(context.waker());
            if self.value.load(Ordering::Acquire) >= value { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}
