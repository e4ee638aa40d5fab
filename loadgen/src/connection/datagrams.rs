//! Runs a connection over UDP, for `get` requests.
//!
//! memcached's `doc/protocol.txt`, "UDP protocol": each datagram begins with an eight-byte frame of
//! request ID, sequence number, number of datagrams, and zero. A datagram that is lost is not sent
//! again.

use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::net::UdpSocket;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use runtime::io::{AsyncFd, Direction, SourceKind};

use crate::config::Protocol;
use crate::connection::Connection;
use crate::error::Error;
use crate::protocol::ResponseDecoder;
use crate::workload::verify::ExpectedValue;

const FRAME: usize = 8;
const IDS: usize = 1 << 16;
/// The largest datagram, in bytes.
const LARGEST: usize = 65_507;
/// A response that takes longer counts as lost.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
const TIMEOUT_CHECK: Duration = Duration::from_millis(20);
/// Datagrams received per poll, before other tasks get their turn.
const RECEIVES_PER_POLL: usize = 32;

struct DatagramSession {
    socket: AsyncFd<UdpSocket>,
    next_id: u16,
    /// By request ID. A connection never has as many requests in flight as there are IDs.
    in_use: Box<[bool]>,
    unsent: VecDeque<Vec<u8>>,
    /// Incomplete responses: payloads by request ID and sequence number.
    partial: BTreeMap<u16, BTreeMap<u16, Vec<u8>>>,
    buffer: Box<[u8]>,
}

impl Connection {
    /// Runs the connection until the worker stops and all requests have responses or timed out.
    pub(crate) async fn run_datagrams(&self, socket: UdpSocket) -> Result<(), Error> {
        let mut session = DatagramSession {
            socket: AsyncFd::new(socket, SourceKind::Datagrams).map_err(Error::Connection)?,
            next_id: 0,
            in_use: vec![false; IDS].into(),
            unsent: VecDeque::new(),
            partial: BTreeMap::new(),
            buffer: vec![0; LARGEST].into(),
        };
        let mut timer = pin!(runtime::sleep(TIMEOUT_CHECK));
        poll_fn(|context| {
            loop {
                if let Poll::Ready(ended) = session.poll(self, context) {
                    return Poll::Ready(ended);
                }
                if let Some(thought) = self.think_deadline().filter(|until| *until < timer.deadline()) {
                    timer.set(runtime::sleep_until(thought));
                }
                if timer.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                let now = Instant::now();
                session.expire(self, now);
                timer.set(runtime::sleep_until(now + TIMEOUT_CHECK));
            }
        })
        .await
    }
}

impl DatagramSession {
    fn poll(&mut self, connection: &Connection, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.issue(connection, Instant::now())?;
        for receives in 0.. {
            if receives == RECEIVES_PER_POLL {
                context.waker().wake_by_ref();
                break;
            }
            let Self { socket, buffer, .. } = self;
            let received = socket.poll_io(Direction::Read, context, |socket| socket.recv(buffer));
            let Poll::Ready(received) = received else { break };
            let (length, now) = (received.map_err(Error::Connection)?, Instant::now());
            // A short read doesn't mean that the socket is empty, as it would for a stream.
            self.socket.record_datagrams(1, length);
            self.receive(connection, length, now)?;
            self.issue(connection, now)?;
        }
        self.send(connection, context)?;
        let idle = connection.in_flight.borrow().is_empty() && !connection.has_waiting();
        if connection.worker.stopping.get() && idle {
            return Poll::Ready(Ok(()));
        }
        connection.register_waker(context);
        Poll::Pending
    }

    fn issue(&mut self, connection: &Connection, now: Instant) -> Result<(), Error> {
        while let Some(mut request) = connection.next_request(now) {
            // IDs of requests in flight are taken.
            while self.in_use[usize::from(self.next_id)] {
                self.next_id = self.next_id.wrapping_add(1);
            }
            request.id = self.next_id;
            self.in_use[usize::from(self.next_id)] = true;
            self.next_id = self.next_id.wrapping_add(1);
            let [high, low] = request.id.to_be_bytes();
            let mut datagram = vec![high, low, 0, 0, 0, 1, 0, 0];
            datagram.append(&mut connection.out.borrow_mut());
            if datagram.len() > LARGEST {
                return Err(Error::Config("a multiget does not fit into a datagram".to_owned()));
            }
            self.unsent.push_back(datagram);
            let mut in_flight = connection.in_flight.borrow_mut();
            in_flight.push_back(request);
            connection.worker.recorder.borrow_mut().record_queue(now, in_flight.len());
        }
        Ok(())
    }

    fn send(&mut self, connection: &Connection, context: &mut Context<'_>) -> Result<(), Error> {
        while let Some(datagram) = self.unsent.front() {
            let now = Instant::now();
            let sent = self.socket.poll_io(Direction::Write, context, |socket| socket.send(datagram));
            let Poll::Ready(sent) = sent else { break };
            let length = sent.map_err(Error::Connection)?;
            connection.worker.recorder.borrow_mut().counts(now).sent += length as u64;
            let id = u16::from_be_bytes([datagram[0], datagram[1]]);
            let mut in_flight = connection.in_flight.borrow_mut();
            // Not found if the request timed out before it could be sent.
            if let Some(request) = in_flight.iter_mut().rev().find(|request| request.id == id) {
                connection.mark_sent(request, now);
            }
            self.unsent.pop_front();
        }
        Ok(())
    }

    fn receive(&mut self, connection: &Connection, length: usize, now: Instant) -> Result<(), Error> {
        let Some((frame, payload)) = self.buffer[..length].split_at_checked(FRAME) else {
            return Err(Error::Protocol(format!("a datagram of {length} bytes is shorter than its frame")));
        };
        let number = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let (id, sequence, datagrams) = (number(0), number(2), number(4));
        let position = connection.in_flight.borrow().iter().position(|request| request.id == id);
        // Ignore duplicates, and responses that arrive after their timeout.
        let Some(position) = position else { return Ok(()) };
        let response = if datagrams <= 1 {
            payload.to_vec()
        } else {
            let parts = self.partial.entry(id).or_default();
            parts.insert(sequence, payload.to_vec());
            if parts.len() < usize::from(datagrams) {
                return Ok(());
            }
            self.partial.remove(&id).unwrap_or_default().into_values().flatten().collect()
        };
        // Responses arrive in any order, but the handler expects the request at the front.
        let remaining = {
            let mut in_flight = connection.in_flight.borrow_mut();
            if let Some(request) = in_flight.remove(position) {
                in_flight.push_front(request);
            }
            in_flight.len()
        };
        let (mut decoder, mut expected) = (ResponseDecoder::new(Protocol::Udp), ExpectedValue::default());
        connection.handle_responses(&response, &mut decoder, &mut expected, now)?;
        if connection.in_flight.borrow().len() + 1 != remaining {
            return Err(Error::Protocol("a datagram contains an incomplete response".to_owned()));
        }
        self.in_use[usize::from(id)] = false;
        Ok(())
    }

    /// Counts requests without a response as unanswered after the timeout.
    fn expire(&mut self, connection: &Connection, now: Instant) {
        let mut expired = Vec::new();
        connection.in_flight.borrow_mut().retain_mut(|request| {
            let keep = now.saturating_duration_since(request.sent) < RESPONSE_TIMEOUT;
            if !keep {
                expired.push(request.id);
                connection.count_unanswered(request, now);
            }
            keep
        });
        for id in expired {
            self.partial.remove(&id);
            self.in_use[usize::from(id)] = false;
        }
    }
}
