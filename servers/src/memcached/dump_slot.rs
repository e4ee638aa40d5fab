//! Lets one client at a time list the keys: a list takes long, and its replies take memory.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A client that has not taken any of its list for this long, in seconds, gives way to another.
const STALLED_AFTER: u32 = 10;

/// The list that is being sent, if there is one.
#[derive(Debug, Default)]
pub struct DumpSlot(Mutex<Slot>);

#[derive(Debug, Default)]
struct Slot {
    last_number: u64,
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    number: u64,
    last_step: u32,
}

impl DumpSlot {
    fn lock(&self) -> MutexGuard<'_, Slot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a list at second `now`. `None` if another client's is being sent.
    pub fn begin(&self, now: u32) -> Option<DumpTicket<'_>> {
        let number = {
            let mut slot = self.lock();
            slot.last_number += 1;
            slot.last_number
        };
        let ticket = DumpTicket { slot: self, number };
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
        let mut slot = self.slot.lock();
        let others = slot.current.as_ref().filter(|current| current.number != self.number);
        let free = others.is_none_or(|other| now.saturating_sub(other.last_step) > STALLED_AFTER);
        if free {
            slot.current = Some(Current { number: self.number, last_step: now });
        }
        free
    }
}

impl Drop for DumpTicket<'_> {
    fn drop(&mut self) {
        let mut slot = self.slot.lock();
        slot.current.take_if(|current| current.number == self.number);
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
