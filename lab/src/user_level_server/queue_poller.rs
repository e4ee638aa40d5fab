//! Busy polling of the interface's queue, by the server's thread.
//!
//! An AF_XDP socket in copy mode can't do it: since Linux 6.14 (`xsk_bind`) only one in zero-copy mode knows the NAPI of its
//! queue. So does a UDP socket that a datagram has come to through the queue: reading it polls the queue, and what it receives
//! runs through the XDP program.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use policies::netlink::netdev::{NapiSetting, Netdev};

use super::spec::PORT;
use crate::fleet::busy_poll_on_read;

/// After this time without a poll the kernel polls the queue itself, in ns. Longer than the kernel's tick, so that the timer
/// is never the next one to expire, and setting it with each poll costs little.
const WATCHDOG: u64 = 100_000_000;
/// How long the datagram is awaited.
const DATAGRAM: Duration = Duration::from_secs(5);

/// Polls a queue, which no interrupt disturbs meanwhile.
#[derive(Debug)]
pub(super) struct QueuePoller(UdpSocket);

impl QueuePoller {
    /// Listens for the datagram, on the server's port.
    pub(super) fn listen(address: Ipv4Addr) -> io::Result<Self> {
        let socket = UdpSocket::bind((address, PORT))?;
        socket.set_read_timeout(Some(DATAGRAM))?;
        Ok(Self(socket))
    }

    /// Awaits a datagram that comes through the queue of one of `napis`. From the first poll on that queue's notifications are
    /// masked.
    pub(super) fn begin(&self, napis: &[u32]) -> io::Result<()> {
        self.0.recv(&mut [0])?;
        let napi = policies::descriptors::incoming_napi_id(&self.0);
        if !napis.contains(&napi) {
            return Err(io::Error::other(format!(
                "the datagram came through NAPI {napi}, and the interface's are {napis:?}"
            )));
        }
        self.0.set_nonblocking(true)?;
        busy_poll_on_read(&self.0)?;
        let mut netdev = Netdev::open().map_err(io::Error::other)?;
        // Without both, a poll that finds nothing would unmask the notifications.
        for (setting, value) in [(NapiSetting::DeferHardIrqs, 1), (NapiSetting::GroFlushTimeout, WATCHDOG)] {
            netdev.set_napi(napi, setting, value).map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// Polls the queue once: it receives 64 packets at most.
    #[inline]
    pub(super) fn poll(&self) -> io::Result<()> {
        match self.0.recv(&mut [0]) {
            Ok(_) => Ok(()),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}
