//! The connections of a fleet: opens them, stores records, receives, and keeps TCP's timers.

use std::time::Duration;

use loadgen::stream::Response;

use super::config::FleetConfig;
use super::link::{Link, PolledQueue};
use super::packet_socket::PacketRing;
use super::requests::{ReplyParser, RequestSource};
use super::segment::{SEGMENT_PAYLOAD, Unreadable, parse};
use super::tcp::{Arrived, Connection};
use crate::Error;

/// The port of the first connection. The others follow, below the ports that the kernel chooses for
/// its own connection.
const FIRST_PORT: u16 = 10_000;
/// Handshakes at a time, well below a listener's backlog.
const HANDSHAKES: usize = 64;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often timers are looked at, in ns.
const TIMER_INTERVAL: u64 = 1_000_000;
/// Connections whose timers one pass of the loop looks at, and segments that it sends because of
/// them at most, so that it is short. Of 10,000 connections each is looked at every 40 ms.
const LOOKS_PER_PASS: usize = 256;
const TIMERS_PER_PASS: usize = 8;
/// Packets that are received before due requests are looked at again.
const PACKETS_PER_LOOK: usize = 64;

#[derive(Debug, Clone, Copy)]
pub(super) struct InFlight {
    pub(super) due: u64,
    pub(super) keys: u16,
    /// The part of a run in which it is measured, or [`UNMEASURED`].
    pub(super) epoch: u64,
}

/// The epoch of requests that are not measured.
pub(super) const UNMEASURED: u64 = 0;

#[derive(Debug)]
pub(super) struct Client {
    pub(super) tcp: Connection,
    pub(super) replies: ReplyParser,
    pub(super) in_flight: Option<InFlight>,
}

#[derive(Debug)]
pub struct Fleet {
    pub(super) config: FleetConfig,
    pub(super) link: Link,
    pub(super) queue: Option<PolledQueue>,
    /// `None` while it hands a packet out.
    pub(super) ring: Option<PacketRing>,
    pub(super) source: RequestSource,
    pub(super) clients: Vec<Client>,
    /// Connections that have room for a request; in the closed loop those that have begun.
    pub(super) free: Vec<u32>,
    pub(super) outstanding: usize,
    pub(super) established: usize,
    /// When timers are looked at again, in ns, and the last connection that was looked at.
    timers_at: u64,
    looked_at: usize,
    pub(super) lost: usize,
    pub(super) runs: u64,
}

impl Fleet {
    pub fn connect(config: FleetConfig) -> Result<Self, Error> {
        let interface = policies::host::interface(&config.link.interface)?;
        // The ring first: it must not miss an answer.
        let open_error =
            |error| format!("cannot open the fleet's packet sockets: {error} (it needs CAP_NET_RAW)");
        let ring = PacketRing::open(interface.index, config.address).map_err(open_error)?;
        let link = Link::open(&interface, &config).map_err(open_error)?;
        let queue =
            if config.link.polls { Some(PolledQueue::open(interface, config.server.into())?) } else { None };
        let client = |index: usize| Client {
            tcp: Connection::new(
                FIRST_PORT + index as u16,
                (config.seed as u32).wrapping_add(index as u32 * 64),
            ),
            replies: ReplyParser::new(&config.requests),
            in_flight: None,
        };
        let mut fleet = Self {
            link,
            queue,
            ring: Some(ring),
            source: RequestSource::new(&config.requests, config.seed)?,
            clients: (0..config.connections).map(client).collect(),
            free: Vec::new(),
            outstanding: 0,
            established: 0,
            timers_at: 0,
            looked_at: 0,
            lost: 0,
            runs: 0,
            config,
        };
        fleet.establish()?;
        // Until a load begins: other fleets may have to connect by this queue.
        fleet.queue.as_mut().map_or(Ok(()), PolledQueue::release)?;
        Ok(fleet)
    }

    fn establish(&mut self) -> Result<(), Error> {
        let mut now = self.link.now();
        let deadline = now + nanos(CONNECT_TIMEOUT.as_secs_f64());
        let mut started = 0;
        while self.established < self.clients.len() && self.lost == 0 && now < deadline {
            while started < self.clients.len() && started - self.established < HANDSHAKES {
                self.clients[started].tcp.connect(&mut self.link, now)?;
                started += 1;
            }
            self.poll()?;
            self.drain(now, &mut |_, _| {})?;
            self.keep_timers(now)?;
            now = self.link.now();
        }
        if self.lost > 0 {
            return Err(closed(self.lost));
        }
        match self.clients.len() - self.established {
            0 => Ok(()),
            missing => Err(format!(
                "{missing} of {} connections were not established within {} s",
                self.clients.len(),
                CONNECT_TIMEOUT.as_secs()
            )
            .into()),
        }
    }

    #[inline]
    pub(super) fn poll(&mut self) -> Result<(), Error> {
        let Some(queue) = &mut self.queue else { return Ok(()) };
        if queue.poll()? { Ok(()) } else { Err(closed(1)) }
    }

    /// Handles packets that were received, at most [`PACKETS_PER_LOOK`]. Returns whether there were
    /// any.
    #[inline]
    pub(super) fn drain(
        &mut self,
        now: u64,
        report: &mut impl FnMut(Response, InFlight),
    ) -> Result<bool, Error> {
        let mut received = 0;
        while received < PACKETS_PER_LOOK {
            let mut outcome = Ok(());
            // The ring is lent out of the fleet meanwhile.
            let Some(mut ring) = self.ring.take() else { break };
            let some = ring.receive(|packet| outcome = self.handle(packet, now, report));
            self.ring = Some(ring);
            outcome?;
            if !some {
                break;
            }
            received += 1;
        }
        Ok(received > 0)
    }

    #[inline]
    fn handle(
        &mut self,
        packet: &[u8],
        now: u64,
        report: &mut impl FnMut(Response, InFlight),
    ) -> Result<(), Error> {
        let segment = match parse(packet) {
            Ok(segment) => segment,
            Err(Unreadable::Truncated) => {
                return Err(format!(
                    "a packet of the server is longer than {SEGMENT_PAYLOAD} bytes: switch receive merging (GRO) to single packets"
                )
                .into());
            }
            Err(Unreadable::NotTcp) => return Ok(()),
        };
        let server = self.config.server;
        if (segment.source, segment.source_port) != (*server.ip(), server.port()) {
            return Ok(());
        }
        let index = segment.port.wrapping_sub(FIRST_PORT);
        let Some(client) = self.clients.get_mut(usize::from(index)) else { return Ok(()) };
        let arrived = client.tcp.receive(&mut self.link, now, &segment)?;
        let index = u32::from(index);
        match arrived {
            Arrived::Nothing => {}
            Arrived::Established => {
                self.established += 1;
                self.free.push(index);
            }
            Arrived::Lost => self.lost += 1,
            Arrived::Payload(from) => {
                let Client { replies, in_flight, .. } = client;
                let was_busy = in_flight.is_some();
                let mut out_of_step = false;
                replies.feed(&segment.payload[from..], |outcome| match in_flight.take() {
                    Some(request) => report(outcome, request),
                    None => out_of_step = true,
                })?;
                if out_of_step {
                    return Err("the server sent a reply without a request".into());
                }
                if was_busy && in_flight.is_none() {
                    self.outstanding -= 1;
                    self.free.push(index);
                }
            }
        }
        Ok(())
    }

    /// Sends acknowledgements and retransmissions whose time has come, of some connections in turns.
    /// Returns whether there were any.
    #[inline]
    pub(super) fn keep_timers(&mut self, now: u64) -> Result<bool, Error> {
        if now < self.timers_at {
            return Ok(false);
        }
        let mut sent = 0;
        for _ in 0..self.clients.len().min(LOOKS_PER_PASS) {
            self.looked_at = (self.looked_at + 1) % self.clients.len();
            sent += usize::from(self.clients[self.looked_at].tcp.keep_timers(&mut self.link, now)?);
            if sent == TIMERS_PER_PASS {
                break;
            }
        }
        // With more to do, the next pass goes on.
        self.timers_at = if sent == TIMERS_PER_PASS { now } else { now + TIMER_INTERVAL };
        Ok(sent > 0)
    }

    pub(super) fn ring_drops(&self) -> Result<u64, Error> {
        Ok(self.ring.as_ref().map_or(Ok(0), PacketRing::take_drops)?)
    }

    pub fn close(mut self) -> Result<(), Error> {
        let now = self.link.now();
        for client in &mut self.clients {
            client.tcp.reset(&mut self.link, now)?;
        }
        Ok(())
    }
}

pub(super) fn closed(connections: usize) -> Error {
    format!("the server closed {connections} connections").into()
}

pub(super) fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}
