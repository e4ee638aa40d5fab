//! What a sleep costs on this machine.

use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::thread_time::this_thread_cpu_time;

/// How often a sleep is measured. The median ignores the sleeps in which something else ran.
const SLEEPS: usize = 33;
/// How long each measured sleep is asked to take.
const SLEEP: Duration = Duration::from_micros(20);
/// Bounds for both costs: below, the clocks don't resolve them; above, something else ran.
const LEAST: Duration = Duration::from_nanos(500);
const MOST: Duration = Duration::from_micros(50);

/// What it costs a thread of this machine to sleep until something happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MachineCosts {
    /// The CPU time of going to sleep and of waking up.
    pub block: Duration,
    /// The time from the event that ends a sleep to the moment when the thread runs.
    pub wake_latency: Duration,
}

impl MachineCosts {
    /// Measures on the calling thread: 33 sleeps of 20 µs, some 1 to 3 ms in total. The thread should have the timer slack
    /// with which it is going to sleep (`PR_SET_TIMERSLACK`).
    pub fn measure() -> Self {
        let (mut blocks, mut latencies) = (Vec::with_capacity(SLEEPS), Vec::with_capacity(SLEEPS));
        for _ in 0..SLEEPS {
            let (cpu, start) = (this_thread_cpu_time(), Instant::now());
            thread::sleep(SLEEP);
            latencies.push(start.elapsed().saturating_sub(SLEEP));
            blocks.push(this_thread_cpu_time().saturating_sub(cpu));
        }
        Self { block: median(blocks), wake_latency: median(latencies) }
    }
}

fn median(mut values: Vec<Duration>) -> Duration {
    values.sort_unstable();
    values[values.len() / 2].clamp(LEAST, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_costs_are_within_their_bounds() {
        let costs = MachineCosts::measure();
        for cost in [costs.block, costs.wake_latency] {
            assert!((LEAST..=MOST).contains(&cost), "{costs:?}");
        }
    }
}
