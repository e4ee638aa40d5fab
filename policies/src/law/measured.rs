//! What a mode costs at a load, smoothed over windows.

use super::epoch::Epoch;

/// Of how many windows delays are the median, and after how many a new one has the same weight in the other figures as each before.
const LATEST: usize = 5;

/// Measurements of the mode in effect. Times are in seconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Measured {
    /// How many windows it holds.
    pub(super) windows: u32,
    /// Events per second.
    pub(super) rate: f64,
    /// CPU time per event.
    pub(super) cost: f64,
    /// The share of the time in which the core was busy, from 0 to 1.
    pub(super) busy: f64,
    /// Waits that slept, per second.
    pub(super) sleeps: f64,
    /// How long an event waited, without wake-ups: the median of the latest windows, as a pause of the machine multiplies it in one.
    pub(super) queued: f64,
    pub(super) latest_queued: [f64; LATEST],
    /// How many wake-ups an event waited for.
    pub(super) wakes: f64,
}

impl Measured {
    /// Takes in a window with events.
    pub(super) fn take(&mut self, window: &Epoch) {
        let seconds = window.duration.as_secs_f64();
        if window.events == 0 || seconds == 0.0 {
            return;
        }
        self.windows += 1;
        let weight = 1.0 / (self.windows as usize).min(LATEST) as f64;
        let events = window.events as f64;
        let smooth = |value: &mut f64, now: f64| *value += weight * (now - *value);
        smooth(&mut self.rate, events / seconds);
        smooth(&mut self.cost, window.cpu.as_secs_f64() / events);
        smooth(&mut self.busy, window.busy_share());
        smooth(&mut self.sleeps, window.sleeps as f64 / seconds);
        smooth(&mut self.wakes, window.wakes / events);
        self.latest_queued[(self.windows - 1) as usize % LATEST] = window.delay.as_secs_f64() / events;
        let mut latest = self.latest_queued;
        let latest = &mut latest[..LATEST.min(self.windows as usize)];
        latest.sort_unstable_by(f64::total_cmp);
        self.queued = latest[(latest.len() - 1) / 2];
    }

    /// How long an event waited, if a wake-up takes this long.
    pub(super) fn delay(&self, wake: f64) -> f64 {
        self.queued + self.wakes * wake
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_pause_in_one_window_of_three_does_not_count_as_delay() {
        let mut measured = Measured::default();
        for delay in [100, 20, 10] {
            let (duration, delay) = (Duration::from_millis(10), Duration::from_micros(delay) * 1_000);
            measured.take(&Epoch { duration, events: 1_000, delay, ..Epoch::default() });
        }
        assert!((measured.queued - 20e-6).abs() < 1e-9, "{measured:?}");
    }
}
