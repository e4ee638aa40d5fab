//! How long it takes until a thread runs that sleeps on an idle core.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use loadgen::medians::median;
use policies::Cpus;

/// Wake-ups that are measured.
const WAKE_UPS: usize = 200;
/// How long the core idles before each.
const IDLE: Duration = Duration::from_micros(300);
/// How long one wake-up may take at most, if something else occupies the core.
const PATIENCE: Duration = Duration::from_millis(50);

/// The median time from waking a thread on `sleeper` until it runs, in µs. `waker` is busy meanwhile.
pub(super) fn wake_up_us(waker: u32, sleeper: u32) -> io::Result<f64> {
    let epoch = Instant::now();
    let nanos = || u64::try_from(epoch.elapsed().as_nanos()).unwrap_or(u64::MAX);
    // When the thread ran, in ns; 0 while it sleeps.
    let (ran, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    let (ran, ends, nanos) = (&ran, &ends, &nanos);
    thread::scope(|scope| {
        let sleeping = scope.spawn(move || -> io::Result<()> {
            Cpus::one(sleeper).pin(None)?;
            while !ends.load(Ordering::Acquire) {
                thread::park();
                ran.store(nanos(), Ordering::Release);
            }
            Ok(())
        });
        let sleeper = sleeping.thread().clone();
        let waking = scope.spawn(move || -> io::Result<Vec<f64>> {
            let pinned = Cpus::one(waker).pin(None);
            let mut times = Vec::with_capacity(WAKE_UPS);
            while pinned.is_ok() && times.len() < WAKE_UPS {
                spin_until(epoch.elapsed() + IDLE, epoch, || false);
                ran.store(0, Ordering::Release);
                let begun = nanos();
                sleeper.unpark();
                spin_until(epoch.elapsed() + PATIENCE, epoch, || ran.load(Ordering::Acquire) > 0);
                // A wake-up that never came counts as the longest.
                let end = Some(ran.load(Ordering::Acquire)).filter(|ran| *ran > 0).unwrap_or_else(nanos);
                times.push(end.saturating_sub(begun) as f64 / 1e3);
            }
            ends.store(true, Ordering::Release);
            sleeper.unpark();
            pinned.map(|()| times)
        });
        let slept = sleeping.join().unwrap_or_else(|_| Err(io::Error::other("the sleeping thread panicked")));
        let times = waking.join().unwrap_or_else(|_| Err(io::Error::other("the waking thread panicked")))?;
        slept?;
        Ok(median(&times))
    })
}

/// Keeps the core busy until a time since `epoch`, or until `done`.
fn spin_until(time: Duration, epoch: Instant, done: impl Fn() -> bool) {
    while epoch.elapsed() < time && !done() {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "timing"]
    fn a_wake_up_takes_time_and_comes_within_patience() {
        let cores: Vec<u32> = Cpus::allowed().unwrap().iter().take(2).collect();
        let &[waker, sleeper] = &cores[..] else {
            eprintln!("skipped: one core");
            return;
        };
        let micros = wake_up_us(waker, sleeper).unwrap();
        assert!(micros > 0.0 && micros < PATIENCE.as_secs_f64() * 1e6, "{micros} µs");
    }
}
