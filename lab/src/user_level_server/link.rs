//! The link layer of the user-level stack: parses and builds Ethernet frames. The kernel answers ARP.

use std::net::Ipv4Addr;

use smoltcp::phy::{Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

/// Bytes of an IP packet at most.
pub(super) const LARGEST_PACKET: usize = 1500;
const ETHERNET_HEADER: usize = 14;
/// Bytes of an IPv4 header without options; the XDP program leaves others to the kernel.
const IP_HEADER: usize = 20;

pub(super) type HardwareAddress = [u8; 6];

/// Sends Ethernet frames.
pub(super) trait FrameSink {
    /// Whether a frame would be taken.
    fn has_room(&mut self) -> bool;
    /// Has `write` fill a frame of `length` bytes, and sends it. It may be lost.
    fn write<R>(&mut self, length: usize, write: impl FnOnce(&mut [u8]) -> R) -> R;
}

/// The other end of a connection, by its address and port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Peer {
    pub(super) address: Ipv4Addr,
    pub(super) port: u16,
}

/// A received TCP segment.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReceivedFrame<'a> {
    pub(super) peer: Peer,
    /// Where the frame came from, and the answers go.
    pub(super) hardware: HardwareAddress,
    /// Whether it asks for a new connection.
    pub(super) opens: bool,
    /// The IP packet.
    pub(super) packet: &'a [u8],
}

impl<'a> ReceivedFrame<'a> {
    /// `None` for what is no TCP segment over IPv4.
    #[inline]
    pub(super) fn parse(frame: &'a [u8]) -> Option<Self> {
        const SYN: u8 = 0x02;
        const ACK: u8 = 0x10;
        let hardware = frame.get(6..12)?.try_into().ok()?;
        let packet = frame.get(ETHERNET_HEADER..)?;
        let address: [u8; 4] = packet.get(12..16)?.try_into().ok()?;
        let tcp = packet.get(IP_HEADER..).filter(|tcp| tcp.len() >= 20)?;
        let flags = tcp[13];
        Some(Self {
            peer: Peer { address: address.into(), port: u16::from_be_bytes([tcp[0], tcp[1]]) },
            hardware,
            opens: flags & (SYN | ACK) == SYN,
            packet,
        })
    }
}

/// The stack's device while one connection is served: it receives the packet that was given, and sends to one peer.
pub(super) struct Port<'a, S> {
    pub(super) received: Option<&'a [u8]>,
    pub(super) sink: &'a mut S,
    pub(super) own: HardwareAddress,
    pub(super) peer: HardwareAddress,
}

pub(super) struct Inbound<'a>(&'a [u8]);

pub(super) struct Outbound<'a, S> {
    sink: &'a mut S,
    own: HardwareAddress,
    peer: HardwareAddress,
}

impl<S: FrameSink> Port<'_, S> {
    fn outbound(&mut self) -> Outbound<'_, S> {
        Outbound { sink: self.sink, own: self.own, peer: self.peer }
    }
}

impl<S: FrameSink> Device for Port<'_, S> {
    type RxToken<'b>
        = Inbound<'b>
    where
        Self: 'b;
    type TxToken<'b>
        = Outbound<'b, S>
    where
        Self: 'b;

    #[inline]
    fn receive(&mut self, _: Instant) -> Option<(Self::RxToken<'_>, Self::TxToken<'_>)> {
        let packet = self.received.take()?;
        Some((Inbound(packet), self.outbound()))
    }

    #[inline]
    fn transmit(&mut self, _: Instant) -> Option<Self::TxToken<'_>> {
        self.sink.has_room().then(|| self.outbound())
    }

    #[inline]
    fn capabilities(&self) -> DeviceCapabilities {
        let mut checksum = ChecksumCapabilities::default();
        // The sender leaves TCP's checksum to the offload of its device, which a veth passes on as it is: as the kernel's
        // stack does, this one does not look at it. It computes its own for what it sends.
        checksum.tcp = Checksum::Tx;
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = LARGEST_PACKET;
        capabilities.checksum = checksum;
        capabilities
    }
}

impl RxToken for Inbound<'_> {
    #[inline]
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(self.0)
    }
}

impl<S: FrameSink> TxToken for Outbound<'_, S> {
    #[inline]
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, write: F) -> R {
        let (own, peer) = (self.own, self.peer);
        self.sink.write(ETHERNET_HEADER + length, |frame| {
            frame[..6].copy_from_slice(&peer);
            frame[6..12].copy_from_slice(&own);
            frame[12..ETHERNET_HEADER].copy_from_slice(&[0x08, 0x00]);
            write(&mut frame[ETHERNET_HEADER..])
        })
    }
}
