//! TCP segments in IPv4 packets: writing those of the fleet, and parsing those of the server (RFC
//! 9293, RFC 7323).

use std::net::Ipv4Addr;

use super::config::FleetConfig;
use super::packet_socket::OFFLOAD_HEADER;

const ETHERNET_HEADER: usize = 14;
const IP_HEADER: usize = 20;
const TCP_HEADER: usize = 20;
/// Two bytes of padding and a timestamp, which all segments after the first carry.
const TIMESTAMP_OPTION: usize = 12;
/// What the first segment of a connection carries.
const FIRST_OPTIONS: usize = 20;

/// Where the payload of a segment begins in a frame.
const PAYLOAD: usize = OFFLOAD_HEADER + ETHERNET_HEADER + IP_HEADER + TCP_HEADER + TIMESTAMP_OPTION;
/// Bytes of payload of one segment on a link whose packets have at most 1500 bytes.
pub(super) const SEGMENT_PAYLOAD: usize = 1500 - IP_HEADER - TCP_HEADER - TIMESTAMP_OPTION;
/// The fleet's receive window is its field in a segment times 2^7.
const WINDOW_SCALE: u8 = 7;

pub(super) const FIN: u8 = 0x01;
pub(super) const SYN: u8 = 0x02;
pub(super) const RST: u8 = 0x04;
pub(super) const PSH: u8 = 0x08;
pub(super) const ACK: u8 = 0x10;

#[derive(Debug, Clone, Copy)]
pub(super) struct Segment<'a> {
    pub(super) port: u16,
    pub(super) sequence: u32,
    pub(super) acknowledged: u32,
    pub(super) flags: u8,
    /// The sender's clock, in milliseconds.
    pub(super) timestamp: u32,
    /// The other side's last timestamp.
    pub(super) echoed: u32,
    pub(super) payload: &'a [u8],
}

#[derive(Debug)]
pub(super) struct SegmentWriter {
    frame: Vec<u8>,
    /// The sums of what doesn't change, for the checksums.
    ip_sum: u32,
    pseudo_header_sum: u32,
    identification: u16,
}

impl SegmentWriter {
    pub(super) fn new(config: &FleetConfig) -> Self {
        let FleetConfig { link, address, server, .. } = config;
        let mut frame = vec![0; PAYLOAD + SEGMENT_PAYLOAD];
        // struct virtio_net_hdr, in native byte order: the kernel is to complete the checksum, or
        // not to need it.
        frame[0] = 1;
        let header = (ETHERNET_HEADER + IP_HEADER + TCP_HEADER) as u16;
        frame[2..4].copy_from_slice(&header.to_ne_bytes());
        frame[6..8].copy_from_slice(&((ETHERNET_HEADER + IP_HEADER) as u16).to_ne_bytes());
        frame[8..10].copy_from_slice(&16u16.to_ne_bytes());
        let ethernet = &mut frame[OFFLOAD_HEADER..];
        ethernet[..6].copy_from_slice(&link.server_mac);
        ethernet[6..12].copy_from_slice(&link.mac);
        ethernet[12..14].copy_from_slice(&[0x08, 0x00]);
        let ip = &mut ethernet[ETHERNET_HEADER..];
        // Version 4, five words of header; don't fragment; 64 hops; TCP.
        ip[0] = 0x45;
        ip[6] = 0x40;
        ip[8] = 64;
        ip[9] = 6;
        ip[12..16].copy_from_slice(&address.octets());
        ip[16..20].copy_from_slice(&server.ip().octets());
        let ip_sum = sum(&ip[..IP_HEADER]);
        let pseudo_header_sum = sum(&ip[12..20]) + 6;
        ip[22..24].copy_from_slice(&server.port().to_be_bytes());
        Self { frame, ip_sum, pseudo_header_sum, identification: 0 }
    }

    #[inline]
    pub(super) fn write(&mut self, segment: &Segment<'_>) -> &[u8] {
        let first = segment.flags & SYN != 0;
        let options = if first { FIRST_OPTIONS } else { TIMESTAMP_OPTION };
        let tcp_length = TCP_HEADER + options + segment.payload.len();
        let length = IP_HEADER + tcp_length;
        self.identification = self.identification.wrapping_add(1);
        let ip = &mut self.frame[OFFLOAD_HEADER + ETHERNET_HEADER..];
        ip[2..4].copy_from_slice(&(length as u16).to_be_bytes());
        ip[4..6].copy_from_slice(&self.identification.to_be_bytes());
        let checksum = !fold(self.ip_sum + length as u32 + u32::from(self.identification));
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        let tcp = &mut ip[IP_HEADER..];
        tcp[0..2].copy_from_slice(&segment.port.to_be_bytes());
        tcp[4..8].copy_from_slice(&segment.sequence.to_be_bytes());
        tcp[8..12].copy_from_slice(&segment.acknowledged.to_be_bytes());
        tcp[12] = (((TCP_HEADER + options) / 4) as u8) << 4;
        tcp[13] = segment.flags;
        tcp[14..16].copy_from_slice(&u16::MAX.to_be_bytes());
        // With checksum offload the field holds the sum over the pseudo header.
        let checksum = fold(self.pseudo_header_sum + tcp_length as u32);
        tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
        if first {
            let largest = ((SEGMENT_PAYLOAD + TIMESTAMP_OPTION) as u16).to_be_bytes();
            // Largest segment; selective acknowledgements permitted; timestamp; padding; window
            // scale.
            tcp[20..26].copy_from_slice(&[2, 4, largest[0], largest[1], 4, 2]);
            tcp[26..28].copy_from_slice(&[8, 10]);
            tcp[28..32].copy_from_slice(&segment.timestamp.to_be_bytes());
            tcp[32..36].fill(0);
            tcp[36..40].copy_from_slice(&[1, 3, 3, WINDOW_SCALE]);
        } else {
            tcp[20..24].copy_from_slice(&[1, 1, 8, 10]);
            tcp[24..28].copy_from_slice(&segment.timestamp.to_be_bytes());
            tcp[28..32].copy_from_slice(&segment.echoed.to_be_bytes());
            tcp[32..32 + segment.payload.len()].copy_from_slice(segment.payload);
        }
        &self.frame[..OFFLOAD_HEADER + ETHERNET_HEADER + length]
    }
}

/// The sum of 16-bit words, not folded.
fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum()
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReceivedSegment<'a> {
    pub(super) source: Ipv4Addr,
    pub(super) source_port: u16,
    pub(super) port: u16,
    pub(super) sequence: u32,
    pub(super) acknowledged: u32,
    pub(super) flags: u8,
    pub(super) window: u16,
    pub(super) timestamp: Option<u32>,
    pub(super) window_scale: u8,
    pub(super) payload: &'a [u8],
}

/// What can't be read as a TCP segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// Another protocol, or a malformed header.
    NotTcp,
    /// The packet is longer than what was captured of it.
    Truncated,
}

#[inline]
pub(super) fn parse(packet: &[u8]) -> Result<ReceivedSegment<'_>, Unreadable> {
    use Unreadable::{NotTcp, Truncated};
    let word = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let long = |bytes: &[u8], at: usize| {
        u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    };
    if packet.len() < IP_HEADER || packet[0] >> 4 != 4 || packet[9] != 6 {
        return Err(NotTcp);
    }
    let header = usize::from(packet[0] & 0xf) * 4;
    let total = usize::from(word(packet, 2));
    if total > packet.len() {
        return Err(Truncated);
    }
    let tcp = packet.get(header..total).filter(|_| header >= IP_HEADER).ok_or(NotTcp)?;
    if tcp.len() < TCP_HEADER {
        return Err(NotTcp);
    }
    let payload = usize::from(tcp[12] >> 4) * 4;
    let options = tcp.get(TCP_HEADER..payload).ok_or(NotTcp)?;
    let (mut timestamp, mut window_scale) = (None, 0);
    if options.len() == TIMESTAMP_OPTION && options[..4] == [1, 1, 8, 10] {
        timestamp = Some(long(options, 4));
    } else {
        let mut rest = options;
        while let [kind, tail @ ..] = rest {
            rest = match (kind, tail) {
                (0, _) => break,
                (1, _) => tail,
                (_, [length, ..]) => {
                    let length = usize::from(*length);
                    let option = rest.get(..length).filter(|_| length >= 2).ok_or(NotTcp)?;
                    match (kind, length) {
                        (3, 3) => window_scale = option[2],
                        (8, 10) => timestamp = Some(long(option, 2)),
                        _ => {}
                    }
                    &rest[length..]
                }
                _ => return Err(NotTcp),
            };
        }
    }
    Ok(ReceivedSegment {
        source: Ipv4Addr::new(packet[12], packet[13], packet[14], packet[15]),
        source_port: word(tcp, 0),
        port: word(tcp, 2),
        sequence: long(tcp, 4),
        acknowledged: long(tcp, 8),
        flags: tcp[13],
        window: word(tcp, 14),
        timestamp,
        window_scale,
        payload: &tcp[payload..],
    })
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV4;

    use super::*;
    use crate::fleet::{FleetLink, FleetRequests};
    use crate::testbed::{SERVER_ADDRESS, fleet_address};

    fn writer() -> SegmentWriter {
        SegmentWriter::new(&FleetConfig {
            server: SocketAddrV4::new(SERVER_ADDRESS, 11211),
            address: fleet_address(0),
            link: FleetLink::default(),
            connections: 1,
            requests: FleetRequests::Text { request: String::new(), reply: None },
            seed: 0,
        })
    }

    fn segment(flags: u8, payload: &[u8]) -> Segment<'_> {
        Segment { port: 1025, sequence: u32::MAX, acknowledged: 77, flags, timestamp: 5, echoed: 6, payload }
    }

    #[test]
    fn what_is_written_is_parsed_again_and_the_checksum_of_the_header_is_right() {
        let mut writer = writer();
        for (flags, payload, scale) in [(SYN, &b""[..], 7), (ACK | PSH, b"get 0001\r\n", 0), (ACK, b"x", 0)] {
            let frame = writer.write(&segment(flags, payload)).to_vec();
            let packet = &frame[OFFLOAD_HEADER + ETHERNET_HEADER..];
            assert_eq!(fold(sum(&packet[..IP_HEADER])), 0xffff, "{flags}");
            let parsed = parse(packet).unwrap();
            assert_eq!(parsed.payload, payload);
            assert_eq!((parsed.port, parsed.source_port), (11211, 1025));
            assert_eq!(parsed.source.octets()[3], 3);
            assert_eq!((parsed.sequence, parsed.acknowledged, parsed.flags), (u32::MAX, 77, flags));
            assert_eq!((parsed.timestamp, parsed.window_scale), (Some(5), scale));
        }
    }

    #[test]
    fn a_damaged_packet_is_refused_and_never_read_beyond_its_end() {
        let frame = writer().write(&segment(SYN, b"")).to_vec();
        let packet = &frame[OFFLOAD_HEADER + ETHERNET_HEADER..];
        for length in 0..packet.len() {
            assert!(parse(&packet[..length]).is_err(), "{length}");
        }
        for at in 0..packet.len() {
            for value in [0, 1, 0x0f, 0x40, 0xff] {
                let mut damaged = packet.to_vec();
                damaged[at] = value;
                let _ = parse(&damaged);
            }
        }
        let mut longer = packet.to_vec();
        longer[2..4].copy_from_slice(&9000u16.to_be_bytes());
        assert_eq!(parse(&longer), Err(Unreadable::Truncated));
    }
}
