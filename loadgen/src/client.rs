//! One connection: requests out, answers in, latencies noted.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures_util::{AsyncBufRead, AsyncWrite};

use crate::address::Address;
use crate::decoder::Decoder;
use crate::distribution::Distribution;
use crate::error::Error;
use crate::measures::{Class, Measure};
use crate::requests::{Asked, Requests};
use crate::taker::{Read, Taker};
use crate::tally::Tally;
use crate::transport::{Connector, Wire};
use crate::value::Expected;
use crate::workload::Operation;

/// What the connections of one worker share.
pub(crate) struct Shared {
    pub(crate) requests: RefCell<Requests>,
    pub(crate) tally: RefCell<Tally>,
    /// Requests a connection may have under way.
    pub(crate) depth: usize,
    /// Whether an answer lets the next request go at once.
    pub(crate) closed: bool,
    /// Whether a request that is late because its connection is busy is left out.
    pub(crate) skip: bool,
    /// In a closed loop: microseconds from an answer to the next request.
    pub(crate) think: Option<Distribution>,
    /// Makes a connection anew.
    pub(crate) connector: Connector,
    pub(crate) binary: bool,
    /// Whether each request is a datagram, which its task makes of it.
    pub(crate) datagrams: bool,
    /// No new requests any more.
    pub(crate) stopping: Cell<bool>,
    /// Since when there is nothing more to ask: a recording is over.
    pub(crate) exhausted: Cell<Option<Instant>>,
    /// When the time that is measured is over, and how long a piece of it is.
    pub(crate) end: Instant,
    pub(crate) piece: Duration,
}

impl Shared {
    /// Notes that there is nothing more to ask.
    pub(crate) fn exhaust(&self, now: Instant) {
        self.exhausted.set(self.exhausted.get().or(Some(now)));
    }

    /// When a request counts that ends now: in an open loop when it was due. In a closed one now; but one that
    /// was out for longer than a piece when the time was over belongs to it, or a stall at the end would not
    /// show.
    pub(crate) fn counts_at(&self, due: Instant, now: Instant) -> Instant {
        if !self.closed {
            due
        } else if now >= self.end && due + self.piece < self.end {
            self.end - Duration::from_nanos(1)
        } else {
            now
        }
    }
}

pub(crate) struct InFlight {
    pub(crate) asked: Asked,
    /// When it should have gone out; in a closed loop, when it did.
    pub(crate) due: Instant,
    /// When it was written, before that when it was made.
    pub(crate) sent: Instant,
    /// Of an open loop: how late the generator was before it was made.
    pub(crate) slip: Duration,
    /// The CAS number of its record, once that is known.
    pub(crate) unique: u64,
    /// Its number in a datagram.
    pub(crate) id: u16,
    /// The place of the last byte that was written together with it.
    pub(crate) end: u32,
}

/// A connection that the worker's scheduler can hand requests to.
pub(crate) struct Connection {
    pub(crate) shared: Rc<Shared>,
    server: Address,
    pub(crate) out: RefCell<Vec<u8>>,
    pub(crate) in_flight: RefCell<VecDeque<InFlight>>,
    /// Requests that were made and not yet written: the last ones under way.
    unwritten: Cell<usize>,
    /// Bytes that were written on this connection. Places in the stream are counted by 32 bits, as the kernel
    /// does.
    bytes: Cell<u32>,
    /// When the kernel sent the byte at a place.
    went: RefCell<VecDeque<(u32, Duration)>>,
    /// Due requests of an open loop that wait for their turn.
    pub(crate) waiting: RefCell<VecDeque<Waiting>>,
    /// Of a closed loop: until when each request waits that could be under way.
    thinking: RefCell<BinaryHeap<Reverse<Instant>>>,
    /// Whether the transport still holds some of what was written.
    unflushed: Cell<bool>,
    /// To be closed and made anew, once nothing is under way.
    renewing: Cell<bool>,
    pub(crate) waker: RefCell<Option<Waker>>,
}

/// A request of an open loop that waits for its turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiting {
    due: Instant,
    /// How late the generator was with it.
    slip: Duration,
    /// Since when the generator could have sent it, where the connection was free.
    free: Option<Instant>,
}

/// Why a connection has nothing more to do.
enum Ended {
    Done,
    ToBeRenewed,
}

/// So many times a connection is read in one turn.
const CHUNKS: u32 = 4;

/// What an operation's latency is kept with.
pub(crate) fn class(operation: Operation) -> Class {
    match operation {
        Operation::Get | Operation::MetaGet => Class::Read,
        Operation::Delete | Operation::Touch | Operation::Incr | Operation::Decr => Class::Other,
        _ => Class::Update,
    }
}

impl Connection {
    pub(crate) fn new(shared: Rc<Shared>, server: Address) -> Rc<Self> {
        Rc::new(Self {
            shared,
            server,
            out: RefCell::default(),
            in_flight: RefCell::default(),
            unwritten: Cell::new(0),
            bytes: Cell::new(0),
            went: RefCell::default(),
            waiting: RefCell::default(),
            thinking: RefCell::default(),
            unflushed: Cell::new(false),
            renewing: Cell::new(false),
            waker: RefCell::default(),
        })
    }

    /// Gives the connection a request of an open loop that was due at `due`, and that the generator was to
    /// send at `planned`, which is later where it has put it off on purpose.
    pub(crate) fn hand(&self, due: Instant, planned: Instant, now: Instant) {
        let before = self.in_flight.borrow().len() + self.waiting.borrow().len();
        let busy = before >= self.shared.depth || self.renewing.get();
        if self.shared.skip && busy {
            self.shared.tally.borrow_mut().counts(due).skipped += 1;
            return;
        }
        // The generator's own lateness; what the connection makes it wait is the server's.
        let slip = now.saturating_duration_since(planned);
        self.waiting.borrow_mut().push_back(Waiting { due, slip, free: (!busy).then_some(now) });
        if !self.shared.datagrams {
            self.issue(now);
        }
        self.wake();
    }

    /// Has the connection closed and made anew.
    pub(crate) fn renew(&self) {
        self.renewing.set(true);
        self.wake();
    }

    pub(crate) fn wake(&self) {
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }

    /// Counts requests that have been due and are not answered.
    pub(crate) fn leave_unanswered(&self, now: Instant) {
        let in_flight = self.in_flight.borrow();
        let waiting = self.waiting.borrow();
        in_flight.iter().for_each(|request| self.give_up(request, now));
        waiting.iter().for_each(|waiting| self.count_unanswered(Class::Read, waiting.due, now));
    }

    /// Counts a request as unanswered.
    pub(crate) fn give_up(&self, request: &InFlight, now: Instant) {
        self.count_unanswered(class(request.asked.operation), request.due, now);
    }

    fn count_unanswered(&self, class: Class, due: Instant, now: Instant) {
        let moment = self.shared.counts_at(due, now);
        let mut tally = self.shared.tally.borrow_mut();
        tally.counts(moment).unanswered += 1;
        // At least so long; leaving it out would make a stalled server look good.
        tally.record(moment, Measure::Latency(class), now.saturating_duration_since(due));
    }

    /// Until when the next request waits that has been thought over.
    pub(crate) fn thought(&self) -> Option<Instant> {
        self.thinking.borrow().peek().map(|Reverse(until)| *until)
    }

    /// Has the task looked again when it is told to.
    pub(crate) fn wait(&self, context: &Context<'_>) {
        let mut slot = self.waker.borrow_mut();
        if slot.as_ref().is_none_or(|waker| !waker.will_wake(context.waker())) {
            *slot = Some(context.waker().clone());
        }
    }

    /// Takes the next request that may go out now; `None` where there is none.
    pub(crate) fn next(&self, now: Instant) -> Option<InFlight> {
        let shared = &self.shared;
        // Also of a connection that is to be renewed: who waits for these would wait for ever.
        let mut thinking = self.thinking.borrow_mut();
        while thinking.peek().is_some_and(|Reverse(until)| *until <= now) {
            thinking.pop();
        }
        if self.renewing.get() {
            return None;
        }
        let Waiting { due, slip, free } = if shared.closed {
            if shared.stopping.get() || self.in_flight.borrow().len() + thinking.len() >= shared.depth {
                return None;
            }
            Waiting { due: now, slip: Duration::ZERO, free: None }
        } else {
            if self.in_flight.borrow().len() >= shared.depth {
                return None;
            }
            self.waiting.borrow_mut().pop_front()?
        };
        drop(thinking);
        let slip = slip + free.map_or(Duration::ZERO, |free| now.saturating_duration_since(free));
        let Some(asked) = shared.requests.borrow_mut().next(&mut self.out.borrow_mut()) else {
            // A trace is over.
            shared.stopping.set(true);
            shared.exhaust(now);
            self.waiting.borrow_mut().clear();
            return None;
        };
        Some(InFlight { asked, due, sent: now, slip, unique: 0, id: 0, end: 0 })
    }

    /// Writes as many requests as may be under way.
    fn issue(&self, now: Instant) {
        while let Some(request) = self.next(now) {
            let mut in_flight = self.in_flight.borrow_mut();
            in_flight.push_back(request);
            self.unwritten.set(self.unwritten.get() + 1);
            self.shared.tally.borrow_mut().record_queue(now, in_flight.len());
        }
    }

    /// Notes that a request is written now.
    pub(crate) fn written(&self, request: &mut InFlight, now: Instant) {
        if request.asked.operation == Operation::Cas && request.asked.keys == 0 {
            // Its first half was.
            return;
        }
        if self.shared.closed || request.asked.keys == 0 {
            request.due = now;
        } else {
            // From when it was made on it is the generator that is late, too.
            let slip = request.slip + now.saturating_duration_since(request.sent);
            self.shared.tally.borrow_mut().record(request.due, Measure::Slip, slip);
        }
        request.sent = now;
    }

    /// Runs the connection until it is told to stop and, in an open loop, all is answered.
    pub(crate) async fn run(&self, mut wire: Wire) -> Result<(), Error> {
        loop {
            match self.session(wire).await? {
                Ended::Done => return Ok(()),
                Ended::ToBeRenewed => {
                    let begun = Instant::now();
                    wire = self.shared.connector.connect(&self.server).await?;
                    let took = begun.elapsed();
                    self.shared.tally.borrow_mut().record(begun, Measure::Connect, took);
                    self.renewing.set(false);
                    self.bytes.set(0);
                    self.went.borrow_mut().clear();
                }
            }
        }
    }

    /// As long as one connection lives.
    async fn session(&self, mut wire: Wire) -> Result<Ended, Error> {
        let mut decoder = Decoder::new(self.shared.binary);
        let mut expected = Expected::default();
        // When a request has waited for long enough.
        let mut thought = pin!(None::<runtime::Sleep>);
        self.issue(Instant::now());
        poll_fn(|context| {
            loop {
                if let Poll::Ready(ended) = self.poll(context, &mut wire, &mut decoder, &mut expected) {
                    return Poll::Ready(ended);
                }
                let Some(until) = self.thought() else { break };
                if thought.as_ref().as_pin_ref().is_none_or(|sleep| sleep.deadline() != until) {
                    thought.set(Some(runtime::sleep_until(until)));
                }
                let Some(sleep) = thought.as_mut().as_pin_mut() else { break };
                if sleep.poll(context).is_pending() {
                    break;
                }
                thought.set(None);
                self.issue(Instant::now());
            }
            Poll::Pending
        })
        .await
    }

    fn poll(
        &self,
        context: &mut Context<'_>,
        stream: &mut Wire,
        decoder: &mut Decoder,
        expected: &mut Expected,
    ) -> Poll<Result<Ended, Error>> {
        for chunks in 0.. {
            if chunks == CHUNKS {
                // There is more, but others wait for their turn: the schedule, and other connections.
                context.waker().wake_by_ref();
                break;
            }
            let readable = stream.poll_chunk(context, &mut self.went.borrow_mut());
            let Poll::Ready((chunk, stamp)) = readable.map_err(Error::Connection)? else { break };
            if chunk.is_empty() {
                return Poll::Ready(Err(Error::Connection(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the server closed the connection",
                ))));
            }
            let length = chunk.len();
            let read = Read { now: Instant::now(), stamp };
            let now = read.now;
            self.take_answers(chunk, decoder, expected, read)?;
            Pin::new(&mut *stream).consume(length);
            self.issue(now);
            // What was asked in return goes out before more is read.
            self.poll_send(context, stream)?;
        }
        self.poll_send(context, stream)?;
        if self.in_flight.borrow().is_empty() {
            if self.shared.stopping.get() && self.waiting.borrow().is_empty() {
                return Poll::Ready(Ok(Ended::Done));
            }
            // A server may have answered before all of a request was sent.
            if self.renewing.get() && self.out.borrow().is_empty() && !self.unflushed.get() {
                return Poll::Ready(Ok(Ended::ToBeRenewed));
            }
        }
        self.wait(context);
        Poll::Pending
    }

    fn poll_send(&self, context: &mut Context<'_>, stream: &mut Wire) -> Result<(), Error> {
        let mut out = self.out.borrow_mut();
        if out.is_empty() && !self.unflushed.get() {
            return Ok(());
        }
        // As close to the socket as can be: what comes after this is the kernel's.
        let now = Instant::now();
        let unwritten = self.unwritten.replace(0);
        let end = self.bytes.get().wrapping_add(out.len() as u32).wrapping_sub(1);
        for request in self.in_flight.borrow_mut().iter_mut().rev().take(unwritten) {
            request.end = end;
            self.written(request, now);
        }
        let mut sent = 0;
        while sent < out.len() {
            match Pin::new(&mut *stream).poll_write(context, &out[sent..]) {
                Poll::Ready(result) => sent += result.map_err(Error::Connection)?,
                Poll::Pending => break,
            }
        }
        out.drain(..sent);
        self.bytes.set(self.bytes.get().wrapping_add(sent as u32));
        if sent > 0 || self.unflushed.get() {
            // TLS keeps what the socket does not take.
            let flushed = Pin::new(&mut *stream).poll_flush(context).map_err(Error::Connection)?;
            self.unflushed.set(flushed.is_pending());
        }
        if sent > 0 {
            self.shared.tally.borrow_mut().counts(now).sent += sent as u64;
        }
        Ok(())
    }

    pub(crate) fn take_answers(
        &self,
        chunk: &[u8],
        decoder: &mut Decoder,
        expected: &mut Expected,
        read: Read,
    ) -> Result<(), Error> {
        let shared = &self.shared;
        let mut tally = shared.tally.borrow_mut();
        tally.counts(read.now).received += chunk.len() as u64;
        let mut requests = shared.requests.borrow_mut();
        let mut taker = Taker {
            tally: &mut tally,
            in_flight: &mut self.in_flight.borrow_mut(),
            unwritten: &self.unwritten,
            went: &mut self.went.borrow_mut(),
            thinking: &mut self.thinking.borrow_mut(),
            out: &mut self.out.borrow_mut(),
            expected: requests.verifies().then_some(expected),
            requests: &mut requests,
            shared,
            read,
        };
        decoder.feed(chunk, &mut taker)
    }
}
