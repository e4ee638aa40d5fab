//! What a mode costs at a load, smoothed over windows.

use super::epoch::Epoch;

/// After how many windows a new one has the same weight as each before.
const LATEST: u32 = 5;

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
    /// How long an event waited: a window's median.
    pub(super) delay: f64,
}

impl Measured {
    /// Takes in a window with events.
    pub(super) fn take(&mut self, window: &Epoch) {
        let seconds = window.duration.as_secs_f64();
        if window.events == 0 || seconds == 0.0 {
            return;
        }
        self.windows += 1;
        let weight = 1.0 / f64::from(self.windows.min(LATEST));
        let events = window.events as f64;
        let smooth = |value: &mut f64, now: f64| *value += weight * (now - *value);
        smooth(&mut self.rate, events / seconds);
        smooth(&mut self.cost, window.cpu.as_secs_f64() / events);
        smooth(&mut self.busy, window.busy_share());
        smooth(&mut self.sleeps, window.sleeps as f64 / seconds);
        smooth(&mut self.delay, window.delays.median().as_secs_f64());
    }
}
