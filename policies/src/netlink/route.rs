//! rtnetlink: links and addresses.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Connection, Request};

/// A network interface as rtnetlink reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Link {
    /// The interface index in the network namespace.
    pub index: u32,
    /// For example `eth0`.
    pub name: String,
    /// Whether it is administratively up.
    pub up: bool,
    /// The kind of a virtual device (`veth`, `bridge`, …); `None` for hardware.
    pub kind: Option<String>,
    /// Packets received since the interface was created.
    pub rx_packets: Option<u64>,
    /// Packets dropped on transmit; on a veth, because the peer's receive ring was full.
    pub tx_dropped: Option<u64>,
}

/// Lists the interfaces of the calling thread's network namespace.
///
/// # Errors
/// As [`Connection::open`] and [`Connection::request`].
pub fn links() -> io::Result<Vec<Link>> {
    let mut connection = Connection::open(NETLINK_ROUTE)?;
    let replies = connection.request(RouteNetlinkMessage::GetLink(LinkMessage::default()), Request::Dump)?;
    Ok(replies
        .into_iter()
        .filter_map(|reply| match reply {
            RouteNetlinkMessage::NewLink(link) => parse_link(link),
            _ => None,
        })
        .collect())
}

fn parse_link(message: LinkMessage) -> Option<Link> {
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        up: message.header.flags.contains(LinkFlags::Up),
        kind: None,
        rx_packets: None,
        tx_dropped: None,
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::Stats64(stats) => {
                link.rx_packets = Some(stats.rx_packets);
                link.tx_dropped = Some(stats.tx_dropped);
            }
            LinkAttribute::LinkInfo(infos) => {
                link.kind = infos.into_iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    (!link.name.is_empty()).then_some(link)
}

/// The addresses of the calling thread's network namespace, with the index of their interface.
///
/// # Errors
/// As [`Connection::open`] and [`Connection::request`].
pub fn addresses() -> io::Result<Vec<(u32, IpAddr)>> {
    let mut connection = Connection::open(NETLINK_ROUTE)?;
    let replies =
        connection.request(RouteNetlinkMessage::GetAddress(AddressMessage::default()), Request::Dump)?;
    Ok(replies
        .into_iter()
        .filter_map(|reply| match reply {
            RouteNetlinkMessage::NewAddress(message) => {
                let index = message.header.index;
                // IFA_LOCAL is the interface's own address; IFA_ADDRESS is the peer's on a
                // point-to-point link, and the only one given for IPv6.
                let local = message.attributes.iter().find_map(|attribute| match attribute {
                    AddressAttribute::Local(address) => Some(*address),
                    _ => None,
                });
                let address = local.or_else(|| {
                    message.attributes.iter().find_map(|attribute| match attribute {
                        AddressAttribute::Address(address) => Some(*address),
                        _ => None,
                    })
                })?;
                Some((index, address))
            }
            _ => None,
        })
        .collect())
}

/// What ended a wait of a [`LinkMonitor`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// An interface has changed.
    LinkChange,
    /// The other descriptor can be read.
    Other,
    /// The timeout is over, or a signal came.
    Timeout,
}

/// Notifies of changes to links of the network namespace in which it was opened.
#[derive(Debug)]
pub struct LinkMonitor(Socket);

/// `RTNLGRP_LINK`
const LINKS: u32 = 1;

impl LinkMonitor {
    /// Subscribes to link changes.
    ///
    /// # Errors
    /// If the socket can't be opened or join the multicast group.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.set_non_blocking(true)?;
        socket.add_membership(LINKS)?;
        Ok(Self(socket))
    }

    /// Waits for a change, until `other` can be read, or to the end of `timeout`. Discards the messages of changes.
    ///
    /// # Errors
    /// The error of `poll(2)` or of reading the socket.
    pub fn wait_with(&self, other: BorrowedFd<'_>, timeout: Duration) -> io::Result<Woken> {
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        let mut descriptors =
            [PollFd::new(&self.0, PollFlags::IN), PollFd::from_borrowed_fd(other, PollFlags::IN)];
        match poll(&mut descriptors, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(Woken::Timeout),
            Ok(_) if descriptors[0].revents().is_empty() => return Ok(Woken::Other),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut buffer = Vec::with_capacity(32 << 10);
        loop {
            buffer.clear();
            match self.0.recv(&mut buffer, 0) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Woken::LinkChange),
                // The socket's buffer overflowed, so there were changes.
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) => {}
                Err(error) => return Err(error),
            }
        }
    }
}
