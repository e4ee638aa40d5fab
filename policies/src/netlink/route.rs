//! rtnetlink: links and addresses.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Connection, Request};

/// A network interface as rtnetlink lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its index in this network namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Whether it is administratively up.
    pub up: bool,
    /// What kind of virtual device it is (`veth`, `bridge`, …); `None` for hardware.
    pub kind: Option<String>,
    /// Packets received since the interface was made.
    pub rx_packets: Option<u64>,
    /// Packets that could not be sent; on a veth those that found the peer's receive ring full.
    pub tx_dropped: Option<u64>,
}

/// Lists the interfaces of this thread's network namespace.
pub fn links() -> io::Result<Vec<Link>> {
    let mut connection = Connection::open(NETLINK_ROUTE)?;
    let answers = connection.request(RouteNetlinkMessage::GetLink(LinkMessage::default()), Request::Dump)?;
    Ok(answers
        .into_iter()
        .filter_map(|answer| match answer {
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

/// The addresses of this thread's network namespace, with the index of their interface.
pub fn addresses() -> io::Result<Vec<(u32, IpAddr)>> {
    let mut connection = Connection::open(NETLINK_ROUTE)?;
    let answers =
        connection.request(RouteNetlinkMessage::GetAddress(AddressMessage::default()), Request::Dump)?;
    Ok(answers
        .into_iter()
        .filter_map(|answer| match answer {
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

/// Hears when a link of this thread's network namespace changes.
#[derive(Debug)]
pub struct LinkMonitor(Socket);

/// `RTNLGRP_LINK`
const LINKS: u32 = 1;

impl LinkMonitor {
    /// Starts to listen.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.set_non_blocking(true)?;
        socket.add_membership(LINKS)?;
        Ok(Self(socket))
    }

    /// Waits for so long; says whether anything has changed, and forgets what.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(false),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut buffer = Vec::with_capacity(32 << 10);
        loop {
            buffer.clear();
            match self.0.recv(&mut buffer, 0) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                // More came than fitted: something has changed for sure.
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) => {}
                Err(error) => return Err(error),
            }
        }
    }
}
