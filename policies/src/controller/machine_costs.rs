//! What a sleep costs on this machine.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::{CpuSet, current_timer_slack, sched_getcpu, sched_setaffinity, set_current_timer_slack};

use crate::cpus::Cpus;
use crate::thread_time::this_thread_cpu_time;

/// How often each kind of sleep is measured. The median ignores the sleeps in which something else
/// ran.
const SLEEPS: usize = 33;
/// How long each sleep that a timer ends is asked to take.
const SLEEP: Duration = Duration::from_micros(20);
/// How long the thread sleeps until another one wakes it: about as long as a worker with 10,000
/// requests a second.
const PAUSE: Duration = Duration::from_micros(100);
/// Bounds for all costs: below, the clocks don't resolve them; above, something else ran.
const LEAST: Duration = Duration::from_nanos(500);
const MOST: Duration = Duration::from_micros(50);
/// The same for sleeps while a worker serves: a core that sleeps deeply takes longer.
const MOST_LATE: Duration = Duration::from_micros(200);

/// What it costs a thread of this machine to sleep until something happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct MachineCosts {
    /// The CPU time of going to sleep and of waking up by a timer.
    pub block: Duration,
    /// The time from the moment when a timer is due to the one when the thread runs.
    pub timer_latency: Duration,
    /// The time from the moment when another core wakes the thread to the one when it runs.
    pub wake_latency: Duration,
}

impl MachineCosts {
    /// Measures on the calling thread: 33 sleeps of 20 µs and of 100 µs, some 5 to 10 ms in total.
    /// Without timer slack (`PR_SET_TIMERSLACK`), as workers sleep, and as the kernel's own timers
    /// poll.
    pub fn measure() -> Self {
        let slack = current_timer_slack().ok();
        // Fails on no kernel that has timers of this resolution.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        let costs = Self::measure_without_slack();
        let _ = set_current_timer_slack(slack.and_then(NonZeroU64::new));
        costs
    }

    fn measure_without_slack() -> Self {
        let (mut blocks, mut latencies) = (Vec::with_capacity(SLEEPS), Vec::with_capacity(SLEEPS));
        for _ in 0..SLEEPS {
            let (cpu, start) = (this_thread_cpu_time(), Instant::now());
            thread::sleep(SLEEP);
            latencies.push(start.elapsed().saturating_sub(SLEEP));
            blocks.push(this_thread_cpu_time().saturating_sub(cpu));
        }
        let timer_latency = median(latencies);
        // Falls back to the timer's latency where no thread or descriptor is left. A virtual
        // machine that was idle may take many times as long for a wake-up as while it serves: a
        // timer's takes longer in either state.
        let wake_latency =
            wake_latencies().map_or(timer_latency, |latencies| quantile(latencies, 8)).min(timer_latency);
        Self { block: median(blocks), timer_latency, wake_latency }
    }

    /// Takes in by how much a timer was late while a worker served, smoothed.
    pub(super) fn take_timer_latency(&mut self, measured: Duration) {
        self.timer_latency = ((self.timer_latency * 3 + measured) / 4).clamp(LEAST, MOST_LATE);
    }
}

/// How long the calling thread takes to run after a thread on another core has woken it, several
/// times. `None` if there is no other core, or the kernel refuses a thread or a descriptor.
fn wake_latencies() -> Option<Vec<Duration>> {
    // Not those that the thread may use: a worker has one.
    let here = u32::try_from(sched_getcpu()).ok()?;
    let mut others = CpuSet::new();
    Cpus::online().ok()?.iter().filter(|cpu| *cpu != here).for_each(|cpu| others.set(cpu as usize));
    if others.count() == 0 {
        return None;
    }
    // Each write is read on its own, also if the thread is late.
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE).ok()?;
    let (start, woken) = (Instant::now(), AtomicU64::new(0));
    let now = || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    thread::scope(|scope| {
        let wake = || {
            wake_often(&others, || {
                woken.store(now(), Ordering::Release);
                // Fails only if the counter is full.
                let _ = rustix::io::write(&event, &1_u64.to_ne_bytes());
            })
        };
        thread::Builder::new().name("lull-costs".to_owned()).spawn_scoped(scope, wake).ok()?;
        let sleep = || {
            rustix::io::read(&event, &mut [0; 8]).ok()?;
            Some(Duration::from_nanos(now().saturating_sub(woken.load(Ordering::Acquire))))
        };
        (0..SLEEPS).map(|_| sleep()).collect()
    })
}

/// Calls `wake` as often as is measured, on another core.
fn wake_often(others: &CpuSet, wake: impl Fn()) {
    // It may run elsewhere if the kernel refuses.
    let _ = sched_setaffinity(None, others);
    for _ in 0..SLEEPS {
        thread::sleep(PAUSE);
        wake();
    }
}

fn median(values: Vec<Duration>) -> Duration {
    quantile(values, 2)
}

/// The upper end of the lowest `1 / parts` of the values.
fn quantile(mut values: Vec<Duration>, parts: usize) -> Duration {
    values.sort_unstable();
    values[values.len() / parts].clamp(LEAST, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_costs_are_within_their_bounds() {
        let slack = current_timer_slack().unwrap();
        let costs = MachineCosts::measure();
        for cost in [costs.block, costs.timer_latency, costs.wake_latency] {
            assert!((LEAST..=MOST).contains(&cost), "{costs:?}");
        }
        assert_eq!(slack, current_timer_slack().unwrap());
    }
}
