//! The operations in flight.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use slab::Slab;

use super::socket_state::{ListenerState, SocketState};
use crate::wake_handle::WakeHandle;

/// The user data of cancellations, whose own completion is ignored.
pub(super) const CANCEL: u64 = u64::MAX;
/// The user data of messages from other workers, which only end the wait.
pub(super) const WAKE_MESSAGE: u64 = u64::MAX - 1;
/// The user data of the two timers that end the sleeps of timed mode: this, and the next.
pub(super) const AHEAD_TIMERS: u64 = u64::MAX - 3;

#[derive(Clone)]
pub(super) enum Operation {
    Accept(Rc<ListenerState>),
    Receive(Rc<SocketState>),
    /// A send that does not wait for room, and posts no completion if everything was sent.
    Send(Rc<SocketState>),
    WaitingSend(Rc<SocketState>),
    /// A zero-copy send: the bytes have to live until its notification.
    ZeroCopy(Box<(Rc<SocketState>, bytes::Bytes)>),
    Epoll,
    Eventfd,
    /// A message to another worker's ring that wakes the worker.
    WakeMessage(Box<WakeMessage>),
    Application(Rc<dyn ApplicationOperation>),
}

/// An operation of which the driver knows nothing but its completions. It owns what the kernel uses
/// until the last one.
pub(crate) trait ApplicationOperation {
    /// A completion has come; `last`: the kernel uses nothing of the operation any more. Returns
    /// who is to be woken.
    fn completed(&self, result: i32, last: bool) -> Option<Waker>;
}

#[derive(Clone)]
pub(super) struct WakeMessage {
    pub(super) worker: Arc<WakeHandle>,
    /// Open until the message is sent.
    pub(super) _ring: Arc<OwnedFd>,
}

/// The operations in flight, by id. An id is not reused soon: a late cancellation must not hit
/// another operation.
#[derive(Default)]
pub(super) struct Operations {
    table: Slab<(u64, Operation)>,
    next: u64,
}

/// The bits of an id that are the index into the table.
const INDEX: u64 = u32::MAX as u64;

impl Operations {
    pub(super) fn insert(&mut self, operation: Operation) -> u64 {
        let entry = self.table.vacant_entry();
        // Starts at 1, so that no id is 0, and wraps before AHEAD_TIMERS, WAKE_MESSAGE and CANCEL.
        // By then, after 2^32 operations, nobody uses the old id any more.
        self.next = self.next % (INDEX - 1) + 1;
        let id = self.next << 32 | entry.key() as u64;
        entry.insert((id, operation));
        id
    }

    pub(super) fn get(&self, id: u64) -> Option<&Operation> {
        let index = usize::try_from(id & INDEX).ok()?;
        self.table.get(index).filter(|(known, _)| *known == id).map(|(_, operation)| operation)
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Operation> {
        self.get(id)?;
        let index = usize::try_from(id & INDEX).ok()?;
        self.table.try_remove(index).map(|(_, operation)| operation)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    fn all(&self) -> impl Iterator<Item = &(u64, Operation)> {
        self.table.iter().map(|(_, entry)| entry)
    }

    /// Whether all of them are the application's: some of those can't be cancelled while they run,
    /// an fsync for example.
    pub(super) fn are_all_the_applications(&self) -> bool {
        self.all().all(|(_, operation)| matches!(operation, Operation::Application(_)))
    }

    pub(super) fn has_sends(&self) -> bool {
        use Operation::{Send, WaitingSend, ZeroCopy};
        self.all().any(|(_, operation)| matches!(operation, Send(_) | WaitingSend(_) | ZeroCopy(_)))
    }

    pub(super) fn zero_copies(&self) -> Vec<Rc<SocketState>> {
        let sockets = self.all().filter_map(|(_, operation)| match operation {
            Operation::ZeroCopy(sending) => Some(Rc::clone(&sending.0)),
            _ => None,
        });
        sockets.collect()
    }

    pub(super) fn incoming(&self) -> Vec<u64> {
        let incoming =
            |operation: &Operation| matches!(operation, Operation::Receive(_) | Operation::Accept(_));
        self.all().filter(|(_, operation)| incoming(operation)).map(|(id, _)| *id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_reused_under_another_id() {
        let mut operations = Operations::default();
        let first = operations.insert(Operation::Epoll);
        assert!(operations.remove(first).is_some());
        let second = operations.insert(Operation::Epoll);
        assert_eq!(first & INDEX, second & INDEX);
        assert!(operations.get(first).is_none() && operations.remove(first).is_none());
        assert!(operations.get(second).is_some() && !operations.is_empty());
    }

    #[test]
    fn no_operation_has_the_id_of_cancellations_or_wake_messages() {
        let mut operations = Operations { next: INDEX - 2, ..Operations::default() };
        for _ in 0..4 {
            let id = operations.insert(Operation::Epoll);
            assert!(id != 0 && id < AHEAD_TIMERS);
        }
        assert!(operations.get(CANCEL).is_none() && operations.get(WAKE_MESSAGE).is_none());
    }
}
