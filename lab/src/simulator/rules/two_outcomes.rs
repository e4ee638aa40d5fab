//! The rule of PAS (FAST '26) with the grace time in the place of its sleep.

use super::{Drive, Rule};

const UP: f64 = 0.01;
const DOWN: f64 = 0.1;
/// The bounds of the grace time, in ns. Without them it would stay at 0, or grow with every idle second.
const SHORTEST: f64 = 5_000.0;
pub(in crate::simulator) const LONGEST: u64 = 500_000;

/// Multiplies the grace time after each tick, by a factor that the outcomes of the last two ticks change: too late (the
/// tick found packets) or too early.
pub(in crate::simulator) struct TwoOutcomes {
    grace: f64,
    factor: f64,
    was_late: bool,
}

impl Default for TwoOutcomes {
    fn default() -> Self {
        Self { grace: 20_000.0, factor: 1.0, was_late: false }
    }
}

impl Rule for TwoOutcomes {
    fn drive(&self) -> Drive {
        Drive::grace(self.grace as u64)
    }

    fn ticked(&mut self, found: bool) {
        self.factor = match (self.was_late, found) {
            (true, true) => self.factor - DOWN,
            (true, false) => 1.0 + UP,
            (false, true) => 1.0 - DOWN,
            (false, false) => self.factor + UP,
        }
        .max(0.0);
        self.was_late = found;
        self.grace = (self.grace * self.factor).clamp(SHORTEST, LONGEST as f64);
    }
}
