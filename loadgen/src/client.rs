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
use crate::answers::{Answer, Sink};
use crate::decoder::Decoder;
use crate::distribution::Distribution;
use crate::error::Error;
use crate::requests::{Asked, Requests};
use crate::tally::{Class, Measure, Tally};
use crate::transport::{Connector, Stamp, Wire};
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
    pub(crate) fn is_exhausted(&self, now: Instant) {
        self.exhausted.set(self.exhausted.get().or(Some(now)));
    }

    /// When a request counts that ends now: in an open loop when it was due. In a closed one now; but one that
    /// was out for longer than a piece when the time was over belongs to it, or a stall at the end would not
    /// show.
    fn counts_at(&self, due: Instant, now: Instant) -> Instant {
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
    due: Instant,
    /// When it was written, before that when it was made.
    pub(crate) sent: Instant,
    /// Of an open loop: how late the generator was before it was made.
    slip: Duration,
    /// The CAS number of its record, once that is known.
    unique: u64,
    /// Its number in a datagram.
    pub(crate) id: u16,
    /// The place of the last byte that was written together with it.
    end: u32,
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

fn class(operation: Operation) -> Class {
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
        let busy = before >= self.shared.depth;
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
            shared.is_exhausted(now);
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

/// A read: when it was, and when the kernel had the last of what it brought.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Read {
    pub(crate) now: Instant,
    pub(crate) stamp: Option<Stamp>,
}

/// Takes answers, each for the oldest request under way.
struct Taker<'a> {
    tally: &'a mut Tally,
    in_flight: &'a mut VecDeque<InFlight>,
    unwritten: &'a Cell<usize>,
    went: &'a mut VecDeque<(u32, Duration)>,
    thinking: &'a mut BinaryHeap<Reverse<Instant>>,
    out: &'a mut Vec<u8>,
    requests: &'a mut Requests,
    expected: Option<&'a mut Expected>,
    shared: &'a Shared,
    read: Read,
}

fn out_of_step(answer: Answer, asked: Asked) -> Error {
    Error::Protocol(format!(
        "{answer:?} came for {:?}: answers and requests are out of step",
        asked.operation
    ))
}

impl Taker<'_> {
    /// Counts what was wrong with the value that has just ended.
    fn check(&mut self) {
        let wrong = self.expected.as_mut().is_some_and(|expected| {
            let wrong = expected.is_wrong();
            expected.begin(b"", 0);
            wrong
        });
        if wrong {
            self.tally.counts(self.read.now).wrong += 1;
        }
    }

    /// Stores a record in place of the request that was at the front, but at the end of the line, where its
    /// answer will come.
    fn store(&mut self, mut request: InFlight, unique: u64) {
        if unique == 0 {
            self.requests.set(request.asked.record, self.out);
        } else {
            self.requests.cas(request.asked.record, unique, self.out);
        }
        // Stored now, as a `set` is: no third request follows.
        request.asked.keys = 0;
        self.in_flight.push_back(request);
        self.unwritten.set(self.unwritten.get() + 1);
    }

    /// Stores what was asked for and not there; a request of its own.
    fn fill(&mut self, asked: Asked) {
        let (now, moment) = (self.read.now, self.shared.counts_at(self.read.now, self.read.now));
        self.tally.counts(moment).fills += 1;
        let asked = Asked { operation: Operation::Set, ..asked };
        self.store(
            InFlight { asked, due: now, sent: now, slip: Duration::ZERO, unique: 0, id: 0, end: 0 },
            0,
        );
    }

    /// One may go out in this place, at once or after some thought.
    fn rest(&mut self) {
        if let Some(think) = self.shared.think.filter(|_| self.shared.closed) {
            let micros = think.draw(self.requests.random()).clamp(0.0, THINK_MAX);
            self.thinking.push(Reverse(self.read.now + Duration::from_secs_f64(micros / 1e6)));
        }
    }
}

/// Whether a place in the stream is before another, which may be beyond where counting begins anew.
fn is_before(place: u32, other: u32) -> bool {
    place.wrapping_sub(other) > u32::MAX / 2
}

/// Nobody thinks for longer than a day, µs.
const THINK_MAX: f64 = 86_400e6;

impl Sink for Taker<'_> {
    fn value(&mut self, key: &[u8], length: usize, unique: u64) {
        self.check();
        if let Some(expected) = &mut self.expected {
            expected.begin(key, length);
            let asked = self.in_flight.front().map(|request| request.asked);
            if let Some(Asked { record, keys: 1, .. }) = asked
                && !self.requests.is_key_of(record, key)
            {
                self.tally.counts(self.read.now).wrong += 1;
            }
        }
        if let Some(request) = self.in_flight.front_mut() {
            request.unique = unique;
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        if let Some(expected) = &mut self.expected {
            expected.compare(bytes);
        }
    }

    fn answer(&mut self, answer: Answer) -> Result<(), Error> {
        self.check();
        let Some(request) = self.in_flight.pop_front() else {
            return Err(Error::Protocol("an answer came that nothing was asked for".to_owned()));
        };
        let asked = request.asked;
        let moment = self.shared.counts_at(request.due, self.read.now);
        let operation = asked.operation;
        let counts = self.tally.counts(moment);
        let mut missing = false;
        match (operation, answer) {
            (_, Answer::Refused) => counts.errors += 1,
            (Operation::Get | Operation::MetaGet, Answer::Values(hits)) => {
                counts.hits += u64::from(hits);
                counts.misses += u64::from(asked.keys).saturating_sub(hits.into());
                // More than was asked for: somebody else's.
                counts.wrong += u64::from(hits).saturating_sub(asked.keys.into());
                missing = hits == 0;
            }
            (Operation::Cas, Answer::Values(hits)) if asked.keys > 0 => {
                counts.hits += u64::from(hits);
                counts.misses += u64::from(hits == 0);
                let unique = request.unique;
                self.store(request, unique);
                return Ok(());
            }
            (Operation::Cas, Answer::Exists) if asked.keys == 0 => counts.conflicts += 1,
            (Operation::Cas, Answer::Done) if asked.keys == 0 => {}
            (Operation::Cas, Answer::NotFound) if asked.keys == 0 => counts.misses += 1,
            (Operation::Delete | Operation::Touch | Operation::Incr | Operation::Decr, Answer::NotFound) => {
                counts.misses += 1
            }
            (Operation::Delete | Operation::Touch | Operation::Incr | Operation::Decr, Answer::Done) => {
                counts.hits += 1;
            }
            // By either protocol: there is one already, or there is none.
            (
                Operation::Add | Operation::Replace | Operation::Append | Operation::Prepend,
                Answer::NotStored | Answer::Exists | Answer::NotFound,
            ) => counts.misses += 1,
            (Operation::Set | Operation::MetaSet, Answer::NotStored) => counts.errors += 1,
            (operation, Answer::Done) if operation.stores() => {}
            _ => return Err(out_of_step(answer, asked)),
        }
        let now = self.read.now;
        self.tally.record(
            moment,
            Measure::Latency(class(operation)),
            now.saturating_duration_since(request.due),
        );
        let service = now.saturating_duration_since(request.sent);
        if !self.shared.closed {
            self.tally.record(moment, Measure::Service, service);
        }
        // Those of requests before it are of no use any more.
        while self.went.front().is_some_and(|(place, _)| is_before(*place, request.end)) {
            self.went.pop_front();
        }
        // A cas is two requests, and what is between them is nobody's.
        if let (Some(Stamp { at, age }), true) = (self.read.stamp, operation != Operation::Cas) {
            let wire = self.went.front().map(|(_, went)| at.saturating_sub(*went));
            let wire = wire.unwrap_or(service.saturating_sub(age));
            self.tally.record(moment, Measure::Wire, wire);
            self.tally.record(moment, Measure::Own, service.saturating_sub(wire));
        }
        if missing && self.requests.fills() {
            self.fill(asked);
        } else {
            self.requests.done(asked);
        }
        // A record that is filled in is no turn of its own.
        if asked.keys > 0 || operation == Operation::Cas {
            self.rest();
        }
        Ok(())
    }
}
