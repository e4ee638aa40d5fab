//! Datagrams with control messages: local addresses (IP_PKTINFO, IPV6_PKTINFO), congestion marks
//! (IP_TOS, IPV6_TCLASS), and the lengths of datagrams that are received or sent together (UDP_GRO,
//! UDP_SEGMENT). See `ip(7)`, `ipv6(7)`, `udp(7)`.

use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::os::fd::{AsFd, AsRawFd};

use socket2::{MsgHdr, SockAddr, SockAddrStorage, SockRef};

use crate::tcp::internet_address;

/// The size of [`ControlBuffer`] in bytes. All that this crate enables takes 88, and so does all
/// that it sends.
const CAPACITY: usize = 128;
const HEADER: usize = size_of::<libc::cmsghdr>();
/// Headers begin at multiples of this (`CMSG_ALIGN`).
const ALIGNMENT: usize = size_of::<usize>();

/// Where control messages are, aligned as their headers.
#[repr(C, align(8))]
pub(crate) struct ControlBuffer {
    bytes: [u8; CAPACITY],
    length: usize,
}

/// One control message, as `cmsg(3)` describes it: level, type and data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ControlMessage<'a> {
    pub(crate) level: libc::c_int,
    pub(crate) kind: libc::c_int,
    pub(crate) data: &'a [u8],
}

impl ControlBuffer {
    pub(crate) fn new() -> Self {
        Self { bytes: [0; CAPACITY], length: 0 }
    }

    /// Adds a message. Returns whether there was room for it.
    #[must_use]
    pub(crate) fn push(&mut self, message: ControlMessage<'_>) -> bool {
        let length = HEADER + message.data.len();
        let Some(room) = self.bytes.get_mut(self.length..self.length + length.next_multiple_of(ALIGNMENT))
        else {
            return false;
        };
        let header = [&length.to_ne_bytes()[..], &message.level.to_ne_bytes(), &message.kind.to_ne_bytes()];
        let parts = header.into_iter().chain([message.data]).flatten();
        room.iter_mut().zip(parts).for_each(|(byte, part)| *byte = *part);
        self.length += room.len();
        true
    }

    /// All messages, with the padding after each.
    pub(crate) fn written(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.length]
    }

    /// The whole buffer, for the kernel to fill.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The messages in the first `length` bytes. They end at one that is cut off or not valid.
    pub(crate) fn messages(&self, length: usize) -> impl Iterator<Item = ControlMessage<'_>> {
        messages(self.bytes.get(..length).unwrap_or(&self.bytes))
    }
}

fn messages(mut control: &[u8]) -> impl Iterator<Item = ControlMessage<'_>> {
    std::iter::from_fn(move || {
        let length = usize::from_ne_bytes(*control.first_chunk()?);
        let fields = control.get(size_of::<usize>()..)?;
        let level = libc::c_int::from_ne_bytes(*fields.first_chunk()?);
        let kind = libc::c_int::from_ne_bytes(*fields.get(4..)?.first_chunk()?);
        let data = control.get(HEADER..length)?;
        control = control.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        Some(ControlMessage { level, kind, data })
    })
}

/// Explicit congestion notification: the last two bits of an IP packet's traffic class (RFC 3168).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Ecn {
    /// `0b00`: the sender doesn't react to marks, so routers drop packets instead.
    NotEct = 0,
    /// `0b01`: the sender reacts to marks as L4S asks for (RFC 9331).
    Ect1 = 1,
    /// `0b10`: the sender reacts to marks.
    Ect0 = 2,
    /// `0b11`: a router on the way has been congested.
    Ce = 3,
}

impl Ecn {
    fn of_traffic_class(class: u8) -> Self {
        match class & 0b11 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }
}

/// What [`UdpSocket::recv_msg`](crate::UdpSocket::recv_msg) says about a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatagramInfo {
    /// How many bytes of the buffer it has filled.
    pub length: usize,
    /// Whether it was longer than the buffer: the rest is lost. Of several datagrams
    /// ([`segment_size`](Self::segment_size)) those are lost that did not fit.
    pub truncated: bool,
    /// The address and port that it came from.
    pub sender: SocketAddr,
    /// The address of this host that it was sent to. `None` without
    /// [`UdpSocket::set_pktinfo`](crate::UdpSocket::set_pktinfo).
    pub local: Option<IpAddr>,
    /// The index of the interface that it came in by. `None` as for `local`.
    pub interface: Option<u32>,
    /// The congestion mark of its packet. `None` without
    /// [`UdpSocket::set_recv_ecn`](crate::UdpSocket::set_recv_ecn).
    pub ecn: Option<Ecn>,
    /// The buffer has several datagrams of this length in bytes, of which the last may be shorter
    /// ([`datagrams`](Self::datagrams) splits them). `None`: one datagram, as always without
    /// [`UdpSocket::set_gro`](crate::UdpSocket::set_gro).
    pub segment_size: Option<NonZeroU16>,
    /// The kernel had more to say than there was room for: `local`, `interface`, `ecn` or
    /// `segment_size` may be missing although they are asked for. Happens only if other options of
    /// the socket were set through its descriptor.
    #[doc(alias = "MSG_CTRUNC")]
    pub control_truncated: bool,
}

impl DatagramInfo {
    /// The datagrams that were received into `buffer`, which is the one of the call, in order. None
    /// if the datagram is empty.
    pub fn datagrams<'a>(&self, buffer: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let bytes = &buffer[..self.length.min(buffer.len())];
        bytes.chunks(self.segment_size.map_or(self.length.max(1), |size| size.get().into()))
    }

    /// How many datagrams were received: an empty one is one.
    pub(crate) fn count(&self) -> usize {
        self.segment_size.map_or(1, |size| self.length.div_ceil(size.get().into()).max(1))
    }

    /// Of a received message: its length and flags, and what of the control buffer was filled.
    pub(crate) fn new(
        (length, flags): (usize, libc::c_int),
        sender: SocketAddr,
        control: &ControlBuffer,
        control_length: usize,
    ) -> Self {
        let mut info = Self {
            length,
            truncated: flags & libc::MSG_TRUNC != 0,
            sender,
            local: None,
            interface: None,
            ecn: None,
            segment_size: None,
            control_truncated: flags & libc::MSG_CTRUNC != 0,
        };
        for message in control.messages(control_length) {
            if info.add(&message).is_none() {
                // Cut off: the kernel shortens the last message to what fits (`net/core/scm.c`,
                // `put_cmsg`).
                info.control_truncated = true;
            }
        }
        info
    }

    fn add(&mut self, message: &ControlMessage<'_>) -> Option<()> {
        let data = message.data;
        match (message.level, message.kind) {
            // `in_pktinfo`: the interface, the local address of a reply, the destination.
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                let address = Ipv4Addr::from(*data.get(8..)?.first_chunk::<4>()?);
                self.local = Some(address.into());
                self.interface = Some(u32::from_ne_bytes(*data.first_chunk()?));
            }
            // `in6_pktinfo`: the destination, the interface.
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let interface = u32::from_ne_bytes(*data.get(16..)?.first_chunk()?);
                self.local = Some(Ipv6Addr::from(*data.first_chunk::<16>()?).into());
                self.interface = Some(interface);
            }
            // A byte (`net/ipv4/ip_sockglue.c`, `ip_cmsg_recv_tos`).
            (libc::IPPROTO_IP, libc::IP_TOS) => self.ecn = Some(Ecn::of_traffic_class(*data.first()?)),
            // An int (`net/ipv6/datagram.c`, `ip6_datagram_recv_specific_ctl`).
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                let class = libc::c_int::from_ne_bytes(*data.first_chunk()?);
                self.ecn = Some(Ecn::of_traffic_class(class.to_le_bytes()[0]));
            }
            // An int (`include/linux/udp.h`, `udp_cmsg_recv`).
            (libc::SOL_UDP, libc::UDP_GRO) => {
                let size = libc::c_int::from_ne_bytes(*data.first_chunk()?);
                self.segment_size = u16::try_from(size).ok().and_then(NonZeroU16::new);
            }
            _ => {}
        }
        Some(())
    }
}

/// How [`UdpSocket::send_msg`](crate::UdpSocket::send_msg) sends a datagram.
///
/// ```
/// use net::{Ecn, SendOptions};
///
/// let options = SendOptions::new().from([192, 0, 2, 1].into()).ecn(Ecn::Ect0);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[must_use = "options do nothing until a datagram is sent with them"]
pub struct SendOptions {
    from: Option<IpAddr>,
    ecn: Option<Ecn>,
    segment_size: Option<NonZeroU16>,
}

impl SendOptions {
    /// As the socket is set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sends from one of this host's addresses, as [`DatagramInfo::local`] names it.
    #[doc(alias = "IP_PKTINFO")]
    #[doc(alias = "IPV6_PKTINFO")]
    pub fn from(mut self, address: IpAddr) -> Self {
        self.from = Some(address);
        self
    }

    /// Marks the packet. The rest of its traffic class (DSCP) is 0, whatever the socket has set
    /// (`IP_TOS`, `IPV6_TCLASS`).
    #[doc(alias = "IP_TOS")]
    #[doc(alias = "IPV6_TCLASS")]
    pub fn ecn(mut self, ecn: Ecn) -> Self {
        self.ecn = Some(ecn);
        self
    }

    /// Sends the bytes of this call as datagrams of this length, as
    /// [`UdpSocket::set_segment_size`](crate::UdpSocket::set_segment_size) does for all calls.
    #[doc(alias = "UDP_SEGMENT")]
    pub fn segment_size(mut self, bytes: NonZeroU16) -> Self {
        self.segment_size = Some(bytes);
        self
    }

    /// Writes the control messages for a datagram to this address.
    pub(crate) fn control(&self, to: IpAddr) -> io::Result<ControlBuffer> {
        let mut control = ControlBuffer::new();
        let mut fits = true;
        match self.from.map(|from| (to, from.to_canonical())) {
            None => {}
            // The kernel ignores the address of another family (`net/ipv4/ip_sockglue.c`,
            // `ip_cmsg_send`).
            Some((IpAddr::V4(_), IpAddr::V4(from))) => {
                let data = &[&[0; 4][..], &from.octets(), &[0; 4]].concat();
                fits &=
                    control.push(ControlMessage { level: libc::IPPROTO_IP, kind: libc::IP_PKTINFO, data });
            }
            Some((IpAddr::V6(to), from)) if to.to_canonical().is_ipv4() == from.is_ipv4() => {
                let from = match from {
                    IpAddr::V4(from) => from.to_ipv6_mapped(),
                    IpAddr::V6(from) => from,
                };
                let data = &[&from.octets()[..], &[0; 4]].concat();
                let (level, kind) = (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO);
                fits &= control.push(ControlMessage { level, kind, data });
            }
            Some(_) => {
                let message = "the two addresses of a datagram are of different families";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
            }
        }
        if let Some(ecn) = self.ecn {
            // A datagram to a mapped address is one of IPv4, for which only IP_TOS counts
            // (`net/ipv6/udp.c`, `udpv6_sendmsg`).
            let (level, kind) = match to.to_canonical() {
                IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS),
                IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
            };
            let data = &libc::c_int::from(ecn as u8).to_ne_bytes();
            fits &= control.push(ControlMessage { level, kind, data });
        }
        if let Some(size) = self.segment_size {
            let data = &size.get().to_ne_bytes();
            fits &= control.push(ControlMessage { level: libc::SOL_UDP, kind: libc::UDP_SEGMENT, data });
        }
        debug_assert!(fits, "the buffer has room for one message of each kind");
        Ok(control)
    }
}

/// The header of a message: its address, its part, and its control messages or the room for them.
pub(crate) fn header(
    (address, length): (*mut libc::c_void, libc::socklen_t),
    part: &mut libc::iovec,
    control: &mut [u8],
) -> libc::msghdr {
    // SAFETY: a `msghdr` has numbers and pointers only, of which zero is a valid value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_name, message.msg_namelen) = (address, length);
    (message.msg_iov, message.msg_iovlen) = (part, 1);
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = control.len() as _;
    message
}

/// Receives a datagram, without waiting if the socket is non-blocking.
pub(crate) fn receive(socket: &impl AsFd, buffer: &mut [u8]) -> io::Result<DatagramInfo> {
    let mut control = ControlBuffer::new();
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let fill = |storage: *mut SockAddrStorage, size: *mut libc::socklen_t| {
        let length = size_of::<SockAddrStorage>() as libc::socklen_t;
        let mut message = header((storage.cast(), length), &mut part, control.bytes_mut());
        // SAFETY: the kernel writes to `storage`, a local of `try_init`, to `buffer` and to
        // `control`, each within the length beside its pointer. All of them live, and nobody else
        // uses them, until the call returns.
        let length = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, 0) };
        let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
        // SAFETY: `size` is the address of a local of `try_init`, which reads it only after this
        // closure.
        unsafe { *size = message.msg_namelen };
        // Its type depends on the C library.
        let control_length: usize = message.msg_controllen as _;
        Ok((length, message.msg_flags, control_length))
    };
    // SAFETY: the closure returns `Ok` only after `recvmsg` has written the sender's address, and
    // stores its length.
    let ((length, flags, control_length), sender) = unsafe { SockAddr::try_init(fill) }?;
    let sender = internet_address(&sender)?;
    Ok(DatagramInfo::new((length, flags), sender, &control, control_length))
}

/// Sends a datagram with `sendmsg(2)`, with the options as control messages.
pub(crate) fn send(
    socket: &impl AsFd,
    datagram: &[u8],
    to: SocketAddr,
    options: &SendOptions,
) -> io::Result<usize> {
    let mut control = options.control(to.ip())?;
    let (to, part) = (SockAddr::from(to), [IoSlice::new(datagram)]);
    let message = MsgHdr::new().with_addr(&to).with_buffers(&part).with_control(control.written());
    SockRef::from(socket).sendmsg(&message, libc::MSG_NOSIGNAL)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::sockopt;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let written = [
            ControlMessage { level: 0, kind: 8, data: &[1; 12] },
            ControlMessage { level: 17, kind: 104, data: &[] },
            ControlMessage { level: 41, kind: 67, data: &[2; 5] },
        ];
        let mut buffer = ControlBuffer::new();
        assert!(written.iter().all(|message| buffer.push(*message)));
        assert!(buffer.messages(buffer.length).eq(written));
        assert!(!buffer.push(ControlMessage { level: 0, kind: 0, data: &[0; CAPACITY] }));
        assert!(buffer.messages(buffer.length).eq(written));
    }

    #[test]
    fn messages_that_are_cut_off_or_of_no_length_end_the_list() {
        let mut buffer = ControlBuffer::new();
        assert!(buffer.push(ControlMessage { level: 1, kind: 1, data: &[] }));
        let first = buffer.length;
        assert!(buffer.push(ControlMessage { level: 0, kind: 8, data: &[3; 12] }));
        // The last padding need not be there.
        assert_eq!(buffer.messages(first + HEADER + 12).count(), 2);
        for cut in first..first + HEADER + 12 {
            assert_eq!(buffer.messages(cut).count(), 1);
        }
        assert_eq!(messages(&[0; 64]).count(), 0);
        assert_eq!(messages(&[0xff; 64]).count(), 0);
    }

    fn info() -> DatagramInfo {
        DatagramInfo {
            length: 25,
            truncated: false,
            sender: SocketAddr::from(([192, 0, 2, 1], 53)),
            local: None,
            interface: None,
            ecn: None,
            segment_size: None,
            control_truncated: false,
        }
    }

    #[test]
    fn a_message_of_several_datagrams_counts_each() {
        let count = |length, segment| {
            DatagramInfo { length, segment_size: NonZeroU16::new(segment), ..info() }.count()
        };
        assert_eq!([count(25, 0), count(0, 0), count(25, 10), count(20, 10)], [1, 1, 3, 2]);
    }

    #[test]
    fn a_message_that_is_cut_off_tells_nothing() {
        let messages = [
            (libc::IPPROTO_IP, libc::IP_PKTINFO, 12),
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, 20),
            (libc::IPPROTO_IP, libc::IP_TOS, 1),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, 4),
            (libc::SOL_UDP, libc::UDP_GRO, 4),
        ];
        for (level, kind, length) in messages {
            let bytes = [1; 20];
            let mut told = info();
            assert_eq!(told.add(&ControlMessage { level, kind, data: &bytes[..length] }), Some(()));
            // A GRO of 0x01010101 bytes is none; the others are something.
            assert_eq!(told == info(), kind == libc::UDP_GRO);
            for cut in 0..length {
                let mut told = info();
                assert_eq!(told.add(&ControlMessage { level, kind, data: &bytes[..cut] }), None);
                assert_eq!(told, info());
            }
        }
    }

    #[test]
    fn datagrams_are_split_at_the_segment_size() {
        let buffer = [7; 30];
        let lengths = |info: DatagramInfo| info.datagrams(&buffer).map(<[u8]>::len).collect::<Vec<_>>();
        assert_eq!(lengths(info()), [25]);
        assert_eq!(lengths(DatagramInfo { segment_size: NonZeroU16::new(10), ..info() }), [10, 10, 5]);
        assert_eq!(lengths(DatagramInfo { length: 0, ..info() }), [0; 0]);
        assert_eq!(lengths(DatagramInfo { length: 100, ..info() }), [30]);
    }
    #[test]
    fn control_data_without_room_is_told() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(socket.local_addr().unwrap()).unwrap();
        sockopt::set_pktinfo(&socket, false, true).unwrap();
        sockopt::set_recv_traffic_class(&socket, false, true).unwrap();
        let receive = || {
            socket.send(b"x").unwrap();
            receive(&socket, &mut [0; 4]).unwrap()
        };
        let whole = receive();
        assert_eq!((whole.ecn, whole.control_truncated), (Some(Ecn::NotEct), false));
        // Timestamps, which come before, and which nobody reads.
        sockopt::set_int(&socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1).unwrap();
        let software = libc::SOF_TIMESTAMPING_RX_SOFTWARE | libc::SOF_TIMESTAMPING_SOFTWARE;
        sockopt::set_int(&socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, software as libc::c_int).unwrap();
        let cut = receive();
        assert_eq!((cut.length, cut.truncated, cut.ecn), (1, false, None));
        assert!(cut.control_truncated);
    }
}
