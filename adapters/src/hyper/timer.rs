//! Sleeps for hyper.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use send_wrapper::SendWrapper;

/// Sleeps by the timers of the calling worker, with a resolution of nanoseconds.
///
/// Outside of a runtime its sleeps panic when they are polled.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct Timer;

impl Timer {
    /// The timer of whichever worker calls it.
    pub fn new() -> Self {
        Self
    }
}

impl ::hyper::rt::Timer for Timer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn ::hyper::rt::Sleep>> {
        Box::pin(TimerSleep::new(runtime::sleep(duration)))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn ::hyper::rt::Sleep>> {
        Box::pin(TimerSleep::new(runtime::sleep_until(deadline)))
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn ::hyper::rt::Sleep>>, deadline: Instant) {
        match sleep.as_mut().downcast_mut_pin::<TimerSleep>() {
            Some(mut sleep) => sleep.set(TimerSleep::new(runtime::sleep_until(deadline))),
            None => *sleep = self.sleep_until(deadline),
        }
    }
}

/// A sleep that is `Send` and `Sync`, as hyper wants it. It stays on its thread: on another one it starts again.
#[derive(Debug)]
pub(crate) struct TimerSleep {
    deadline: Instant,
    sleep: Option<SendWrapper<runtime::Sleep>>,
}

impl TimerSleep {
    pub(crate) fn new(sleep: runtime::Sleep) -> Self {
        Self { deadline: sleep.deadline(), sleep: Some(SendWrapper::new(sleep)) }
    }

    /// A timer of another thread fires there once more, for nobody: it can't be removed from here.
    fn leave_another_thread(&mut self) {
        if self.sleep.as_ref().is_some_and(|sleep| !sleep.valid()) {
            std::mem::forget(self.sleep.take());
        }
    }
}

impl Future for TimerSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.leave_another_thread();
        let deadline = self.deadline;
        let sleep = self.sleep.get_or_insert_with(|| SendWrapper::new(runtime::sleep_until(deadline)));
        Pin::new(&mut **sleep).poll(context)
    }
}

impl Drop for TimerSleep {
    fn drop(&mut self) {
        self.leave_another_thread();
    }
}

impl ::hyper::rt::Sleep for TimerSleep {}
