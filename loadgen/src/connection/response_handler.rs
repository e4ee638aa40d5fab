//! Matches responses with requests in flight, and records their latencies.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use crate::connection::{Connection, InFlight, WorkerState, class_of};
use crate::error::Error;
use crate::protocol::ResponseDecoder;
use crate::protocol::message::{Response, ResponseSink};
use crate::protocol::request_writer::{RequestWriter, WrittenRequest};
use crate::stats::Metric;
use crate::stats::recorder::Recorder;
use crate::workload::mix::Operation;
use crate::workload::verify::ExpectedValue;

struct ResponseHandler<'a> {
    recorder: &'a mut Recorder,
    in_flight: &'a mut VecDeque<InFlight>,
    unsent: &'a Cell<usize>,
    thinking: &'a mut BinaryHeap<Reverse<Instant>>,
    out: &'a mut Vec<u8>,
    requests: &'a mut RequestWriter,
    expected: Option<&'a mut ExpectedValue>,
    worker: &'a WorkerState,
    /// When the bytes were read.
    now: Instant,
}

impl Connection {
    pub(crate) fn handle_responses(
        &self,
        chunk: &[u8],
        decoder: &mut ResponseDecoder,
        expected: &mut ExpectedValue,
        now: Instant,
    ) -> Result<(), Error> {
        let worker = &self.worker;
        let mut recorder = worker.recorder.borrow_mut();
        recorder.counts(now).received += chunk.len() as u64;
        let mut requests = worker.requests.borrow_mut();
        let mut handler = ResponseHandler {
            recorder: &mut recorder,
            in_flight: &mut self.in_flight.borrow_mut(),
            unsent: &self.unsent,
            thinking: &mut self.thinking.borrow_mut(),
            out: &mut self.out.borrow_mut(),
            expected: requests.workload.verify.then_some(expected),
            requests: &mut requests,
            worker,
            now,
        };
        decoder.feed(chunk, &mut handler)
    }
}

fn out_of_step(response: Response, request: WrittenRequest) -> Error {
    Error::Protocol(format!(
        "received {response:?} for {:?}: responses and requests are out of step",
        request.operation
    ))
}

impl ResponseHandler<'_> {
    /// Counts the value that has just ended if it is wrong.
    fn finish_value(&mut self) {
        let wrong = self.expected.as_mut().is_some_and(|expected| {
            let wrong = expected.mismatch;
            expected.begin(b"", 0);
            wrong
        });
        if wrong {
            self.recorder.counts(self.now).wrong += 1;
        }
    }

    /// Sends the `set` or `cas` that follows a `get`. It goes to the end of the queue, where its
    /// response will arrive.
    fn store(&mut self, mut in_flight: InFlight, cas: u64) {
        if cas == 0 {
            self.requests.set(in_flight.request.record, self.out);
        } else {
            self.requests.cas(in_flight.request.record, cas, self.out);
        }
        // Marks it as the second request, which has no successor.
        in_flight.request.keys = 0;
        self.in_flight.push_back(in_flight);
        self.unsent.set(self.unsent.get() + 1);
    }

    fn fill(&mut self, missed: WrittenRequest) {
        let now = self.now;
        let time = self.worker.attributed_time(now, now);
        self.recorder.counts(time).fills += 1;
        let request = WrittenRequest { operation: Operation::Set, ..missed };
        let send_lag = Duration::ZERO;
        self.store(InFlight { request, due: now, sent: now, send_lag, cas: 0, id: 0 }, 0);
    }

    /// Starts the think time of the request slot that has become free.
    fn think(&mut self) {
        if let Some(think) = self.worker.config.think.filter(|_| self.worker.is_closed_loop()) {
            let micros = think.draw(self.requests.random()).clamp(0.0, THINK_MAX);
            self.thinking.push(Reverse(self.now + Duration::from_secs_f64(micros / 1e6)));
        }
    }
}

/// The longest think time, in µs: a day.
const THINK_MAX: f64 = 86_400e6;

impl ResponseSink for ResponseHandler<'_> {
    fn value(&mut self, key: &[u8], length: usize, cas: u64) {
        self.finish_value();
        if let Some(expected) = &mut self.expected {
            expected.begin(key, length);
            let request = self.in_flight.front().map(|in_flight| in_flight.request);
            if let Some(WrittenRequest { record, keys: 1, .. }) = request
                && !self.requests.is_key_of(record, key)
            {
                self.recorder.counts(self.now).wrong += 1;
            }
        }
        if let Some(in_flight) = self.in_flight.front_mut() {
            in_flight.cas = cas;
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        if let Some(expected) = &mut self.expected {
            expected.compare(bytes);
        }
    }

    fn response(&mut self, response: Response) -> Result<(), Error> {
        self.finish_value();
        let Some(in_flight) = self.in_flight.pop_front() else {
            return Err(Error::Protocol("received a response without a request".to_owned()));
        };
        let request = in_flight.request;
        let time = self.worker.attributed_time(in_flight.due, self.now);
        let operation = request.operation;
        let counts = self.recorder.counts(time);
        let mut missed = false;
        match (operation, response) {
            (_, Response::Error) => counts.errors += 1,
            (Operation::Get | Operation::MetaGet, Response::Values(hits)) => {
                counts.hits += u64::from(hits);
                counts.misses += u64::from(request.keys).saturating_sub(hits.into());
                // More values than keys: some belong to another request.
                counts.wrong += u64::from(hits).saturating_sub(request.keys.into());
                missed = hits == 0;
            }
            (Operation::Cas, Response::Values(hits)) if request.keys > 0 => {
                counts.hits += u64::from(hits);
                counts.misses += u64::from(hits == 0);
                let cas = in_flight.cas;
                self.store(in_flight, cas);
                return Ok(());
            }
            (Operation::Cas, Response::Exists) if request.keys == 0 => counts.conflicts += 1,
            (Operation::Cas, Response::Done) if request.keys == 0 => {}
            (Operation::Cas, Response::NotFound) if request.keys == 0 => counts.misses += 1,
            (
                Operation::Delete | Operation::Touch | Operation::Incr | Operation::Decr,
                Response::NotFound,
            ) => counts.misses += 1,
            (Operation::Delete | Operation::Touch | Operation::Incr | Operation::Decr, Response::Done) => {
                counts.hits += 1;
            }
            // Depending on the protocol: the record exists already, or it doesn't exist.
            (
                Operation::Add | Operation::Replace | Operation::Append | Operation::Prepend,
                Response::NotStored | Response::Exists | Response::NotFound,
            ) => counts.misses += 1,
            (Operation::Set | Operation::MetaSet, Response::NotStored) => counts.errors += 1,
            (operation, Response::Done) if operation.stores() => {}
            _ => return Err(out_of_step(response, request)),
        }
        let now = self.now;
        let latency = now.saturating_duration_since(in_flight.due);
        self.recorder.record(time, class_of(operation), latency);
        let service = now.saturating_duration_since(in_flight.sent);
        // In the open loop a reply that comes after the end does not count for the rate.
        self.recorder.counts(if self.worker.is_closed_loop() { time } else { now }).replies += 1;
        if !self.worker.is_closed_loop() {
            self.recorder.record(time, Metric::Service, service);
        }
        if missed && self.requests.workload.fill {
            self.fill(request);
        }
        // A fill doesn't occupy a request slot.
        if request.keys > 0 || operation == Operation::Cas {
            self.think();
        }
        Ok(())
    }
}
