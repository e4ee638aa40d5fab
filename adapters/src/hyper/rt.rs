//! What hyper needs of a runtime: an executor and a timer.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Spawns hyper's futures on the calling worker. They need not be `Send`.
///
/// Outside of a runtime it panics.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct Executor;

impl Executor {
    /// The executor of whichever worker calls it.
    pub fn new() -> Self {
        Self
    }
}

impl<F> ::hyper::rt::Executor<F> for Executor
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, future: F) {
        drop(runtime::spawn(future));
    }
}

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
        Box::pin(TimerSleep(runtime::sleep(duration)))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn ::hyper::rt::Sleep>> {
        Box::pin(TimerSleep(runtime::sleep_until(deadline)))
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn ::hyper::rt::Sleep>>, deadline: Instant) {
        match sleep.as_mut().downcast_mut_pin::<TimerSleep>() {
            Some(mut sleep) => sleep.0.reset(deadline),
            None => *sleep = self.sleep_until(deadline),
        }
    }
}

#[derive(Debug)]
struct TimerSleep(runtime::Sleep);

impl Future for TimerSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl ::hyper::rt::Sleep for TimerSleep {}
