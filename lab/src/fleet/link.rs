//! The fleet's end of the link: sends segments, and polls the queue that receives.
//!
//! Otherwise the server would have to interrupt the fleet's core for what it sends, and would pay
//! for that: with a network between them it does not. A packet socket knows no queue to poll. A TCP
//! connection of the kernel does, so the fleet opens one to the server, sends nothing on it, and
//! polls by reading it.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use policies::host::Interface;
use policies::netlink::netdev::{NapiSetting, Netdev};

use super::config::FleetConfig;
use super::packet_socket::{PacketSender, busy_poll_on_read};
use super::segment::{Segment, SegmentWriter};
use super::tcp::SegmentSink;
use crate::Error;

/// Sends segments, and counts what became of them.
#[derive(Debug)]
pub(super) struct Link {
    sender: PacketSender,
    writer: SegmentWriter,
    epoch: Instant,
    pub(super) counts: LinkCounts,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LinkCounts {
    /// Lost because the server's queue was full.
    pub(super) dropped: u64,
    pub(super) retransmitted: u64,
}

impl Link {
    pub(super) fn open(interface: &Interface, config: &FleetConfig) -> io::Result<Self> {
        // Past the queueing discipline the kernel chooses the queue by the core that sends, otherwise
        // by the packet's flow.
        let bypasses = interface.tx_queues.len() == 1;
        Ok(Self {
            sender: PacketSender::open(interface.index, bypasses)?,
            writer: SegmentWriter::new(config),
            epoch: Instant::now(),
            counts: LinkCounts::default(),
        })
    }

    /// Nanoseconds since the link was opened.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }
}

impl SegmentSink for Link {
    #[inline]
    fn send(&mut self, segment: &Segment<'_>) -> io::Result<()> {
        let sent = self.sender.send(self.writer.write(segment))?;
        self.counts.dropped += u64::from(!sent);
        Ok(())
    }

    fn count_retransmission(&mut self) {
        self.counts.retransmitted += 1;
    }
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// After this time without a poll the kernel polls the queue itself, in ns. Longer than the
/// kernel's tick, so that the timer is never the next one to expire, and setting it with each poll
/// costs little.
const TIMEOUT: u64 = 100_000_000;

/// The queues of an interface. Only one of them is polled: an interface for fleets has one, which
/// each of them polls when no other does.
#[derive(Debug)]
pub(super) struct PolledQueue {
    socket: TcpStream,
    netdev: Netdev,
    napis: Vec<u32>,
}

impl PolledQueue {
    /// Connects to the server, whose answers arrive through the queue.
    pub(super) fn open(interface: Interface, server: SocketAddr) -> Result<Self, Error> {
        let napis = interface.queues.into_iter().filter_map(|queue| queue.napi);
        let napis: Vec<u32> = napis.map(|napi| napi.id).collect();
        if napis.is_empty() {
            let name = interface.name;
            return Err(
                format!("the fleet's interface {name} has no NAPI: a veth has one while GRO is on").into()
            );
        }
        let socket = TcpStream::connect_timeout(&server, CONNECT_TIMEOUT)
            .map_err(|error| format!("no connection to the server at {server}: {error}"))?;
        socket.set_nonblocking(true)?;
        busy_poll_on_read(&socket).map_err(|error| {
            format!("cannot busy-poll the fleet's queue: {error} (it needs CAP_NET_ADMIN)")
        })?;
        let mut queue = Self { socket, netdev: Netdev::open()?, napis };
        queue.take()?;
        Ok(queue)
    }

    /// Keeps the queue's notifications masked from the first poll on. Without both settings, a poll
    /// that finds nothing would unmask them.
    pub(super) fn take(&mut self) -> Result<(), Error> {
        self.set(1, TIMEOUT)
    }

    pub(super) fn release(&mut self) -> Result<(), Error> {
        self.set(0, 0)?;
        // The timer that the last poll has set is as long as the timeout was. This poll sets none,
        // and unmasks.
        self.poll()?;
        Ok(())
    }

    fn set(&mut self, defer_hard_irqs: u64, timeout: u64) -> Result<(), Error> {
        for &napi in &self.napis {
            self.netdev.set_napi(napi, NapiSetting::DeferHardIrqs, defer_hard_irqs)?;
            self.netdev.set_napi(napi, NapiSetting::GroFlushTimeout, timeout)?;
        }
        Ok(())
    }

    /// Receives what the queue holds, at most 64 packets. Returns whether the server keeps the
    /// connection open.
    #[inline]
    pub(super) fn poll(&mut self) -> io::Result<bool> {
        match self.socket.read(&mut [0]) {
            Ok(0) => Ok(false),
            Ok(_) => Ok(true),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => Ok(true),
                io::ErrorKind::ConnectionReset => Ok(false),
                _ => Err(error),
            },
        }
    }
}
