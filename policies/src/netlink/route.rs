//! rtnetlink: links and addresses.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::message::{Attribute, attributes, read_u32};
use super::{Connection, Request};

/// `RTM_NEWLINK`, `RTM_GETLINK`, `RTM_NEWADDR`, `RTM_GETADDR` (`include/uapi/linux/rtnetlink.h`).
const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const GET_ADDRESS: u16 = 22;

/// `struct ifinfomsg` and its attributes (`include/uapi/linux/if_link.h`).
mod link {
    pub const HEADER: usize = 16;
    pub const INDEX_AT: usize = 4;
    pub const FLAGS_AT: usize = 8;
    /// `IFF_UP`
    pub const UP: u32 = 1;
    pub const NAME: u16 = 3;
    pub const INFO: u16 = 18;
    pub const PHYSICAL_PORT_NAME: u16 = 38;
    pub const PROPERTIES: u16 = 52;
    /// `IFLA_ALT_IFNAME`, in [`PROPERTIES`].
    pub const ALTERNATIVE_NAME: u16 = 53;
    pub const PERMANENT_ADDRESS: u16 = 54;
    pub const GRO_IPV4_MAX_SIZE: u16 = 64;
    /// `IFLA_INFO_KIND`, in [`INFO`].
    pub const INFO_KIND: u16 = 1;
    /// `struct rtnl_link_stats64`: counters of 8 bytes.
    pub const STATISTICS: u16 = 23;
    pub const RX_PACKETS: usize = 0;
    pub const TX_DROPPED: usize = 7;
}

/// `struct ifaddrmsg` and its attributes (`include/uapi/linux/if_addr.h`).
mod address {
    pub const HEADER: usize = 8;
    pub const INDEX_AT: usize = 4;
    pub const ADDRESS: u16 = 1;
    pub const LOCAL: u16 = 2;
}

/// A network interface as rtnetlink reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Link {
    pub index: u32,
    /// For example `eth0`.
    pub name: String,
    /// Those of `ip link property add … altname`, of which udev sets some.
    pub alternative_names: Vec<String>,
    pub up: bool,
    /// The kind of a virtual device (`veth`, `bridge`, …); `None` for hardware.
    pub kind: Option<String>,
    /// The address that the card has by itself; `None` for a device whose address was given to it.
    pub permanent_address: Option<Vec<u8>>,
    /// The name of its port on the card, if the driver gives one (`p0`, `pf0vf1`).
    pub port_name: Option<String>,
    /// Packets received since the interface was created.
    pub rx_packets: Option<u64>,
    /// Packets dropped on transmit; on a veth, because the peer's receive ring was full.
    pub tx_dropped: Option<u64>,
    /// The size up to which GRO merges packets of IPv4, in bytes. `None` before Linux 6.3.
    pub gro_ipv4_max_size: Option<u32>,
}

/// Lists the interfaces of the calling thread's network namespace.
pub fn links() -> io::Result<Vec<Link>> {
    let mut connection = Connection::open(NETLINK_ROUTE)?;
    let replies = connection.request(GET_LINK, &[0; link::HEADER], Request::Dump)?;
    let links = replies.iter().filter(|reply| reply.kind == NEW_LINK);
    Ok(links.filter_map(|reply| parse_link(&reply.body)).collect())
}

fn parse_link(body: &[u8]) -> Option<Link> {
    let attributes = attributes(body.get(link::HEADER..)?);
    let find = |kind| attributes.iter().find(|attribute| attribute.kind() == kind);
    let counter = |number: usize| {
        let statistics = find(link::STATISTICS)?.value();
        Some(u64::from_ne_bytes(statistics.get(number * 8..number * 8 + 8)?.try_into().ok()?))
    };
    let info = find(link::INFO).map(Attribute::inner).unwrap_or_default();
    let properties = find(link::PROPERTIES).map(Attribute::inner).unwrap_or_default();
    let is_name = |attribute: &&Attribute| attribute.kind() == link::ALTERNATIVE_NAME;
    let kind = info.iter().find(|attribute| attribute.kind() == link::INFO_KIND);
    Some(Link {
        index: read_u32(body, link::INDEX_AT)?,
        name: find(link::NAME)?.as_text(),
        alternative_names: properties.iter().filter(is_name).map(Attribute::as_text).collect(),
        up: read_u32(body, link::FLAGS_AT)? & link::UP != 0,
        kind: kind.map(Attribute::as_text),
        permanent_address: find(link::PERMANENT_ADDRESS).map(|address| address.value().to_vec()),
        port_name: find(link::PHYSICAL_PORT_NAME).map(Attribute::as_text),
        rx_packets: counter(link::RX_PACKETS),
        tx_dropped: counter(link::TX_DROPPED),
        gro_ipv4_max_size: find(link::GRO_IPV4_MAX_SIZE).and_then(|it| read_u32(it.value(), 0)),
    })
}

/// The addresses of the calling thread's network namespace, with the index of their interface.
pub fn addresses() -> io::Result<Vec<(u32, IpAddr)>> {
    let mut connection = Connection::open(NETLINK_ROUTE)?;
    let replies = connection.request(GET_ADDRESS, &[0; address::HEADER], Request::Dump)?;
    let addresses = replies.iter().filter(|reply| reply.kind == NEW_ADDRESS);
    Ok(addresses.filter_map(|reply| parse_address(&reply.body)).collect())
}

fn parse_address(body: &[u8]) -> Option<(u32, IpAddr)> {
    let attributes = attributes(body.get(address::HEADER..)?);
    let find = |kind| attributes.iter().find(|attribute| attribute.kind() == kind);
    // IFA_LOCAL is the interface's own address; IFA_ADDRESS is the peer's on a point-to-point link,
    // and the only one given for IPv6.
    let bytes = find(address::LOCAL).or_else(|| find(address::ADDRESS))?.value();
    let v4 = <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    let address = v4.or_else(|| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from))?;
    Some((read_u32(body, address::INDEX_AT)?, address))
}

/// What ended a wait of a [`LinkMonitor`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// The interface has changed.
    LinkChange,
    /// The other descriptor can be read.
    Other,
    /// The timeout is over, a signal came, or another interface has changed.
    Timeout,
}

/// Notifies of changes to links of the network namespace in which it was opened.
#[derive(Debug)]
pub struct LinkMonitor(Socket);

/// `RTNLGRP_LINK`
const LINKS: u32 = 1;

impl LinkMonitor {
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.set_non_blocking(true)?;
        socket.add_membership(LINKS)?;
        Ok(Self(socket))
    }

    /// Waits for a change of an interface (`None`: of any), until `other` can be read, or to the end
    /// of `timeout`. Discards the messages of changes.
    pub fn wait_with(
        &self,
        interface: Option<u32>,
        other: BorrowedFd<'_>,
        timeout: Duration,
    ) -> io::Result<Woken> {
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        let mut descriptors =
            [PollFd::new(&self.0, PollFlags::IN), PollFd::from_borrowed_fd(other, PollFlags::IN)];
        match poll(&mut descriptors, Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => return Ok(Woken::Timeout),
            result => drop(result?),
        }
        let [changes, other] = descriptors.map(|descriptor| !descriptor.revents().is_empty());
        if changes && self.discard(interface)? {
            return Ok(Woken::LinkChange);
        }
        Ok(if other { Woken::Other } else { Woken::Timeout })
    }

    /// Takes all messages. Returns whether one is of the interface.
    fn discard(&self, interface: Option<u32>) -> io::Result<bool> {
        let mut found = false;
        let mut buffer = Vec::with_capacity(32 << 10);
        loop {
            buffer.clear();
            match self.0.recv(&mut buffer, 0) {
                // Each change is a message of its own.
                Ok(_) => {
                    let changed = read_u32(&buffer, super::HEADER + link::INDEX_AT);
                    found |= interface.is_none() || changed == interface;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(found),
                // The socket's buffer overflowed, so there were changes.
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) => {
                    found = true;
                }
                Err(error) => return Err(error),
            }
        }
    }
}
