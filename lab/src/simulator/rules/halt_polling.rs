//! KVM's halt polling, with the spin of a wait in the place of the host's poll before a virtual CPU halts.

use super::{Drive, FinishedWait, Rule};

/// `halt_poll_ns`, KVM's default on x86.
const LONGEST: u64 = 200_000;
/// `halt_poll_ns_grow_start`.
const FIRST: u64 = 10_000;

/// Doubles the spin where a longer one would have found the event, and gives it up where none would.
#[derive(Default)]
pub(in crate::simulator) struct HaltPolling {
    spin: u64,
}

impl Rule for HaltPolling {
    fn drive(&self) -> Drive {
        Drive::interrupt_first(self.spin)
    }

    fn waited(&mut self, wait: &FinishedWait) {
        match wait.gap {
            Some(gap) if gap > LONGEST => self.spin = 0,
            Some(gap) if gap > self.spin => self.spin = (self.spin * 2).clamp(FIRST, LONGEST),
            _ => {}
        }
    }
}
