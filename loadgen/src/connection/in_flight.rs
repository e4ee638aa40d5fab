//! Requests between the schedule and their responses.

use std::time::{Duration, Instant};

use crate::protocol::request_writer::WrittenRequest;
use crate::stats::metrics::RequestClass;
use crate::workload::operation::Operation;

/// A request that awaits its response.
pub(crate) struct InFlight {
    pub(crate) request: WrittenRequest,
    /// When it was due. In the closed loop, when it was sent.
    pub(crate) due: Instant,
    /// When it was passed to the socket; before that, when it was formatted.
    pub(crate) sent: Instant,
    /// Open loop: how late the generator was when it formatted the request.
    pub(crate) send_lag: Duration,
    /// The CAS number of the record, once received.
    pub(crate) cas: u64,
    /// UDP request ID.
    pub(crate) id: u16,
    /// Position in the stream, modulo 2^32, of the last byte of the write that contains the request.
    pub(crate) last_byte: u32,
}

/// A request of the open loop that waits for its connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitingRequest {
    pub(crate) due: Instant,
    /// How late the generator was when it assigned the request to a connection.
    pub(crate) send_lag: Duration,
    /// If the connection was free then, the time: further delay is the generator's, too.
    pub(crate) sendable_since: Option<Instant>,
}

/// The class under which an operation's latency is recorded.
pub(crate) fn class_of(operation: Operation) -> RequestClass {
    match operation {
        Operation::Get | Operation::MetaGet => RequestClass::Read,
        Operation::Delete | Operation::Touch | Operation::Incr | Operation::Decr => RequestClass::Other,
        _ => RequestClass::Update,
    }
}
