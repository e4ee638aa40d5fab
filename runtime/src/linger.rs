//! Whether to look for another thread's message for a moment before parking.
//!
//! Two workers that answer each other wait a microsecond or two each time, and to sleep and be woken
//! takes several: the core leaves its halt, and the other one pays the interrupt that gets it out. So
//! a worker that was woken soon after it had parked looks first, next time, and parks when that was in
//! vain. A look that was in vain is not repeated for a growing number of short sleeps, so that a
//! worker whose messages come a little too late burns little.

use std::cell::Cell;
use std::time::Duration;

/// How long to look. A sleep ended by a message within this time counts as short.
pub(crate) const LOOK: Duration = Duration::from_micros(10);
/// The most short sleeps for which a vain look is not repeated.
const LONGEST_PAUSE: u32 = 256;

#[derive(Debug, Default)]
pub(crate) struct Linger {
    expecting: Cell<bool>,
    /// Short sleeps to let pass before looking again.
    pause: Cell<u32>,
    next_pause: Cell<u32>,
}

impl Linger {
    /// Whether a message is likely to come at once.
    pub(crate) fn is_expecting(&self) -> bool {
        self.expecting.get()
    }

    /// The look found a message.
    pub(crate) fn found(&self) {
        self.next_pause.set(0);
    }

    /// The look found nothing.
    pub(crate) fn missed(&self) {
        let pause = (self.next_pause.get() * 2).clamp(1, LONGEST_PAUSE);
        self.next_pause.set(pause);
        self.pause.set(pause);
        self.expecting.set(false);
    }

    /// The worker has slept for so long, and a message has woken it, or something else.
    pub(crate) fn slept(&self, time: Duration, by_message: bool) {
        let short = by_message && time <= LOOK;
        let pause = self.pause.get();
        if short && pause > 0 {
            self.pause.set(pause - 1);
        }
        self.expecting.set(short && pause == 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(3);

    #[test]
    fn only_a_short_sleep_that_a_message_ended_makes_it_look() {
        let linger = Linger::default();
        assert!(!linger.is_expecting());
        linger.slept(SHORT, false);
        assert!(!linger.is_expecting());
        linger.slept(LOOK * 2, true);
        assert!(!linger.is_expecting());
        linger.slept(SHORT, true);
        assert!(linger.is_expecting());
    }

    #[test]
    fn vain_looks_become_rare_and_a_found_message_makes_them_frequent_again() {
        let linger = Linger::default();
        let mut looks = 0;
        for _ in 0..10_000 {
            linger.slept(SHORT, true);
            if linger.is_expecting() {
                looks += 1;
                linger.missed();
            }
        }
        assert!((8..=60).contains(&looks), "{looks} vain looks in 10,000 sleeps");
        linger.found();
        linger.missed();
        linger.slept(SHORT, true);
        linger.slept(SHORT, true);
        assert!(linger.is_expecting());
    }
}
