//! Whether to spin for another thread's message before parking.
//!
//! Two workers that answer each other wait a microsecond or two each time, while sleeping and being woken
//! takes several: the core leaves its halt state, and the other core pays for the interrupt that gets it
//! out. So a worker that was woken soon after it had parked spins before it parks again. After a spin in
//! vain it skips a growing number of short sleeps, so a worker whose messages come slightly too late wastes
//! little time.

use std::cell::Cell;
use std::time::Duration;

/// How long to spin. A sleep that a message ended within this time counts as short.
pub(crate) const SPIN_TIME: Duration = Duration::from_micros(10);
/// The largest number of short sleeps that follow a spin in vain without a spin.
const MAX_SKIPPED: u32 = 256;

#[derive(Debug, Default)]
pub(crate) struct AdaptiveSpin {
    expecting: Cell<bool>,
    /// Short sleeps without a spin that are left.
    skip: Cell<u32>,
    last_skip: Cell<u32>,
}

impl AdaptiveSpin {
    /// Whether a message is likely to come within [`SPIN_TIME`].
    pub(crate) fn is_expecting(&self) -> bool {
        self.expecting.get()
    }

    /// A spin found a message.
    pub(crate) fn found(&self) {
        self.last_skip.set(0);
    }

    /// A spin found nothing.
    pub(crate) fn missed(&self) {
        let skip = (self.last_skip.get() * 2).clamp(1, MAX_SKIPPED);
        self.last_skip.set(skip);
        self.skip.set(skip);
        self.expecting.set(false);
    }

    /// The worker has slept for `time`; `by_message`: a message woke it.
    pub(crate) fn slept(&self, time: Duration, by_message: bool) {
        let short = by_message && time <= SPIN_TIME;
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
        let spin = AdaptiveSpin::default();
        assert!(!spin.is_expecting());
        spin.slept(SHORT, false);
        assert!(!spin.is_expecting());
        spin.slept(SPIN_TIME * 2, true);
        assert!(!spin.is_expecting());
        spin.slept(SHORT, true);
        assert!(spin.is_expecting());
    }

    #[test]
    fn spins_in_vain_become_rare_and_a_found_message_makes_them_frequent_again() {
        let spin = AdaptiveSpin::default();
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
