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
use hdrhistogram::Histogram;
use net::TcpStream;

use crate::run::Error;
use crate::workload::{Kind, Requests};

/// What a worker has seen. Latencies in nanoseconds.
#[derive(Debug, Clone)]
pub(crate) struct Tally {
    pub(crate) reads: Histogram<u64>,
    pub(crate) updates: Histogram<u64>,
    /// Requests under way on the connection, at each request.
    pub(crate) outstanding: Histogram<u64>,
    /// How late requests of an open loop went out.
    pub(crate) slip: Histogram<u64>,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) errors: u64,
    pub(crate) unanswered: u64,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) cpu: Duration,
}

/// Latencies are told apart to 0.1 %, up to ten minutes.
const LONGEST: u64 = 600_000_000_000;

impl Tally {
    pub(crate) fn new() -> Self {
        // Both arguments are constants that the crate takes (at least 2, at most 5 digits).
        let histogram = |largest| {
            Histogram::new_with_bounds(1, largest, 3).unwrap_or_else(|_| Histogram::new(3).expect("3 digits"))
        };
        Self {
            reads: histogram(LONGEST),
            updates: histogram(LONGEST),
            outstanding: histogram(1 << 20),
            slip: histogram(LONGEST),
            hits: 0,
            misses: 0,
            errors: 0,
            unanswered: 0,
            received: 0,
            sent: 0,
            cpu: Duration::ZERO,
        }
    }

    pub(crate) fn merge(&mut self, other: &Tally) {
        for (mine, theirs) in [
            (&mut self.reads, &other.reads),
            (&mut self.updates, &other.updates),
            (&mut self.outstanding, &other.outstanding),
            (&mut self.slip, &other.slip),
        ] {
            // All are made with the same bounds, so every value of one fits the other.
            mine.add(theirs).expect("histograms of the same bounds");
        }
        self.hits += other.hits;
        self.misses += other.misses;
        self.errors += other.errors;
        self.unanswered += other.unanswered;
        self.received += other.received;
        self.sent += other.sent;
        self.cpu += other.cpu;
    }

    fn record(&mut self, kind: Kind, latency: Duration) {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX).max(1);
        match kind {
            Kind::Get => self.reads.saturating_record(nanos),
            Kind::Set => self.updates.saturating_record(nanos),
        }
    }
}

/// When what is measured begins and ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub(crate) begin: Instant,
    pub(crate) end: Instant,
}

impl Window {
    fn holds(&self, moment: Instant) -> bool {
        self.begin <= moment && moment < self.end
    }
}

/// What the connections of one worker share.
pub(crate) struct Shared {
    pub(crate) requests: RefCell<Requests>,
    pub(crate) tally: RefCell<Tally>,
    pub(crate) window: Window,
    /// Requests a connection may have under way.
    pub(crate) depth: usize,
    /// Whether an answer lets the next request go at once.
    pub(crate) closed: bool,
    /// No new requests any more.
    pub(crate) stopping: Cell<bool>,
    pub(crate) completed: std::sync::Arc<std::sync::atomic::AtomicU64>,
}

struct InFlight {
    kind: Kind,
    /// When it went out; in an open loop, when it should have.
    since: Instant,
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

    /// Gives the connection a request of an open loop that was due at `due`.
    pub(crate) fn hand(&self, due: Instant, now: Instant) {
        self.waiting.borrow_mut().push_back(due);
        self.issue(now);
        self.wake();
    }

    pub(crate) fn wake(&self) {
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }

    /// Requests that have been due and are not answered.
    pub(crate) fn leave_unanswered(&self, now: Instant) {
        let mut tally = self.shared.tally.borrow_mut();
        let window = self.shared.window;
        for request in self.in_flight.borrow().iter().filter(|request| window.holds(request.since)) {
            tally.unanswered += 1;
            // At least so long; leaving it out would make a stalled server look good.
            if !self.shared.closed {
                tally.record(request.kind, now - request.since);
            }
        }
        for &due in self.waiting.borrow().iter().filter(|due| window.holds(**due)) {
            tally.unanswered += 1;
            tally.record(Kind::Get, now - due);
        }
    }

    /// Writes as many requests as may be under way.
    fn issue(&self, now: Instant) {
        let shared = &self.shared;
        let mut in_flight = self.in_flight.borrow_mut();
        while in_flight.len() < shared.depth {
            let since = if shared.closed {
                if shared.stopping.get() {
                    return;
                }
                now
            } else {
                let Some(due) = self.waiting.borrow_mut().pop_front() else { return };
                if shared.window.holds(due) {
                    let slip = (now.saturating_duration_since(due)).as_nanos();
                    shared.tally.borrow_mut().slip.saturating_record(u64::try_from(slip).unwrap_or(u64::MAX));
                }
                due
            };
            let kind = shared.requests.borrow_mut().next(&mut self.out.borrow_mut());
            in_flight.push_back(InFlight { kind, since });
            if shared.window.holds(now) {
                shared.tally.borrow_mut().outstanding.saturating_record(in_flight.len() as u64);
            }
        }
    }

    /// Runs the connection until it is told to stop and, in an open loop, all is answered.
    pub(crate) async fn run(&self, mut stream: TcpStream) -> Result<(), Error> {
        let mut answers = Answers::default();
        if self.shared.closed {
            self.issue(Instant::now());
        }
        poll_fn(|context| self.poll(context, &mut stream, &mut answers)).await
    }

    fn poll(
        &self,
        context: &mut Context<'_>,
        stream: &mut TcpStream,
        answers: &mut Answers,
    ) -> Poll<Result<(), Error>> {
        loop {
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
            self.take_answers(chunk, answers, now)?;
            Pin::new(&mut *stream).consume(length);
            self.issue(now);
            // What was asked in return goes out before more is read.
            self.poll_send(context, stream, Some(now))?;
        }
        self.poll_send(context, stream, None)?;
        let idle = self.in_flight.borrow().is_empty() && self.waiting.borrow().is_empty();
        if self.shared.stopping.get() && (self.shared.closed || idle) {
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
        stream: &mut TcpStream,
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
        if sent > 0 && self.shared.window.holds(now.unwrap_or_else(Instant::now)) {
            self.shared.tally.borrow_mut().sent += sent as u64;
        }
        Ok(())
    }

    fn take_answers(&self, chunk: &[u8], answers: &mut Answers, now: Instant) -> Result<(), Error> {
        let shared = &self.shared;
        let mut tally = shared.tally.borrow_mut();
        let mut in_flight = self.in_flight.borrow_mut();
        let mut completed = 0;
        if shared.window.holds(now) {
            tally.received += chunk.len() as u64;
        }
        answers.feed(chunk, |answer| {
            let Some(request) = in_flight.pop_front() else {
                return Err(Error::Protocol("an answer came that nothing was asked for".to_owned()));
            };
            completed += 1;
            // A closed loop counts what ends in the window, an open loop what was due in it.
            let counts = shared.window.holds(if shared.closed { now } else { request.since });
            if counts {
                match answer {
                    Answer::Hit => tally.hits += 1,
                    Answer::Miss if request.kind == Kind::Get => tally.misses += 1,
                    Answer::Stored if request.kind == Kind::Set => {}
                    _ => tally.errors += 1,
                }
                tally.record(request.kind, now - request.since);
            }
            Ok(())
        })?;
        shared.completed.fetch_add(completed, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }
}

/// What a request was answered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Hit,
    /// `END` without a value.
    Miss,
    Stored,
    /// Any error line, or `NOT_STORED`.
    Refused,
}

/// Splits what a server sends into answers.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// A line that is not whole yet.
    line: Vec<u8>,
    /// Bytes of a value that are still to come.
    value: usize,
    hit: bool,
}

/// The longest line that an answer can have: a key, numbers, and room for an error's text.
const LONGEST_LINE: usize = 4096;

impl Answers {
    pub(crate) fn feed(
        &mut self,
        mut input: &[u8],
        mut each: impl FnMut(Answer) -> Result<(), Error>,
    ) -> Result<(), Error> {
        while !input.is_empty() {
            if self.value > 0 {
                let now = self.value.min(input.len());
                self.value -= now;
                input = &input[now..];
                continue;
            }
            let Some(end) = memchr::memchr(b'\n', input) else {
                self.line.extend_from_slice(input);
                if self.line.len() > LONGEST_LINE {
                    return Err(Error::Protocol("an answer has a line that does not end".to_owned()));
                }
                return Ok(());
            };
            let (line, rest) = (&input[..=end], &input[end + 1..]);
            input = rest;
            if self.line.is_empty() {
                self.line(line, &mut each)?;
            } else {
                let mut whole = std::mem::take(&mut self.line);
                whole.extend_from_slice(line);
                self.line(&whole, &mut each)?;
            }
        }
        Ok(())
    }

    fn line(&mut self, line: &[u8], each: &mut impl FnMut(Answer) -> Result<(), Error>) -> Result<(), Error> {
        let unknown = || Error::Protocol(format!("unexpected answer {:?}", String::from_utf8_lossy(line)));
        if line.starts_with(b"VALUE ") {
            // VALUE <key> <flags> <bytes>, and perhaps the CAS number.
            let length = line.trim_ascii_end().split(|&byte| byte == b' ').nth(3);
            let length = length.and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<usize>().ok());
            let with_end = length.and_then(|length| length.checked_add(2));
            (self.value, self.hit) = (with_end.ok_or_else(unknown)?, true);
            return Ok(());
        }
        let answer = match line {
            b"END\r\n" => {
                if std::mem::take(&mut self.hit) {
                    Answer::Hit
                } else {
                    Answer::Miss
                }
            }
            b"STORED\r\n" => Answer::Stored,
            b"NOT_STORED\r\n" => Answer::Refused,
            b"ERROR Too many open connections\r\n" => {
                return Err(Error::Protocol("the server has too many open connections".to_owned()));
            }
            _ if line.starts_with(b"ERROR")
                || line.starts_with(b"CLIENT_ERROR")
                || line.starts_with(b"SERVER_ERROR") =>
            {
                Answer::Refused
            }
            _ => return Err(unknown()),
        };
        each(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_found_however_the_bytes_are_cut() {
        let input = b"VALUE k 0 9\r\nEND\r\nEND\r\r\nEND\r\nEND\r\nSTORED\r\nSERVER_ERROR no\r\n";
        for piece in 1..=input.len() {
            let (mut answers, mut seen) = (Answers::default(), Vec::new());
            for part in input.chunks(piece) {
                answers
                    .feed(part, |answer| {
                        seen.push(answer);
                        Ok(())
                    })
                    .unwrap();
            }
            assert_eq!(
                seen,
                [Answer::Hit, Answer::Miss, Answer::Stored, Answer::Refused],
                "pieces of {piece}"
            );
        }
    }

    #[test]
    fn an_answer_that_is_none_is_an_error_and_not_a_success() {
        for input in [&b"HTTP/1.1 400 Bad Request\r\n"[..], b"VALUE k 0\r\n", &[b'x'; 9000]] {
            assert!(Answers::default().feed(input, |_| Ok(())).is_err());
        }
    }
}
