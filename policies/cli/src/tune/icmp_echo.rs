//! Measures round trips by ICMP echo, which include the delay of the receive interrupt.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto, sockopt};

/// Sends ICMP echo requests to one address.
pub struct Pinger {
    socket: OwnedFd,
    address: SocketAddr,
    /// Whether the socket delivers packets with their IP header.
    raw: bool,
    sequence: u16,
}

const IDENTIFIER: u16 = 0x4c75;
/// The length of an ICMP echo header.
const HEADER: usize = 8;
const REPLY_TIMEOUT: Duration = Duration::from_millis(200);

impl Pinger {
    /// Opens an ICMP datagram socket if the host allows it (`ping_group_range`), else a raw socket.
    pub fn new(address: IpAddr) -> io::Result<Self> {
        let (family, protocol) = match address {
            IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP),
            IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6),
        };
        let open = |kind| rustix::net::socket(family, kind, Some(protocol));
        let (socket, raw) = match open(SocketType::DGRAM) {
            Ok(socket) => (socket, false),
            Err(_) => (open(SocketType::RAW)?, true),
        };
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(REPLY_TIMEOUT))?;
        Ok(Self { socket, address: SocketAddr::new(address, 0), raw, sequence: 0 })
    }

    /// Measures one round trip; `None` if no reply arrived within 200 ms.
    pub fn round_trip(&mut self) -> io::Result<Option<Duration>> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = self.request();
        let sent = Instant::now();
        rustix::net::sendto(&self.socket, &request, SendFlags::empty(), &self.address)?;
        let mut buffer = [0u8; 256];
        loop {
            match rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((length, _)) if self.is_reply(&buffer[..length]) => return Ok(Some(sent.elapsed())),
                Ok(_) if sent.elapsed() < REPLY_TIMEOUT => {}
                Ok(_) | Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn request(&self) -> [u8; HEADER] {
        let kind = if self.address.is_ipv4() { 8 } else { 128 };
        let [id_high, id_low] = IDENTIFIER.to_be_bytes();
        let [high, low] = self.sequence.to_be_bytes();
        let mut packet = [kind, 0, 0, 0, id_high, id_low, high, low];
        // The kernel computes the ICMPv6 checksum, which covers a pseudo-header.
        if self.address.is_ipv4() {
            let sum: u32 =
                packet.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
            let folded = (sum & 0xffff) + (sum >> 16);
            packet[2..4].copy_from_slice(&(!(folded as u16)).to_be_bytes());
        }
        packet
    }

    fn is_reply(&self, packet: &[u8]) -> bool {
        // A raw IPv4 socket includes the IP header, with its length in 32-bit words in the first byte.
        let header = match packet.first() {
            Some(first) if self.raw && self.address.is_ipv4() => usize::from(first & 15) * 4,
            _ => 0,
        };
        let kind = if self.address.is_ipv4() { 0 } else { 129 };
        packet.get(header..).is_some_and(|packet| {
            packet.len() >= HEADER && packet[0] == kind && packet[6..8] == self.sequence.to_be_bytes()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_replies_to_each_echo_request() {
        for address in ["127.0.0.1", "::1"] {
            // This process may be allowed neither kind of socket, and IPv6 may be disabled.
            let Ok(mut pinger) = Pinger::new(address.parse().unwrap()) else { continue };
            match pinger.round_trip() {
                Ok(time) => assert!(time.unwrap() < REPLY_TIMEOUT, "{address}"),
                Err(error) => eprintln!("skipped: {address}: {error}"),
            }
        }
    }
}
