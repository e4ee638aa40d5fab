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
    ///
    /// # Errors
    /// What could not be done, and what it needs where the kernel's error says so.
    pub(super) fn begin(&self, napis: &[u32]) -> Result<(), String> {
        let received = self.0.recv(&mut [0]);
        received.map_err(|error| format!("no datagram came through it within {DATAGRAM:?}: {error}"))?;
        let napi = policies::descriptors::incoming_napi_id(&self.0);
        if !napis.contains(&napi) {
            return Err(format!("the datagram came through NAPI {napi}, and the interface's are {napis:?}"));
        }
        self.0.set_nonblocking(true).map_err(|error| error.to_string())?;
        busy_poll_on_read(&self.0).map_err(|error| with_need(&error))?;
        let mut netdev = Netdev::open().map_err(|error| with_need(&error))?;
        // Without both, a poll that finds nothing would unmask the notifications.
        for (setting, value) in [(NapiSetting::DeferHardIrqs, 1), (NapiSetting::GroFlushTimeout, WATCHDOG)] {
            netdev.set_napi(napi, setting, value).map_err(|error| with_need(&error))?;
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

/// An error, with what the step needs if that is what the error says.
fn with_need(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => format!("{error}; it needs CAP_NET_ADMIN"),
        // Older kernels know neither the netlink command nor the option.
        Some(libc::EOPNOTSUPP | libc::ENOPROTOOPT) => format!("{error}; it needs Linux 6.13"),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_that_say_so_name_a_permission_or_a_kernel() {
        let text = |errno| with_need(&io::Error::from_raw_os_error(errno));
        assert!(text(libc::EPERM).ends_with("it needs CAP_NET_ADMIN"));
        assert!(text(libc::EOPNOTSUPP).ends_with("it needs Linux 6.13"));
        for errno in [libc::ENODEV, libc::EINVAL, libc::EAGAIN] {
            assert!(!text(errno).contains("needs"), "{}", text(errno));
        }
    }
}
