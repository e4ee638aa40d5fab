//! A connection's requests: waiting, formatted and in flight.

mod datagrams;
mod response_handler;
mod stream_session;

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::net::UdpSocket;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::task::AtomicWaker;

use crate::address::Address;
use crate::config::{Config, Protocol};
use crate::error::Error;
use crate::protocol::request_writer::{RequestWriter, WrittenRequest};
use crate::stats::Metric;
use crate::stats::recorder::Recorder;
use crate::transport::{BoxedTransport, Connector};
use crate::workload::mix::Operation;

/// A connection to which the worker's schedule assigns requests. It outlives the socket when it
/// reconnects.
pub(crate) struct Connection {
    pub(crate) worker: Rc<WorkerState>,
    pub(crate) server: Address,
    /// Formatted requests that have not been passed to the socket.
    pub(crate) out: RefCell<Vec<u8>>,
    pub(crate) in_flight: RefCell<VecDeque<InFlight>>,
    /// The number of requests, at the end of `in_flight`, that were formatted and not yet passed to
    /// the socket.
    pub(crate) unsent: Cell<usize>,
    pub(crate) waiting: RefCell<VecDeque<WaitingRequest>>,
    /// Closed loop: when the think time of each idle request slot ends.
    pub(crate) thinking: RefCell<BinaryHeap<Reverse<Instant>>>,
    /// Whether the transport buffers bytes that it has accepted.
    pub(crate) unflushed: Cell<bool>,
    /// Set to reconnect once nothing is in flight.
    pub(crate) reconnecting: Cell<bool>,
    /// It has no socket any more: the others go on without it.
    pub(crate) is_broken: Cell<bool>,
    waker: AtomicWaker,
}

impl Connection {
    pub(crate) fn new(worker: Rc<WorkerState>, server: Address) -> Rc<Self> {
        Rc::new(Self {
            worker,
            server,
            out: RefCell::default(),
            in_flight: RefCell::default(),
            unsent: Cell::new(0),
            waiting: RefCell::default(),
            thinking: RefCell::default(),
            unflushed: Cell::new(false),
            reconnecting: Cell::new(false),
            is_broken: Cell::new(false),
            waker: AtomicWaker::new(),
        })
    }

    /// Assigns a request of the open loop. `planned` is when the generator intended to send it,
    /// which is later than `due` if `moderate` delays it.
    pub(crate) fn assign(&self, due: Instant, planned: Instant, now: Instant) {
        if self.is_broken.get() {
            // All of the worker's are, or the request is this one's.
            self.worker.recorder.borrow_mut().counts(due).unanswered += 1;
            return;
        }
        let busy = self.is_busy();
        if self.worker.config.skip && busy {
            self.worker.recorder.borrow_mut().counts(due).skipped += 1;
            return;
        }
        // Waiting for a busy connection counts as the server's time, not as send lag.
        let send_lag = now.saturating_duration_since(planned);
        let sendable_since = (!busy).then_some(now);
        self.waiting.borrow_mut().push_back(WaitingRequest { due, send_lag, sendable_since });
        if self.worker.config.protocol != Protocol::Udp {
            self.issue(now);
        }
        self.wake();
    }

    /// Whether a request that is assigned now would wait.
    pub(crate) fn is_busy(&self) -> bool {
        let before = self.in_flight.borrow().len() + self.waiting.borrow().len();
        before >= self.worker.depth() || self.reconnecting.get()
    }

    /// Whether a request waits that this connection may send.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.borrow().is_empty() || !self.worker.for_any.borrow().is_empty()
    }

    /// Requests a reconnect once nothing is in flight.
    pub(crate) fn reconnect(&self) {
        self.reconnecting.set(true);
        self.wake();
    }

    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// Registers the task for [`wake`](Self::wake).
    pub(crate) fn register_waker(&self, context: &Context<'_>) {
        self.waker.register(context.waker());
    }

    /// Counts all requests that are due and have no response as unanswered.
    pub(crate) fn count_all_unanswered(&self, now: Instant) {
        let in_flight = self.in_flight.borrow();
        let waiting = self.waiting.borrow();
        in_flight.iter().for_each(|request| self.count_unanswered(request, now));
        waiting.iter().for_each(|waiting| self.record_unanswered(Metric::Read, waiting.due, now));
    }

    /// Runs a connection until the worker stops. If it breaks, its requests are unanswered.
    pub(crate) async fn run_or_break(&self, socket: Socket) -> Result<(), Error> {
        let run = match socket {
            Socket::Stream(stream) => self.run(stream).await,
            Socket::Datagram(socket) => self.run_datagrams(socket).await,
        };
        let source = match run {
            Err(Error::Connection(source) | Error::Connect { source, .. }) => source,
            result => return result,
        };
        let now = Instant::now();
        self.is_broken.set(true);
        self.count_all_unanswered(now);
        self.in_flight.borrow_mut().clear();
        self.waiting.borrow_mut().clear();
        self.worker.recorder.borrow_mut().counts(now).broken += 1;
        if !self.worker.alive.lose(&self.server, &source) {
            return Err(Error::AllBroken { server: self.server.clone(), source });
        }
        poll_fn(|context| {
            self.register_waker(context);
            if self.worker.stopping.get() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        Ok(())
    }

    pub(crate) fn count_unanswered(&self, in_flight: &InFlight, now: Instant) {
        self.record_unanswered(class_of(in_flight.request.operation), in_flight.due, now);
    }

    fn record_unanswered(&self, class: Metric, due: Instant, now: Instant) {
        let time = self.worker.attributed_time(due, now);
        let mut recorder = self.worker.recorder.borrow_mut();
        recorder.counts(time).unanswered += 1;
        // A lower bound of its latency. Without it a stalled server would look fast.
        recorder.record(time, class, now.saturating_duration_since(due));
    }

    /// When the next think time ends.
    pub(crate) fn think_deadline(&self) -> Option<Instant> {
        self.thinking.borrow().peek().map(|Reverse(until)| *until)
    }

    /// Formats the next request that may be sent now, if any.
    pub(crate) fn next_request(&self, now: Instant) -> Option<InFlight> {
        let worker = &self.worker;
        // Also before a reconnect: expired think times would keep the timer firing.
        let mut thinking = self.thinking.borrow_mut();
        while thinking.peek().is_some_and(|Reverse(until)| *until <= now) {
            thinking.pop();
        }
        if self.reconnecting.get() {
            return None;
        }
        let WaitingRequest { due, send_lag, sendable_since } = if worker.is_closed_loop() {
            // Nothing is sent after the end, however late the worker says that it stops.
            let has_ended = now >= worker.end || worker.stopping.get();
            if has_ended || self.in_flight.borrow().len() + thinking.len() >= worker.depth() {
                return None;
            }
            WaitingRequest { due: now, send_lag: Duration::ZERO, sendable_since: None }
        } else {
            if self.in_flight.borrow().len() >= worker.depth() {
                return None;
            }
            let own = self.waiting.borrow_mut().pop_front();
            own.or_else(|| worker.for_any.borrow_mut().pop_front())?
        };
        drop(thinking);
        let send_lag =
            send_lag + sendable_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let request = worker.requests.borrow_mut().next(&mut self.out.borrow_mut());
        Some(InFlight { request, due, sent: now, send_lag, cas: 0, id: 0 })
    }

    /// Formats as many requests as may be in flight.
    pub(crate) fn issue(&self, now: Instant) {
        while let Some(request) = self.next_request(now) {
            let mut in_flight = self.in_flight.borrow_mut();
            in_flight.push_back(request);
            self.unsent.set(self.unsent.get() + 1);
            self.worker.recorder.borrow_mut().record_queue(now, in_flight.len());
        }
    }

    /// Notes that a request is passed to the socket now.
    pub(crate) fn mark_sent(&self, in_flight: &mut InFlight, now: Instant) {
        let follows_get = in_flight.request.keys == 0;
        if in_flight.request.operation == Operation::Cas && follows_get {
            // Its latency began with the `gets`.
            return;
        }
        if self.worker.is_closed_loop() || follows_get {
            in_flight.due = now;
        } else {
            // The time since it was formatted is the generator's, too.
            let send_lag = in_flight.send_lag + now.saturating_duration_since(in_flight.sent);
            self.worker.recorder.borrow_mut().record(in_flight.due, Metric::SendLag, send_lag);
        }
        in_flight.sent = now;
    }
}

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
    pub(crate) id: u16,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitingRequest {
    pub(crate) due: Instant,
    /// How late the generator was when it assigned the request to a connection.
    pub(crate) send_lag: Duration,
    /// If the connection was free then, the time: further delay is the generator's, too.
    pub(crate) sendable_since: Option<Instant>,
}

/// The class under which an operation's latency is recorded.
pub(crate) fn class_of(operation: Operation) -> Metric {
    match operation {
        Operation::Get | Operation::MetaGet => Metric::Read,
        Operation::Delete | Operation::Touch | Operation::Incr | Operation::Decr => Metric::Other,
        _ => Metric::Update,
    }
}

pub(crate) enum Socket {
    Stream(BoxedTransport),
    Datagram(UdpSocket),
}

/// The connections of all workers that are not broken.
#[derive(Debug, Default)]
pub(crate) struct Alive {
    count: AtomicUsize,
    first_broken: OnceLock<String>,
}

impl Alive {
    pub(crate) fn add(&self, connections: usize) {
        self.count.fetch_add(connections, Ordering::Relaxed);
    }

    /// Returns whether others are left.
    fn lose(&self, server: &Address, error: &io::Error) -> bool {
        let _ = self.first_broken.set(format!("{server}: {error}"));
        self.count.fetch_sub(1, Ordering::Relaxed) > 1
    }

    /// Which connection broke first, and why.
    pub(crate) fn first_broken(&self) -> Option<String> {
        self.first_broken.get().cloned()
    }
}

pub(crate) struct WorkerState {
    pub(crate) config: Config,
    pub(crate) alive: Arc<Alive>,
    pub(crate) requests: RefCell<RequestWriter>,
    pub(crate) recorder: RefCell<Recorder>,
    pub(crate) connector: Connector,
    /// What the connection takes that is free first (`Assign::RandomFree`).
    pub(crate) for_any: RefCell<VecDeque<WaitingRequest>>,
    /// Set when no new requests may be sent.
    pub(crate) stopping: Cell<bool>,
    pub(crate) end: Instant,
    pub(crate) interval: Duration,
}

impl WorkerState {
    /// Whether a response triggers the next request.
    pub(crate) fn is_closed_loop(&self) -> bool {
        self.config.pacing.is_closed()
    }

    /// Requests in flight on a connection.
    fn depth(&self) -> usize {
        self.config.depth.max(1)
    }

    /// The time to which a request is attributed that completes now. In the open loop that is when
    /// it was due, in the closed loop now. But a request of the closed loop that was in flight for
    /// more than an interval at the end of the measurement belongs to the measurement: a stall at
    /// the end would not show otherwise.
    pub(crate) fn attributed_time(&self, due: Instant, now: Instant) -> Instant {
        if !self.is_closed_loop() {
            due
        } else if now >= self.end && due + self.interval < self.end {
            self.end - Duration::from_nanos(1)
        } else {
            now
        }
    }
}
