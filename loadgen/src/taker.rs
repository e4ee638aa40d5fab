//! Answers, each for the oldest request under way.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use crate::answers::{Answer, Sink};
use crate::client::{InFlight, Shared, class};
use crate::error::Error;
use crate::measures::Measure;
use crate::requests::{Asked, Requests};
use crate::tally::Tally;
use crate::transport::Stamp;
use crate::value::Expected;
use crate::workload::Operation;

/// A read: when it was, and when the kernel had the last of what it brought.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Read {
    pub(crate) now: Instant,
    pub(crate) stamp: Option<Stamp>,
}

/// Takes answers, each for the oldest request under way.
pub(crate) struct Taker<'a> {
    pub(crate) tally: &'a mut Tally,
    pub(crate) in_flight: &'a mut VecDeque<InFlight>,
    pub(crate) unwritten: &'a Cell<usize>,
    pub(crate) went: &'a mut VecDeque<(u32, Duration)>,
    pub(crate) thinking: &'a mut BinaryHeap<Reverse<Instant>>,
    pub(crate) out: &'a mut Vec<u8>,
    pub(crate) requests: &'a mut Requests,
    pub(crate) expected: Option<&'a mut Expected>,
    pub(crate) shared: &'a Shared,
    pub(crate) read: Read,
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
            // None where the kernel had no room for it, or sent it together with what came after.
            let went = self.went.front().filter(|(place, _)| *place == request.end);
            let wire = went.map(|(_, went)| at.saturating_sub(*went));
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
