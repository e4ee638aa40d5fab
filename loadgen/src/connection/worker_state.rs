//! State that the connections of a worker share.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use crate::config::Protocol;
use crate::protocol::request_writer::RequestWriter;
use crate::stats::recorder::Recorder;
use crate::transport::connector::Connector;
use crate::workload::distribution::Distribution;

pub(crate) struct WorkerState {
    pub(crate) requests: RefCell<RequestWriter>,
    pub(crate) recorder: RefCell<Recorder>,
    pub(crate) depth: usize,
    /// Whether a response triggers the next request.
    pub(crate) closed_loop: bool,
    /// Whether requests are skipped if their connection is busy.
    pub(crate) skip: bool,
    /// Closed loop: think time in microseconds.
    pub(crate) think: Option<Distribution>,
    pub(crate) connector: Connector,
    pub(crate) protocol: Protocol,
    /// Whether requests are sent over UDP.
    pub(crate) datagrams: bool,
    /// Set when no new requests may be sent.
    pub(crate) stopping: Cell<bool>,
    pub(crate) end: Instant,
    pub(crate) interval: Duration,
}

impl WorkerState {
    /// The time to which a request is attributed that completes now. In the open loop that is when
    /// it was due, in the closed loop now. But a request of the closed loop that was in flight for
    /// more than an interval at the end of the measurement belongs to the measurement: a stall at
    /// the end would not show otherwise.
    pub(crate) fn attributed_time(&self, due: Instant, now: Instant) -> Instant {
        if !self.closed_loop {
            due
        } else if now >= self.end && due + self.interval < self.end {
            self.end - Duration::from_nanos(1)
        } else {
            now
        }
    }
}
