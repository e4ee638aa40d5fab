//! Sends: gathered in a turn, submitted together, and what becomes of each.

use std::io;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::Duration;

use io_uring::{cqueue, opcode, squeue, types};

use super::driver::{TASK_BUDGET, UringDriver};
use super::operations::Operation;
use super::socket_state::{InFlightSend, SendBuffer, SocketState};
use crate::faults;

/// The smallest send for which zero-copy is tried, in bytes. Below, pinning the pages and the
/// notification of their release cost more than the copy.
const ZERO_COPY: usize = 64 << 10;

/// Written bytes with which a turn ends. More would leave the caches before the kernel reads them,
/// and would leave the machine in a burst that overruns the peer's receive ring: a veth's has 256
/// packets (`VETH_RING_SIZE`).
const SEND_BYTES: usize = 128 << 10;

/// The number of spare send buffers that are kept: one for each task of a turn.
const SPARES: usize = TASK_BUDGET;
/// The total capacity of the spare buffers that are kept, in bytes.
const SPARE_BYTES: usize = 1 << 20;

/// `IORING_SEND_ZC_REPORT_USAGE`: the notification says whether the kernel has copied after all.
const REPORT_USAGE: u16 = 1 << 3;
/// `IORING_NOTIF_USAGE_ZC_COPIED`.
const COPIED: i32 = i32::MIN;

pub(super) struct TurnSends {
    pub(super) count: usize,
    /// Something follows when one of them has completed: a task is woken, or the connection ends.
    pub(super) awaited: bool,
}

impl UringDriver {
    pub(super) fn list_send(&self, state: &Rc<SocketState>) {
        self.state.to_send.borrow_mut().push(Rc::clone(state));
    }

    /// Counts bytes that were written in this turn: those that are to be submitted, and those that
    /// were sent at once.
    pub(super) fn count_written(&self, bytes: usize) {
        self.state.written_bytes.set(self.state.written_bytes.get().saturating_add(bytes));
    }

    pub(super) fn count_sent(&self, bytes: usize) {
        self.state.sent_bytes.set(self.state.sent_bytes.get() + bytes as u64);
    }

    /// Whether tasks have written so much that the turn ends before more of them run.
    pub(crate) fn sends_are_due(&self) -> bool {
        self.state.written_bytes.get() >= SEND_BYTES
    }

    pub(crate) fn has_to_send(&self) -> bool {
        let listed =
            [&self.state.to_send, &self.state.to_receive].iter().any(|list| !list.borrow().is_empty());
        listed || self.ring.borrow_mut().unsubmitted() > 0
    }

    pub(super) fn spare_buffer(&self) -> Vec<u8> {
        let buffer = self.state.spare_buffers.borrow_mut().pop().unwrap_or_default();
        self.state.spare_bytes.set(self.state.spare_bytes.get() - buffer.capacity());
        buffer
    }

    fn recycle(&self, mut sent: Box<InFlightSend>) {
        match std::mem::take(&mut sent.bytes) {
            SendBuffer::Copied(mut buffer) => {
                let mut spares = self.state.spare_buffers.borrow_mut();
                let bytes = self.state.spare_bytes.get() + buffer.capacity();
                if spares.len() < SPARES && bytes <= SPARE_BYTES {
                    buffer.clear();
                    spares.push(buffer);
                    self.state.spare_bytes.set(bytes);
                }
            }
            SendBuffer::Owned(bytes) => self.state.released.borrow_mut().push(bytes),
        }
        let mut spares = self.state.spare_sends.borrow_mut();
        if spares.len() < SPARES {
            spares.push(sent);
        }
    }

    /// Submits what was written in this turn, one send per connection.
    pub(super) fn queue_sends(&self) -> TurnSends {
        self.state.written_bytes.set(0);
        let mut listed = self.state.to_send.take();
        let mut sends = TurnSends { count: listed.len(), awaited: false };
        for state in listed.drain(..) {
            let mut send = state.send.borrow_mut();
            send.listed = false;
            if send.in_flight.is_some() || send.queued.is_empty() {
                continue;
            }
            let bytes = std::mem::take(&mut send.queued);
            send.in_flight = Some(self.in_flight(SendBuffer::Copied(bytes)));
            sends.awaited |= send.is_awaited() || state.receive.borrow().dropped;
            drop(send);
            if let Some(id) = self.submit_send(&state, false) {
                self.state.submitted_sends.borrow_mut().push(id);
            }
        }
        let mut to_send = self.state.to_send.borrow_mut();
        if to_send.is_empty() {
            // Keeps the memory.
            *to_send = listed;
        }
        sends
    }

    /// Makes the state of a send, in reused memory.
    pub(super) fn in_flight(&self, bytes: SendBuffer) -> Box<InFlightSend> {
        let mut sending = self.state.spare_sends.borrow_mut().pop().unwrap_or_default();
        *sending = InFlightSend { bytes, sent: 0, outcome: None };
        sending
    }

    /// Sends what is left of the send in flight, with the next submission. `waiting`: the operation
    /// waits for room in the socket buffer. Returns its id.
    pub(super) fn submit_send(&self, state: &Rc<SocketState>, waiting: bool) -> Option<u64> {
        let send = state.send.borrow();
        let sending = send.in_flight.as_ref()?;
        let rest = &sending.bytes[sending.sent..];
        if let SendBuffer::Owned(bytes) = &sending.bytes
            && state.zero_copy.get()
            && rest.len() >= ZERO_COPY
        {
            return Some(self.submit_zero_copy(state, bytes.slice(sending.sent..)));
        }
        let make = if waiting { Operation::WaitingSend } else { Operation::Send };
        let id = self.operations.borrow_mut().insert(make(Rc::clone(state)));
        let fd = types::Fd(state.fd().as_raw_fd());
        let mut flags = libc::MSG_NOSIGNAL;
        let mut entry_flags = squeue::Flags::empty();
        if !waiting {
            // With MSG_DONTWAIT a send has completed when the enter returns, in any case. With
            // MSG_WAITALL it succeeds, and then posts no completion, only if everything was sent
            // (`io_uring/net.c`, `io_send`).
            flags |= libc::MSG_DONTWAIT | libc::MSG_WAITALL;
            entry_flags = squeue::Flags::SKIP_SUCCESS;
        }
        let whole = u32::try_from(rest.len()).unwrap_or(u32::MAX);
        let length = faults::part_of(whole);
        if length < whole {
            entry_flags = squeue::Flags::empty();
        }
        let entry = opcode::Send::new(fd, rest.as_ptr(), length).flags(flags).build();
        let entry = faults::or_fails(entry.flags(entry_flags).user_data(id), &[libc::EAGAIN, libc::EINTR]);
        // SAFETY: the bytes are those of `in_flight`, which is not changed until the operation has
        // completed, and the table's entry keeps them and the descriptor until then.
        unsafe { self.ring.borrow_mut().push(entry) };
        Some(id)
    }

    fn submit_zero_copy(&self, state: &Rc<SocketState>, bytes: bytes::Bytes) -> u64 {
        let fd = types::Fd(state.fd().as_raw_fd());
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let entry = opcode::SendZc::new(fd, bytes.as_ptr(), length);
        let entry = entry.flags(libc::MSG_NOSIGNAL | libc::MSG_WAITALL).zc_flags(REPORT_USAGE);
        let operation = Operation::ZeroCopy(Box::new((Rc::clone(state), bytes)));
        state.zero_copies.set(state.zero_copies.get() + 1);
        let id = self.operations.borrow_mut().insert(operation);
        // SAFETY: the table's entry keeps the bytes, which never move nor change, and the
        // descriptor, until the kernel's notification that it no longer uses them.
        unsafe { self.ring.borrow_mut().push(entry.build().user_data(id)) };
        id
    }

    /// A zero-copy send posts two completions: how much was sent, and, once the peer has
    /// acknowledged the last byte, a notification.
    pub(super) fn zero_copied(&self, state: &Rc<SocketState>, completion: &cqueue::Entry) {
        let (result, flags) = (completion.result(), completion.flags());
        if !cqueue::more(flags) {
            state.zero_copies.set(state.zero_copies.get() - 1);
            // One that waits until nothing uses the socket.
            let waker = state.send.borrow_mut().waker.take();
            if waker.is_some() {
                self.state.progress.set(true);
                self.state.wakers.borrow_mut().extend(waker);
            }
        }
        if cqueue::notif(flags) {
            if result & COPIED != 0 {
                state.zero_copy.set(false);
            }
            return;
        }
        // Sent with a copy instead: on Unix sockets, and where the kernel charges the pages of a
        // zero-copy send to a user without CAP_IPC_LOCK who has reached RLIMIT_MEMLOCK
        // (io_notif_account_mem).
        // Linux 6.0 doesn't know REPORT_USAGE (EINVAL).
        if [libc::EOPNOTSUPP, libc::ENOMEM, libc::ENOBUFS, libc::EINVAL].contains(&-result) {
            state.zero_copy.set(false);
            self.sent(state, 0);
            return;
        }
        self.sent(state, result);
    }

    /// Finishes the sends of the last enter. Those without a completion by now have succeeded.
    pub(super) fn finish_sends(&self) {
        let mut ids = self.state.submitted_sends.take();
        for id in ids.drain(..) {
            let Some(Operation::Send(state)) = self.operations.borrow_mut().remove(id) else { continue };
            let outcome = {
                let send = state.send.borrow();
                let Some(sending) = &send.in_flight else { continue };
                sending.outcome.unwrap_or_else(|| i32::try_from(sending.bytes.len()).unwrap_or(i32::MAX))
            };
            self.sent(&state, outcome);
        }
        let mut sending = self.state.submitted_sends.borrow_mut();
        if sending.is_empty() {
            *sending = ids;
        }
    }

    /// A send has completed: sends what is left, or wakes the writer.
    pub(super) fn sent(&self, state: &Rc<SocketState>, result: i32) {
        let mut send = state.send.borrow_mut();
        let Some(sending) = &mut send.in_flight else { return };
        sending.outcome = None;
        match result {
            0.. => {
                let bytes = usize::try_from(result).unwrap_or(0);
                sending.sent += bytes;
                self.count_sent(bytes);
            }
            _ if [libc::EAGAIN, libc::EINTR].contains(&-result) => {}
            _ => {
                let given_up = send.fail(io::Error::from_raw_os_error(-result));
                given_up.into_iter().for_each(|sending| self.recycle(sending));
            }
        }
        let left = send.in_flight.as_ref().is_some_and(|sending| sending.sent < sending.bytes.len());
        if left && !self.state.closing.get() {
            drop(send);
            if state.receive.borrow().dropped {
                state.limit_dropped();
            }
            self.state.progress.set(true);
            self.submit_send(state, true);
            return;
        }
        if let Some(done) = send.in_flight.take() {
            self.recycle(done);
        }
        if self.state.closing.get() && (left || send.failed.is_some() || !send.queued.is_empty()) {
            reset_on_close(state);
        }
        let list = !send.queued.is_empty() && !std::mem::replace(&mut send.listed, true);
        if send.take_shutdown() {
            // Fails if the peer has closed the connection already.
            let _ = rustix::net::shutdown(state.fd(), rustix::net::Shutdown::Write);
        }
        let waker = send.waker.take();
        drop(send);
        state.shutdown_if_dropped();
        if list {
            self.list_send(state);
        }
        if list || waker.is_some() {
            self.state.progress.set(true);
        }
        self.state.wakers.borrow_mut().extend(waker);
    }
}

/// Makes the close of a connection a reset, so that its peer doesn't take what it has received for
/// everything.
pub(super) fn reset_on_close(state: &SocketState) {
    // Has no effect on Unix sockets.
    let _ = rustix::net::sockopt::set_socket_linger(state.fd(), Some(Duration::ZERO));
}
