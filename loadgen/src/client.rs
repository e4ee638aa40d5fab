//! One connection: requests out, answers in, latencies noted.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures_util::{AsyncBufRead, AsyncWrite};

use crate::answers::{Answer, Answers, Sink};
use crate::requests::{Asked, Requests};
use crate::run::Error;
use crate::tally::{Class, Measure, Tally};
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
    /// No new requests any more.
    pub(crate) stopping: Cell<bool>,
    /// When the time that is measured is over, and how long a piece of it is.
    pub(crate) end: Instant,
    pub(crate) piece: Duration,
}

impl Shared {
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

struct InFlight {
    asked: Asked,
    /// When it should have gone out; in a closed loop, when it did.
    due: Instant,
    sent: Instant,
    /// The CAS number of its record, once that is known.
    unique: u64,
}

/// A connection that the worker's scheduler can hand requests to.
pub(crate) struct Connection {
    shared: Rc<Shared>,
    out: RefCell<Vec<u8>>,
    in_flight: RefCell<VecDeque<InFlight>>,
    /// Due requests of an open loop that wait for their turn.
    waiting: RefCell<VecDeque<Instant>>,
    waker: RefCell<Option<Waker>>,
}

/// So many times a connection is read in one turn.
const CHUNKS: u32 = 4;

fn class(operation: Operation) -> Class {
    match operation {
        Operation::Get | Operation::MetaGet => Class::Read,
        Operation::Set | Operation::MetaSet | Operation::Cas => Class::Update,
        Operation::Delete | Operation::Touch | Operation::Incr => Class::Other,
    }
}

impl Connection {
    pub(crate) fn new(shared: Rc<Shared>) -> Rc<Self> {
        Rc::new(Self {
            shared,
            out: RefCell::default(),
            in_flight: RefCell::default(),
            waiting: RefCell::default(),
            waker: RefCell::default(),
        })
    }

    /// Gives the connection a request of an open loop that was due at `due`, and that the generator was to
    /// send at `planned`, which is later where it has put it off on purpose.
    pub(crate) fn hand(&self, due: Instant, planned: Instant, now: Instant) {
        {
            let mut tally = self.shared.tally.borrow_mut();
            // The generator's own lateness; what the connection makes it wait is the server's.
            tally.record(due, Measure::Slip, now.saturating_duration_since(planned));
            let busy = self.in_flight.borrow().len() >= self.shared.depth;
            if self.shared.skip && busy {
                tally.counts(due).skipped += 1;
                return;
            }
        }
        self.waiting.borrow_mut().push_back(due);
        self.issue(now);
        self.wake();
    }

    pub(crate) fn wake(&self) {
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }

    /// Counts requests that have been due and are not answered.
    pub(crate) fn leave_unanswered(&self, now: Instant) {
        let shared = &self.shared;
        let mut tally = shared.tally.borrow_mut();
        let in_flight = self.in_flight.borrow();
        let waiting = self.waiting.borrow();
        let left = in_flight.iter().map(|request| (class(request.asked.operation), request.due));
        for (class, due) in left.chain(waiting.iter().map(|due| (Class::Read, *due))) {
            let moment = shared.counts_at(due, now);
            tally.counts(moment).unanswered += 1;
            // At least so long; leaving it out would make a stalled server look good.
            tally.record(moment, Measure::Latency(class), now.saturating_duration_since(due));
        }
    }

    /// Writes as many requests as may be under way.
    fn issue(&self, now: Instant) {
        let shared = &self.shared;
        let mut in_flight = self.in_flight.borrow_mut();
        while in_flight.len() < shared.depth {
            let due = if shared.closed {
                if shared.stopping.get() {
                    return;
                }
                now
            } else {
                let Some(due) = self.waiting.borrow_mut().pop_front() else { return };
                due
            };
            let asked = shared.requests.borrow_mut().next(&mut self.out.borrow_mut());
            in_flight.push_back(InFlight { asked, due, sent: now, unique: 0 });
            shared.tally.borrow_mut().record_queue(now, in_flight.len());
        }
    }

    /// Runs the connection until it is told to stop and, in an open loop, all is answered.
    pub(crate) async fn run(&self, mut stream: impl AsyncBufRead + AsyncWrite + Unpin) -> Result<(), Error> {
        let mut answers = Answers::default();
        let mut expected = Expected::default();
        if self.shared.closed {
            self.issue(Instant::now());
        }
        poll_fn(|context| self.poll(context, &mut stream, &mut answers, &mut expected)).await
    }

    fn poll(
        &self,
        context: &mut Context<'_>,
        stream: &mut (impl AsyncBufRead + AsyncWrite + Unpin),
        answers: &mut Answers,
        expected: &mut Expected,
    ) -> Poll<Result<(), Error>> {
        for chunks in 0.. {
            if chunks == CHUNKS {
                // There is more, but others wait for their turn: the schedule, and other connections.
                context.waker().wake_by_ref();
                break;
            }
            let readable = Pin::new(&mut *stream).poll_fill_buf(context).map_err(Error::Connection)?;
            let Poll::Ready(chunk) = readable else { break };
            if chunk.is_empty() {
                return Poll::Ready(Err(Error::Connection(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the server closed the connection",
                ))));
            }
            let length = chunk.len();
            let now = Instant::now();
            self.take_answers(chunk, answers, expected, now)?;
            Pin::new(&mut *stream).consume(length);
            self.issue(now);
            // What was asked in return goes out before more is read.
            self.poll_send(context, stream, Some(now))?;
        }
        self.poll_send(context, stream, None)?;
        let idle = self.in_flight.borrow().is_empty() && self.waiting.borrow().is_empty();
        if self.shared.stopping.get() && idle {
            return Poll::Ready(Ok(()));
        }
        let mut slot = self.waker.borrow_mut();
        if slot.as_ref().is_none_or(|waker| !waker.will_wake(context.waker())) {
            *slot = Some(context.waker().clone());
        }
        Poll::Pending
    }

    /// `now` where it is known: a look at the clock costs as much as writing a request.
    fn poll_send(
        &self,
        context: &mut Context<'_>,
        stream: &mut (impl AsyncWrite + Unpin),
        now: Option<Instant>,
    ) -> Result<(), Error> {
        let mut out = self.out.borrow_mut();
        let mut sent = 0;
        while sent < out.len() {
            match Pin::new(&mut *stream).poll_write(context, &out[sent..]) {
                Poll::Ready(result) => sent += result.map_err(Error::Connection)?,
                Poll::Pending => break,
            }
        }
        out.drain(..sent);
        if sent > 0 {
            let now = now.unwrap_or_else(Instant::now);
            self.shared.tally.borrow_mut().counts(now).sent += sent as u64;
        }
        Ok(())
    }

    fn take_answers(
        &self,
        chunk: &[u8],
        answers: &mut Answers,
        expected: &mut Expected,
        now: Instant,
    ) -> Result<(), Error> {
        let shared = &self.shared;
        let mut tally = shared.tally.borrow_mut();
        tally.counts(now).received += chunk.len() as u64;
        let mut requests = shared.requests.borrow_mut();
        let mut taker = Taker {
            tally: &mut tally,
            in_flight: &mut self.in_flight.borrow_mut(),
            out: &mut self.out.borrow_mut(),
            expected: requests.verifies().then_some(expected),
            requests: &mut requests,
            shared,
            now,
        };
        answers.feed(chunk, &mut taker)
    }
}

/// Takes answers, each for the oldest request under way.
struct Taker<'a> {
    tally: &'a mut Tally,
    in_flight: &'a mut VecDeque<InFlight>,
    out: &'a mut Vec<u8>,
    requests: &'a mut Requests,
    expected: Option<&'a mut Expected>,
    shared: &'a Shared,
    now: Instant,
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
            self.tally.counts(self.now).wrong += 1;
        }
    }

    /// The second half of a `cas`: in place of the request that is at the front, but at the end of the
    /// line, where its answer will come.
    fn store(&mut self, mut request: InFlight) {
        let record = request.asked.record;
        if request.unique == 0 {
            self.requests.set(record, self.out);
        } else {
            self.requests.cas(record, request.unique, self.out);
        }
        // Stored now, as a `set` is: no third request follows.
        request.asked.keys = 0;
        self.in_flight.push_back(request);
    }
}

impl Sink for Taker<'_> {
    fn value(&mut self, key: &[u8], length: usize, unique: u64) {
        self.check();
        if let Some(expected) = &mut self.expected {
            expected.begin(key, length);
            let asked = self.in_flight.front().map(|request| request.asked);
            if let Some(Asked { record, keys: 1, .. }) = asked
                && !self.requests.is_key_of(record, key)
            {
                self.tally.counts(self.now).wrong += 1;
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
        let moment = self.shared.counts_at(request.due, self.now);
        let operation = asked.operation;
        let counts = self.tally.counts(moment);
        match (operation, answer) {
            (_, Answer::Refused) => counts.errors += 1,
            (Operation::Get | Operation::MetaGet, Answer::Values(hits)) => {
                counts.hits += u64::from(hits);
                counts.misses += u64::from(asked.keys).saturating_sub(hits.into());
                // More than was asked for: somebody else's.
                counts.wrong += u64::from(hits).saturating_sub(asked.keys.into());
            }
            (Operation::Cas, Answer::Values(hits)) if asked.keys > 0 => {
                counts.hits += u64::from(hits);
                counts.misses += u64::from(hits == 0);
                self.store(request);
                return Ok(());
            }
            (Operation::Cas, Answer::Exists) if asked.keys == 0 => counts.conflicts += 1,
            (Operation::Cas, Answer::Done) if asked.keys == 0 => {}
            (Operation::Cas, Answer::NotFound) if asked.keys == 0 => counts.misses += 1,
            (Operation::Delete | Operation::Touch | Operation::Incr, Answer::NotFound) => counts.misses += 1,
            (Operation::Delete | Operation::Touch | Operation::Incr, Answer::Done) => counts.hits += 1,
            (Operation::Set | Operation::MetaSet, Answer::Done) => {}
            _ => return Err(out_of_step(answer, asked)),
        }
        let since = |moment: Instant| self.now.saturating_duration_since(moment);
        self.tally.record(moment, Measure::Latency(class(operation)), since(request.due));
        if !self.shared.closed {
            self.tally.record(moment, Measure::Service, since(request.sent));
        }
        Ok(())
    }
}
