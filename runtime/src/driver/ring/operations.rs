//! The operations that are under way.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use slab::Slab;

use super::accept::AcceptState;
use super::socket::SocketState;
use crate::shared::WorkerShared;

/// The token of cancellations, whose own outcome is of no interest.
pub(super) const CANCEL: u64 = u64::MAX;
/// The token of messages of other workers, which are there to end the wait.
pub(super) const WOKEN: u64 = u64::MAX - 1;

#[derive(Clone)]
pub(super) enum Operation {
    /// A multishot accept.
    Accept(Rc<AcceptState>),
    /// A multishot receive.
    Receive(Rc<SocketState>),
    /// A send that does not wait, and completes silently when all was sent.
    Send(Rc<SocketState>),
    /// A send that waits for room.
    WaitingSend(Rc<SocketState>),
    /// A send without a copy: what it sends from has to stay until its notification.
    ZeroCopy(Box<(Rc<SocketState>, bytes::Bytes)>),
    /// Watches the epoll instance.
    Epoll,
    /// Watches the worker's eventfd.
    Eventfd,
    /// A message that wakes another worker, by its ring.
    Wake(Box<Wake>),
}

#[derive(Clone)]
pub(super) struct Wake {
    pub(super) worker: Arc<WorkerShared>,
    /// Open until the message has gone out.
    pub(super) _ring: Arc<OwnedFd>,
}

/// The operations that are under way, each under a number that is not soon used again: a
/// cancellation that comes late must not meet another operation.
#[derive(Default)]
pub(super) struct Operations {
    table: Slab<(u64, Operation)>,
    next: u64,
}

/// The bits of an operation's number that are its place in the table.
const PLACE: u64 = u32::MAX as u64;

impl Operations {
    pub(super) fn insert(&mut self, operation: Operation) -> u64 {
        let entry = self.table.vacant_entry();
        // From 1 on, so that no number is 0, and wraps before WOKEN and CANCEL; by then, after 2^32
        // operations, an old number is long forgotten.
        self.next = self.next % (PLACE - 1) + 1;
        let id = self.next << 32 | entry.key() as u64;
        entry.insert((id, operation));
        id
    }

    pub(super) fn get(&self, id: u64) -> Option<&Operation> {
        let place = usize::try_from(id & PLACE).ok()?;
        self.table.get(place).filter(|(known, _)| *known == id).map(|(_, operation)| operation)
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Operation> {
        self.get(id)?;
        let place = usize::try_from(id & PLACE).ok()?;
        self.table.try_remove(place).map(|(_, operation)| operation)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    pub(super) fn has_sends(&self) -> bool {
        let mut all = self.table.iter().map(|(_, (_, operation))| operation);
        let is_send = |operation: &Operation| {
            matches!(operation, Operation::Send(_) | Operation::WaitingSend(_) | Operation::ZeroCopy(_))
        };
        all.any(is_send)
    }

    /// The connections whose memory the kernel still sends from.
    pub(super) fn zero_copies(&self) -> Vec<Rc<SocketState>> {
        let all = self.table.iter().map(|(_, (_, operation))| operation);
        let sockets = all.filter_map(|operation| match operation {
            Operation::ZeroCopy(sending) => Some(Rc::clone(&sending.0)),
            _ => None,
        });
        sockets.collect()
    }

    /// Those that bring something in.
    pub(super) fn incoming(&self) -> Vec<u64> {
        let all = self.table.iter().map(|(_, entry)| entry);
        let incoming =
            |operation: &Operation| matches!(operation, Operation::Receive(_) | Operation::Accept(_));
        all.filter(|(_, operation)| incoming(operation)).map(|(id, _)| *id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_used_again_under_another_number() {
        let mut operations = Operations::default();
        let first = operations.insert(Operation::Epoll);
        assert!(operations.remove(first).is_some());
        let second = operations.insert(Operation::Epoll);
        assert_eq!(first & PLACE, second & PLACE);
        assert!(operations.get(first).is_none() && operations.remove(first).is_none());
        assert!(operations.get(second).is_some() && !operations.is_empty());
    }

    #[test]
    fn no_operation_has_the_number_of_cancellations() {
        let mut operations = Operations { next: PLACE - 2, ..Operations::default() };
        for _ in 0..4 {
            let id = operations.insert(Operation::Epoll);
            assert!(id != 0 && id < WOKEN);
        }
        assert!(operations.get(CANCEL).is_none() && operations.get(WOKEN).is_none());
    }
}
