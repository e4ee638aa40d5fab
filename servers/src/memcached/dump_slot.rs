//! Lets one client at a time list the keys: a list takes long, and its replies take memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A client that has not taken any of its list for this long, in seconds, gives way to another.
const STALLED_AFTER: u32 = 10;

#[derive(Debug, Default)]
pub struct DumpSlot {
    tickets: AtomicU64,
    /// The number of the list that is being sent, if there is one, and the second of its last step.
    current: Mutex<Option<(u64, u32)>>,
}

impl DumpSlot {
    fn current(&self) -> MutexGuard<'_, Option<(u64, u32)>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a list at second `now`. `None` if another client's is being sent.
    pub fn begin(&self, now: u32) -> Option<DumpTicket<'_>> {
        let ticket = DumpTicket { slot: self, number: self.tickets.fetch_add(1, Ordering::Relaxed) };
        ticket.step(now).then_some(ticket)
    }
}

/// Owns the slot until it is dropped, or has stalled.
#[derive(Debug)]
pub struct DumpTicket<'a> {
    slot: &'a DumpSlot,
    number: u64,
}

impl DumpTicket<'_> {
    /// Records a step at second `now`. False if another list has begun meanwhile.
    pub fn step(&self, now: u32) -> bool {
        let mut current = self.slot.current();
        let others = current.filter(|(number, _)| *number != self.number);
        let free = others.is_none_or(|(_, last_step)| now.saturating_sub(last_step) > STALLED_AFTER);
        if free {
            *current = Some((self.number, now));
        }
        free
    }
}

impl Drop for DumpTicket<'_> {
    fn drop(&mut self) {
        self.slot.current().take_if(|(number, _)| *number == self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_list_at_a_time_and_a_stalled_one_gives_way() {
        let slot = DumpSlot::default();
        let first = slot.begin(100).unwrap();
        assert!(slot.begin(105).is_none());
        assert!(first.step(106));
        assert!(slot.begin(116).is_none());
        let second = slot.begin(117).unwrap();
        assert!(!first.step(118));
        drop(first);
        assert!(slot.begin(118).is_none(), "the end of the stalled one has freed the slot");
        drop(second);
        assert!(slot.begin(118).is_some());
    }
}
