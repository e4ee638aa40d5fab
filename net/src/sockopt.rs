//! The socket options that socket2 has no method for.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

pub(crate) use runtime::__net::{napi_of, peer_credentials, steer_by_queue};
pub(crate) use runtime::io::incoming_napi_id;
use socket2::{SockAddr, SockAddrStorage, Socket, TcpKeepalive};

/// The address of the other side, as accept returned it: also after the peer has reset the
/// connection, where `getpeername` fails (`net/ipv4/af_inet.c`, `inet_getname`).
pub(crate) fn accepted_from(socket: &Socket) -> io::Result<SockAddr> {
    const SO_PEERNAME: libc::c_int = 28;
    // Longer than the address, the call fails with EINVAL (`net/core/sock.c`, `sk_getsockopt`).
    let length = socket.local_addr()?.len().min(size_of::<libc::sockaddr_in6>() as libc::socklen_t);
    let read = |storage: *mut SockAddrStorage, size: *mut libc::socklen_t| {
        // SAFETY: `try_init` calls this closure with the addresses of two of its locals, a zeroed
        // storage and its size, and reads them only after the call (socket2, `sockaddr.rs`): the
        // write is to a live, aligned, unshared value.
        unsafe { *size = length };
        // SAFETY: the pointers are those locals of `try_init`. `size` holds `length`, at most the
        // 28 bytes of a `sockaddr_in6`; the storage has 128, so the kernel writes within it.
        let result = unsafe {
            libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PEERNAME, storage.cast(), size)
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: the closure returns `Ok` only if `getsockopt` has succeeded. Then the kernel has
    // copied an address to the storage, and its length to `size` (`net/core/sock.c`,
    // `sk_getsockopt`, SO_PEERNAME).
    let ((), address) = unsafe { SockAddr::try_init(read) }?;
    Ok(address)
}

/// Which buffers of a socket have a size that was asked for, so that the kernel does not adapt
/// them: the send buffer, and the receive buffer (`SO_BUF_LOCK`, Linux 5.14; earlier kernels report
/// none).
pub(crate) fn locked_buffers(socket: &Socket) -> io::Result<(bool, bool)> {
    const SO_BUF_LOCK: libc::c_int = 72;
    // SAFETY: the option's value is an `int`.
    let flags: libc::c_int = match unsafe { get(socket, libc::SOL_SOCKET, SO_BUF_LOCK, 0) } {
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => 0,
        result => result?,
    };
    // SOCK_SNDBUF_LOCK and SOCK_RCVBUF_LOCK.
    Ok((flags & 1 != 0, flags & 2 != 0))
}

/// Options with an `int` as value that decide which connections a listener accepts, or that accepted
/// sockets inherit.
const INHERITED: [(libc::c_int, libc::c_int); 9] = [
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN),
    (libc::IPPROTO_IP, libc::IP_TOS),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
    (libc::IPPROTO_IP, libc::IP_TRANSPARENT),
    (libc::IPPROTO_IP, libc::IP_FREEBIND),
    (libc::SOL_SOCKET, libc::SO_MARK),
    (libc::SOL_SOCKET, libc::SO_PRIORITY),
];

/// Gives `to` those of [`INHERITED`], and the congestion control, that `from` has otherwise.
pub(crate) fn copy_inherited(from: &Socket, to: &Socket) -> io::Result<()> {
    for (level, option) in INHERITED {
        // SAFETY: the options' values are an `int`.
        let read = |socket: &Socket| unsafe { get(socket, level, option, 0) };
        // A family, or an old kernel, may lack one.
        if let (Ok(wanted), Ok(present)) = (read(from), read(to))
            && wanted != present
        {
            set_int(to, level, option, wanted)?;
        }
    }
    let wanted = from.tcp_congestion()?;
    if wanted != to.tcp_congestion()? {
        let name = wanted.split(|byte| *byte == 0).next().unwrap_or_default();
        to.set_tcp_congestion(name)?;
    }
    Ok(())
}

/// Reads an option into `value`.
///
/// # Safety
/// `T` is what the kernel writes for the option: numbers only.
unsafe fn get<T>(socket: &Socket, level: libc::c_int, option: libc::c_int, mut value: T) -> io::Result<T> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: both pointers are to live values; the kernel writes at most `length` bytes to the
    // first, which is its size, and by the caller's promise any of them are valid.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut value).cast(), &raw mut length)
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Sets when the peer of a connection without traffic is probed; `None`: never.
pub(crate) fn set_keepalive(socket: &Socket, probes: Option<TcpKeepalive>) -> io::Result<()> {
    match probes {
        Some(probes) => socket.set_tcp_keepalive(&probes),
        None => socket.set_keepalive(false),
    }
}

/// Sets how long the kernel busy-polls when the socket is read (`SO_BUSY_POLL`).
pub(crate) fn set_busy_poll(socket: &impl AsFd, time: Duration) {
    let micros = libc::c_int::try_from(time.as_micros()).unwrap_or(libc::c_int::MAX);
    // Refused only by old kernels without CAP_NET_ADMIN; the worker's report names the step down.
    let _ = set_int(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, micros);
}

/// Whether each datagram comes with the address that it was sent to (`IP_PKTINFO`,
/// `IPV6_RECVPKTINFO`).
pub(crate) fn set_pktinfo(socket: &impl AsFd, is_ipv6: bool, on: bool) -> io::Result<()> {
    let (level, option) = match is_ipv6 {
        true => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
        false => (libc::IPPROTO_IP, libc::IP_PKTINFO),
    };
    set_int(socket, level, option, on.into())
}

/// Whether each datagram comes with its traffic class (`IP_RECVTOS`, `IPV6_RECVTCLASS`).
pub(crate) fn set_recv_traffic_class(socket: &impl AsFd, is_ipv6: bool, on: bool) -> io::Result<()> {
    // Also on a socket of IPv6: datagrams of IPv4 that it takes come with the messages of IPv4
    // (`net/ipv6/udp.c`, `udpv6_recvmsg`).
    set_int(socket, libc::IPPROTO_IP, libc::IP_RECVTOS, on.into())?;
    if is_ipv6 { set_int(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, on.into()) } else { Ok(()) }
}

/// Sets an option whose value is an `int`.
pub(crate) fn set_int(
    socket: &impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: `setsockopt` reads `optlen` bytes at `optval`, which are those of `value`, live until
    // it returns. It writes nothing, so a wrong option can only fail.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
