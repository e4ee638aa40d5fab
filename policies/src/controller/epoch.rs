//! What is measured between two steps of the controller.

use std::time::Duration;

use super::delays::Delays;

/// The measurements of one worker and its queue during some milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Epoch {
    /// How long the epoch took.
    pub duration: Duration,
    /// How many times data arrived on sockets of the queue.
    pub events: u64,
    /// How many packets arrived, or an estimate: at least `events`. Acknowledgements count, too.
    pub packets: u64,
    /// The CPU time of the worker, and of the kernel's work for its queue.
    pub cpu: Duration,
    /// How long the worker was ready while other programs had its core. Requests wait meanwhile,
    /// but cost nothing.
    pub waiting: Duration,
    /// How many waits have slept.
    pub sleeps: u64,
    /// For how long events waited until they were processed.
    pub delays: Delays,
    /// By how much sleeps that a timer ended were longer than asked for, summed, and how many there
    /// were.
    pub overslept: (Duration, u64),
}

impl Epoch {
    /// Adds another epoch's measurements.
    pub fn add(&mut self, other: &Self) {
        self.duration += other.duration;
        self.events += other.events;
        self.packets += other.packets;
        self.cpu += other.cpu;
        self.waiting += other.waiting;
        self.sleeps += other.sleeps;
        self.delays.merge(&other.delays);
        self.overslept.0 += other.overslept.0;
        self.overslept.1 += other.overslept.1;
    }

    /// Packets that the queue received, per second of the epoch.
    pub fn packet_rate(&self) -> f64 {
        let seconds = self.duration.as_secs_f64();
        if seconds == 0.0 { 0.0 } else { self.packets as f64 / seconds }
    }

    /// The share of the time in which requests had the core or waited for it, from 0 to 1.
    pub fn busy_share(&self) -> f64 {
        let seconds = self.duration.as_secs_f64();
        if seconds == 0.0 { 0.0 } else { ((self.cpu + self.waiting).as_secs_f64() / seconds).min(1.0) }
    }
}

/// How long a packet takes through the kernel thread that receives it, on average, if the thread
/// has run for `run`, got its core `turns` times, and received `packets`: the one that has woken it
/// the whole turn, those that came during the turn half of it.
///
/// `run` begins when the thread is woken, as read by
/// [`open_napi_thread`](crate::thread_time::AwakeTime::open_napi_thread).
pub fn receiving_time(run: Duration, turns: u64, packets: u64) -> Duration {
    let turns = turns.max(1).min(packets.max(1));
    let turn = run / u32::try_from(turns).unwrap_or(u32::MAX);
    turn.mul_f64((1.0 + turns as f64 / packets.max(1) as f64) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_that_come_during_a_turn_of_the_kernel_thread_wait_for_half_of_it() {
        let micros = Duration::from_micros;
        assert_eq!(receiving_time(micros(1_000), 100, 100), micros(10));
        // One packet of five waits for 10 µs, four for 5.
        assert_eq!(receiving_time(micros(1_000), 100, 500), micros(6));
        assert_eq!(receiving_time(micros(1_000), 0, 0), micros(1_000));
    }
}
