//! What a mode costs at a load: averages and medians of its latest windows.

use super::epoch::Epoch;

/// The share of the core above which it is taken for saturated: what waits longest waits where no
/// measurement sees it, so under interrupts delays don't speak against polling then.
const SATURATED: f64 = 0.9;
/// In how many windows a choice is measured before the next one, so that a disturbed window does
/// not decide: three choices follow a step of the load within 200 ms. After as many, a new window
/// has the same weight as each before.
pub(super) const ENOUGH: usize = 5;
/// The number of windows in the medians of delay and CPU time. Delays vary most near saturation,
/// where choices take longer, and a few slow windows of a virtual machine must not change the mode.
const LATEST: usize = 15;

/// Measurements of the mode in effect. Times are in seconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Measured {
    /// How many windows it holds.
    pub(super) windows: usize,
    /// Events per second.
    pub(super) rate: f64,
    /// CPU time per event, the median of the latest windows.
    pub(super) cost: f64,
    /// The share of the time in which the core was busy, from 0 to 1.
    pub(super) busy: f64,
    /// Waits that slept, per second.
    pub(super) sleeps: f64,
    /// How long an event waited, the median of the windows' medians. After a pause of the machine
    /// most events of a window wait.
    pub(super) delay: f64,
    /// CPU time per event and delay of each window, the latest first.
    pub(super) latest_costs: [f64; LATEST],
    pub(super) latest_delays: [f64; LATEST],
}

impl Measured {
    pub(super) fn is_saturated(&self) -> bool {
        self.busy > SATURATED
    }

    /// Whether the medians are of as many windows as are kept.
    pub(super) fn is_settled(&self) -> bool {
        self.windows >= LATEST
    }

    /// Drops all windows but the latest two from the medians: the load has changed.
    pub(super) fn begin_other_load(&mut self) {
        self.windows = self.windows.min(2);
    }

    /// Takes in a window with events.
    pub(super) fn take(&mut self, window: &Epoch) {
        let seconds = window.duration.as_secs_f64();
        if window.events == 0 || seconds == 0.0 {
            return;
        }
        self.windows += 1;
        let weight = 1.0 / self.windows.min(ENOUGH) as f64;
        let events = window.events as f64;
        let smooth = |value: &mut f64, now: f64| *value += weight * (now - *value);
        smooth(&mut self.rate, events / seconds);
        smooth(&mut self.busy, window.busy_share());
        smooth(&mut self.sleeps, window.sleeps as f64 / seconds);
        let push = |latest: &mut [f64; LATEST], now: f64| {
            latest.rotate_right(1);
            latest[0] = now;
        };
        push(&mut self.latest_costs, window.cpu.as_secs_f64() / events);
        push(&mut self.latest_delays, window.delays.median().as_secs_f64());
        let median = |mut latest: [f64; LATEST]| {
            let latest = &mut latest[..self.windows.min(LATEST)];
            latest.sort_unstable_by(f64::total_cmp);
            latest[(latest.len() - 1) / 2]
        };
        (self.cost, self.delay) = (median(self.latest_costs), median(self.latest_delays));
    }
}

/// Whether the larger value is more than `factor` times the other.
pub(super) fn differ(one: f64, other: f64, factor: f64) -> bool {
    one.max(other) > one.min(other) * factor
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::delays::Delays;
    use super::*;

    #[test]
    fn a_pause_in_one_window_of_three_does_not_count_as_delay() {
        let mut measured = Measured::default();
        for delay in [100, 20, 10] {
            let mut delays = Delays::default();
            delays.add([Duration::from_micros(delay); 2], 1_000.0);
            let duration = Duration::from_millis(10);
            measured.take(&Epoch { duration, events: 1_000, delays, ..Epoch::default() });
        }
        assert!((19e-6..21e-6).contains(&measured.delay), "{measured:?}");
    }
}
