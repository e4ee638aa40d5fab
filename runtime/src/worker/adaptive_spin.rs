//! Whether to spin before a sleep.
//!
//! Two threads that answer each other wait a microsecond or two each time, while sleeping and being
//! woken takes several: the core leaves its halt state, and the other core pays for the interrupt
//! that gets it out. So after a short sleep the next wait spins first. A spin as long as a sleep
//! costs makes a wait at most twice as expensive as the better of both (Damianakis, Chen and
//! Felten, *Reducing Waiting Costs in User-Level Communication*, 1997). Where a sleep costs less
//! than the spin, the growing number of short sleeps without a spin that follows each spin in vain
//! bounds what those cost.

use std::cell::Cell;
use std::time::Duration;

/// How long to spin. A sleep costs some 3 to 10 µs on hardware, in CPU time and delay, and 20 µs
/// and more in virtual machines.
pub(crate) const SPIN_TIME: Duration = Duration::from_micros(20);
/// What ended a sleep of this length may have come within [`SPIN_TIME`]: the rest is the wake-up,
/// up to some 60 µs for a core that was halted.
const SHORT_SLEEP: Duration = Duration::from_micros(100);
/// The largest number of short sleeps without a spin that follow a spin in vain.
const MAX_SKIPPED: u32 = 256;

#[derive(Debug)]
pub(crate) struct AdaptiveSpin {
    expecting: Cell<bool>,
    /// Short sleeps without a spin that are left.
    skip: Cell<u32>,
    last_skip: Cell<u32>,
}

impl AdaptiveSpin {
    pub(crate) const fn new() -> Self {
        Self { expecting: Cell::new(false), skip: Cell::new(0), last_skip: Cell::new(0) }
    }

    /// Whether the next wait is likely to end within [`SPIN_TIME`].
    pub(crate) fn is_expecting(&self) -> bool {
        self.expecting.get()
    }

    pub(crate) fn found(&self) {
        self.last_skip.set(0);
    }

    pub(crate) fn missed(&self) {
        let skip = (self.last_skip.get() * 2).clamp(1, MAX_SKIPPED);
        self.last_skip.set(skip);
        self.skip.set(skip);
        self.expecting.set(false);
    }

    /// The thread has slept for `time`; `found`: until something came that a spin would have found.
    pub(crate) fn slept(&self, time: Duration, found: bool) {
        let short = found && time <= SHORT_SLEEP;
        let skip = self.skip.get();
        if short && skip > 0 {
            self.skip.set(skip - 1);
        }
        self.expecting.set(short && skip == 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(3);

    #[test]
    fn only_a_short_sleep_that_a_message_ended_is_followed_by_a_spin() {
        let spin = AdaptiveSpin::new();
        assert!(!spin.is_expecting());
        spin.slept(SHORT, false);
        assert!(!spin.is_expecting());
        spin.slept(SHORT_SLEEP * 2, true);
        assert!(!spin.is_expecting());
        spin.slept(SHORT, true);
        assert!(spin.is_expecting());
    }

    #[test]
    fn spins_in_vain_become_rare_and_a_found_message_makes_them_frequent_again() {
        let spin = AdaptiveSpin::new();
        let mut spins = 0;
        for _ in 0..10_000 {
            spin.slept(SHORT, true);
            if spin.is_expecting() {
                spins += 1;
                spin.missed();
            }
        }
        assert!((8..=60).contains(&spins), "{spins} spins in vain in 10,000 sleeps");
        spin.found();
        spin.missed();
        spin.slept(SHORT, true);
        spin.slept(SHORT, true);
        assert!(spin.is_expecting());
    }
}
