//! Settings of an interface that rtnetlink(7) makes: addresses, neighbours, and how many packets are
//! merged.

use std::io;
use std::net::Ipv4Addr;

use netlink_sys::protocols::NETLINK_ROUTE;
use policies::netlink::message::{Attribute, emit};
use policies::netlink::{Connection, Request};

/// Bits of the network's part of an address.
pub const PREFIX_LENGTH: u8 = 24;
pub(super) const CREATE: u16 = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
const IPV4: u8 = libc::AF_INET as u8;
const IFLA_GRO_IPV4_MAX_SIZE: u16 = 64;
/// The size of [`merge_up_to`] under which nothing is merged.
pub(super) const SINGLE_PACKETS: u32 = 1;

/// `struct ifinfomsg`: family, type, index, flags, and which flags to change.
pub(super) fn link_message(index: u32, flags: u32, attributes: &[Attribute]) -> Vec<u8> {
    let header = [0, index, flags, flags].map(u32::to_ne_bytes);
    [header.concat(), emit(attributes)].concat()
}

pub(super) fn send(command: u16, message: &[u8], flags: u16) -> io::Result<()> {
    Connection::open(NETLINK_ROUTE)?.request(command, message, Request::Acknowledged(flags)).map(drop)
}

/// Gives an interface an address, or takes it away.
pub(super) fn set_address(interface: u32, address: Ipv4Addr, there: bool) -> io::Result<()> {
    // `struct ifaddrmsg`: family, bits of the network, flags, scope, index.
    let header = [[IPV4, PREFIX_LENGTH, 0, 0], interface.to_ne_bytes()].concat();
    let attributes =
        [libc::IFA_ADDRESS, libc::IFA_LOCAL].map(|kind| Attribute::bytes(kind, address.octets()));
    let (command, flags) = if there { (libc::RTM_NEWADDR, CREATE) } else { (libc::RTM_DELADDR, 0) };
    send(command, &[header, emit(&attributes)].concat(), flags)
}

/// Makes a neighbour entry that the kernel neither asks for nor forgets, or takes it away.
pub(super) fn set_neighbour(interface: u32, address: Ipv4Addr, mac: [u8; 6], there: bool) -> io::Result<()> {
    // `struct ndmsg`: family and padding, interface, state, flags, type.
    let [low, high] = libc::NUD_PERMANENT.to_ne_bytes();
    let header = [[IPV4, 0, 0, 0], interface.to_ne_bytes(), [low, high, 0, 0]].concat();
    let attributes =
        [Attribute::bytes(libc::NDA_DST, address.octets()), Attribute::bytes(libc::NDA_LLADDR, mac)];
    let (command, flags) = if there { (libc::RTM_NEWNEIGH, CREATE) } else { (libc::RTM_DELNEIGH, 0) };
    send(command, &[header, emit(&attributes)].concat(), flags)
}

/// The size up to which GRO merges packets of IPv4 that an interface receives, in bytes. A fleet
/// reads packets as they come, into slots that hold one of them; a veth needs GRO to be on, because it
/// has no NAPI without.
pub(super) fn merge_up_to(interface: u32, bytes: u32) -> io::Result<()> {
    let attribute = Attribute::number(IFLA_GRO_IPV4_MAX_SIZE, bytes);
    send(libc::RTM_SETLINK, &link_message(interface, 0, &[attribute]), 0)
}
