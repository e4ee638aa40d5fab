//! Gets in datagrams: each with a frame of its own, and any of them may get lost.
//!
//! memcached's `doc/protocol.txt`, "UDP protocol": eight bytes before each datagram are the request's number,
//! the datagram's among those of the answer, how many there are, and zero.

use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::net::UdpSocket;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use runtime::io::{AsyncFd, Direction, SourceKind};

use crate::client::Connection;
use crate::decoder::Decoder;
use crate::error::Error;
use crate::taker::Read;
use crate::value::Expected;

const FRAME: usize = 8;
/// How many numbers requests have.
const NUMBERS: usize = 1 << 16;
/// The largest datagram.
const LARGEST: usize = 65_507;
/// An answer that takes longer counts as lost.
const LOST: Duration = Duration::from_secs(1);
/// So often it is looked what is lost.
const LOOK: Duration = Duration::from_millis(20);
/// So many datagrams are taken in one turn.
const AT_ONCE: usize = 32;

/// The datagrams of one connection.
struct Datagrams {
    socket: AsyncFd<UdpSocket>,
    next_id: u16,
    /// By number; there are never as many under way as there are numbers.
    in_use: Box<[bool]>,
    unsent: VecDeque<Vec<u8>>,
    /// Answers of which not all datagrams are there: by the request's number, what has come by its place.
    parts: BTreeMap<u16, BTreeMap<u16, Vec<u8>>>,
    buffer: Box<[u8]>,
}

impl Connection {
    /// Asks by datagrams until it is told to stop and all is answered or lost.
    pub(crate) async fn run_datagrams(&self, socket: UdpSocket) -> Result<(), Error> {
        let mut datagrams = Datagrams {
            socket: AsyncFd::new(socket, SourceKind::Other).map_err(Error::Connection)?,
            next_id: 0,
            in_use: vec![false; NUMBERS].into(),
            unsent: VecDeque::new(),
            parts: BTreeMap::new(),
            buffer: vec![0; LARGEST].into(),
        };
        let mut timer = pin!(runtime::sleep(LOOK));
        poll_fn(|context| {
            loop {
                if let Poll::Ready(ended) = datagrams.poll(self, context) {
                    return Poll::Ready(ended);
                }
                if let Some(thought) = self.thought().filter(|thought| *thought < timer.deadline()) {
                    timer.set(runtime::sleep_until(thought));
                }
                if timer.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                let now = Instant::now();
                datagrams.lose(self, now);
                timer.set(runtime::sleep_until(now + LOOK));
            }
        })
        .await
    }
}

impl Datagrams {
    fn poll(&mut self, connection: &Connection, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.issue(connection, Instant::now())?;
        for turn in 0.. {
            if turn == AT_ONCE {
                // Others wait for their turn.
                context.waker().wake_by_ref();
                break;
            }
            let Self { socket, buffer, .. } = self;
            let received = socket.poll_io(Direction::Read, context, |socket| socket.recv(buffer));
            let Poll::Ready(received) = received else { break };
            let (length, now) = (received.map_err(Error::Connection)?, Instant::now());
            // A short datagram says nothing of the next.
            self.socket.record_read(length, length);
            self.take(connection, length, now)?;
            self.issue(connection, now)?;
        }
        self.send(connection, context)?;
        let idle = connection.in_flight.borrow().is_empty() && connection.waiting.borrow().is_empty();
        if connection.shared.stopping.get() && idle {
            return Poll::Ready(Ok(()));
        }
        connection.wait(context);
        Poll::Pending
    }

    fn issue(&mut self, connection: &Connection, now: Instant) -> Result<(), Error> {
        while let Some(mut request) = connection.next(now) {
            // One that waits for its answer has its number for as long.
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
                return Err(Error::Config("a get of so many keys does not fit into a datagram".to_owned()));
            }
            self.unsent.push_back(datagram);
            let mut in_flight = connection.in_flight.borrow_mut();
            in_flight.push_back(request);
            connection.shared.tally.borrow_mut().record_queue(now, in_flight.len());
        }
        Ok(())
    }

    fn send(&mut self, connection: &Connection, context: &mut Context<'_>) -> Result<(), Error> {
        while let Some(datagram) = self.unsent.front() {
            let now = Instant::now();
            let sent = self.socket.poll_io(Direction::Write, context, |socket| socket.send(datagram));
            let Poll::Ready(sent) = sent else { break };
            let length = sent.map_err(Error::Connection)?;
            connection.shared.tally.borrow_mut().counts(now).sent += length as u64;
            let id = u16::from_be_bytes([datagram[0], datagram[1]]);
            let mut in_flight = connection.in_flight.borrow_mut();
            // Gone where it has waited for so long that it counts as lost.
            if let Some(request) = in_flight.iter_mut().rev().find(|request| request.id == id) {
                connection.written(request, now);
            }
            self.unsent.pop_front();
        }
        Ok(())
    }

    fn take(&mut self, connection: &Connection, length: usize, now: Instant) -> Result<(), Error> {
        let Some((frame, body)) = self.buffer[..length].split_at_checked(FRAME) else {
            return Err(Error::Protocol(format!("a datagram of {length} bytes has no room for its frame")));
        };
        let number = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
        let (id, place, of) = (number(0), number(2), number(4));
        let position = connection.in_flight.borrow().iter().position(|request| request.id == id);
        // What was lost and comes after all, or comes twice, is nobody's any more.
        let Some(position) = position else { return Ok(()) };
        let whole = if of <= 1 {
            body.to_vec()
        } else {
            let parts = self.parts.entry(id).or_default();
            parts.insert(place, body.to_vec());
            if parts.len() < usize::from(of) {
                return Ok(());
            }
            self.parts.remove(&id).unwrap_or_default().into_values().flatten().collect()
        };
        // Answers come in any order, and are taken for the request at the front.
        let left = {
            let mut in_flight = connection.in_flight.borrow_mut();
            if let Some(request) = in_flight.remove(position) {
                in_flight.push_front(request);
            }
            in_flight.len()
        };
        let mut expected = Expected::default();
        connection.take_answers(
            &whole,
            &mut Decoder::new(false),
            &mut expected,
            Read { now, stamp: None },
        )?;
        if connection.in_flight.borrow().len() + 1 != left {
            return Err(Error::Protocol("a datagram has no whole answer".to_owned()));
        }
        self.in_use[usize::from(id)] = false;
        Ok(())
    }

    /// Gives up what has been out for too long.
    fn lose(&mut self, connection: &Connection, now: Instant) {
        let mut lost = Vec::new();
        connection.in_flight.borrow_mut().retain_mut(|request| {
            let keep = now.saturating_duration_since(request.sent) < LOST;
            if !keep {
                lost.push(request.id);
                connection.give_up(request, now);
            }
            keep
        });
        for id in lost {
            self.parts.remove(&id);
            self.in_use[usize::from(id)] = false;
        }
    }
}
