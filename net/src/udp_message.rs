//! Datagrams with control messages: the local address of each (`ip(7)`, IP_PKTINFO; `ipv6(7)`, IPV6_PKTINFO).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

use socket2::{SockAddr, SockAddrStorage};

/// Where control messages are: 128 bytes, aligned as their headers, which is more than two of the longest.
type ControlWords = [u64; 16];
const HEADER: usize = size_of::<libc::cmsghdr>();
/// Headers begin at multiples of this (`CMSG_ALIGN`).
const ALIGNMENT: usize = size_of::<usize>();

/// What [`UdpSocket::recv_msg`](crate::UdpSocket::recv_msg) says about a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatagramInfo {
    /// How many bytes of the buffer it has filled.
    pub length: usize,
    /// Whether it was longer than the buffer: the rest is lost.
    pub truncated: bool,
    /// The address and port that it came from.
    pub sender: SocketAddr,
    /// The address of this host that it was sent to. `None` without [`UdpSocket::set_pktinfo`](crate::UdpSocket::set_pktinfo).
    pub local: Option<IpAddr>,
    /// The index of the interface that it came in by. `None` as for `local`.
    pub interface: Option<u32>,
}

/// Receives a datagram, without waiting if the socket is non-blocking.
pub(crate) fn receive(socket: &impl AsFd, buffer: &mut [u8]) -> io::Result<DatagramInfo> {
    let mut control: ControlWords = Default::default();
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let fill = |storage: *mut SockAddrStorage, size: *mut libc::socklen_t| {
        // SAFETY: a `msghdr` has numbers and pointers only, of which zero is a valid value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_name = storage.cast();
        message.msg_namelen = size_of::<SockAddrStorage>() as libc::socklen_t;
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of::<ControlWords>() as _;
        // SAFETY: the kernel writes to `storage`, a local of `try_init`, to `buffer` and to `control`, each within the length
        // beside its pointer. All of them live, and nobody else uses them, until the call returns.
        let length = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, 0) };
        let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
        // SAFETY: `size` is the address of a local of `try_init`, which reads it only after this closure.
        unsafe { *size = message.msg_namelen };
        // Its type depends on the C library.
        let control_length: usize = message.msg_controllen as _;
        Ok((length, message.msg_flags, control_length))
    };
    // SAFETY: the closure returns `Ok` only after `recvmsg` has written the sender's address, and stores its length.
    let ((length, flags, control_length), sender) = unsafe { SockAddr::try_init(fill) }?;
    let sender = sender.as_socket();
    let sender =
        sender.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not an internet address"))?;
    let control: Vec<u8> = control.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let local = find_local(control.get(..control_length).unwrap_or(&control));
    Ok(DatagramInfo {
        length,
        truncated: flags & libc::MSG_TRUNC != 0,
        sender,
        local: local.map(|(address, _)| address),
        interface: local.map(|(_, interface)| interface),
    })
}

/// The local address and the interface among control messages.
fn find_local(mut control: &[u8]) -> Option<(IpAddr, u32)> {
    loop {
        let length = usize::from_ne_bytes(*control.first_chunk()?);
        let fields = control.get(size_of::<usize>()..)?;
        let level = i32::from_ne_bytes(*fields.first_chunk()?);
        let kind = i32::from_ne_bytes(*fields.get(4..)?.first_chunk()?);
        let data = control.get(HEADER..length)?;
        match (level, kind) {
            // `in_pktinfo`: the interface, the local address of a reply, the destination.
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                let address = Ipv4Addr::from(*data.get(8..)?.first_chunk::<4>()?);
                return Some((address.into(), u32::from_ne_bytes(*data.first_chunk()?)));
            }
            // `in6_pktinfo`: the destination, the interface.
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let address = Ipv6Addr::from(*data.first_chunk::<16>()?);
                return Some((address.into(), u32::from_ne_bytes(*data.get(16..)?.first_chunk()?)));
            }
            _ => control = control.get(length.next_multiple_of(ALIGNMENT)..)?,
        }
    }
}

/// Sends a datagram from a local address.
pub(crate) fn send_from(
    socket: &impl AsFd,
    datagram: &[u8],
    to: SocketAddr,
    from: IpAddr,
) -> io::Result<usize> {
    // The kernel ignores the address of another family (`net/ipv4/ip_sockglue.c`, `ip_cmsg_send`).
    let (level, kind, data) = match (to.ip(), from.to_canonical()) {
        (IpAddr::V4(_), IpAddr::V4(from)) => {
            let data = [&[0; 4][..], &from.octets(), &[0; 4]].concat();
            (libc::IPPROTO_IP, libc::IP_PKTINFO, data)
        }
        (IpAddr::V6(to), canonical) if to.to_canonical().is_ipv4() == canonical.is_ipv4() => {
            let from = match canonical {
                IpAddr::V4(from) => from.to_ipv6_mapped(),
                IpAddr::V6(from) => from,
            };
            let data = [&from.octets()[..], &[0; 4]].concat();
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, data)
        }
        _ => {
            let message = "the two addresses of a datagram are of different families";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
    };
    let length = HEADER + data.len();
    let header = [&length.to_ne_bytes()[..], &level.to_ne_bytes(), &kind.to_ne_bytes()].concat();
    let mut control: ControlWords = Default::default();
    for (word, bytes) in control.iter_mut().zip([header, data].concat().chunks(8)) {
        let mut padded = [0; 8];
        padded[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_ne_bytes(padded);
    }
    let to = SockAddr::from(to);
    let mut part = libc::iovec { iov_base: datagram.as_ptr().cast_mut().cast(), iov_len: datagram.len() };
    // SAFETY: a `msghdr` has numbers and pointers only, of which zero is a valid value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = to.as_ptr().cast_mut().cast();
    message.msg_namelen = to.len();
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = length.next_multiple_of(ALIGNMENT) as _;
    // SAFETY: `sendmsg` only reads, from `to`, `datagram` and `control`, each within the length beside its pointer: the
    // control message has at most 40 of the 128 bytes. All of them live until the call returns.
    let sent = unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_messages_that_are_cut_off_or_of_no_length_are_no_address() {
        let mut bytes =
            [&(HEADER + 12).to_ne_bytes()[..], &0_i32.to_ne_bytes(), &8_i32.to_ne_bytes()].concat();
        bytes.extend([3_u32.to_ne_bytes(), [0; 4], [127, 0, 0, 5]].concat());
        assert_eq!(find_local(&bytes), Some((Ipv4Addr::new(127, 0, 0, 5).into(), 3)));
        for cut in 0..bytes.len() {
            assert_eq!(find_local(&bytes[..cut]), None);
        }
        assert_eq!(find_local(&[0; 64]), None);
        // After another message.
        let other = [&HEADER.to_ne_bytes()[..], &1_i32.to_ne_bytes(), &1_i32.to_ne_bytes(), &bytes].concat();
        assert_eq!(find_local(&other), Some((Ipv4Addr::new(127, 0, 0, 5).into(), 3)));
    }
}
