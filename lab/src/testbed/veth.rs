//! The veth pair between two network namespaces, created over netlink.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsRawFd;

use netlink_packet_route::AddressFamily;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_sys::protocols::NETLINK_ROUTE;
use policies::netlink::ethtool::Ethtool;
use policies::netlink::{Connection, Request, route};

use super::namespace::Namespace;

/// Name of the server's end of the veth pair, in the server's namespace.
pub const SERVER_INTERFACE: &str = "lull-server";
/// Name of the client's end, in the client's namespace.
pub const CLIENT_INTERFACE: &str = "lull-client";
/// The server's address, from the block reserved for benchmarks (RFC 2544).
pub const SERVER_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// The address of the kernel in the client's namespace.
pub const CLIENT_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// An address that the server finds behind [`FLEET_MAC`], and that no kernel has: a [`fleet`](crate::fleet)'s.
pub const FLEET_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 3);
/// Bits of the network's part of the addresses.
pub const PREFIX_LENGTH: u8 = 29;
/// The server's hardware address.
pub const SERVER_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 1];
const CLIENT_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 2];
/// The fleet's hardware address. No interface has it, so the kernel on the client's side ignores packets for the fleet.
pub const FLEET_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 3];
/// The congestion control of both sides. A machine's default may be one that paces (BBR), which sets a timer for each
/// socket; this one is in every kernel, and allowed in every namespace.
pub const CONGESTION_CONTROL: &str = "reno";

/// Two network namespaces joined by a veth pair. The kernel removes both when this is dropped, and when the
/// process exits or is killed.
#[derive(Debug)]
pub struct Testbed {
    /// The server's namespace.
    pub server: Namespace,
    /// The load's namespace.
    pub client: Namespace,
}

impl Testbed {
    /// Creates both namespaces and a veth pair with `queues` queues on each end.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_ADMIN` and `CAP_NET_ADMIN`; on a kernel without veth. The error names the step that
    /// failed.
    pub fn new(queues: u32) -> io::Result<Self> {
        let server = Namespace::new().map_err(failed_step("create a network namespace"))?;
        let client = Namespace::new().map_err(failed_step("create a network namespace"))?;
        let client_fd = client.file().as_raw_fd();
        server
            .run(|| {
                create_pair(queues, client_fd).map_err(failed_step("create a veth pair"))?;
                let index = set_up_interface(SERVER_INTERFACE, SERVER_ADDRESS)?;
                add_neighbour(index, FLEET_ADDRESS, FLEET_MAC)
                    .map_err(failed_step("add the fleet's neighbour entry"))
            })
            .map_err(failed_step("set up the server's end of the veth pair"))?;
        client
            .run(|| {
                let index = set_up_interface(CLIENT_INTERFACE, CLIENT_ADDRESS)?;
                receive_single_packets(index).map_err(failed_step("limit merged packets"))
            })
            .map_err(failed_step("set up the client's end of the veth pair"))?;
        Ok(Self { server, client })
    }
}

fn failed_step(what: &'static str) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("cannot {what}: {error}"))
}

const OFFLOAD_FEATURES: [(&str, bool); 5] = [
    ("tx-tcp-segmentation", false),
    ("tx-tcp6-segmentation", false),
    ("tx-tcp-ecn-segmentation", false),
    ("tx-tcp-mangleid-segmentation", false),
    ("rx-gro", true),
];

/// `NLM_F_CREATE | NLM_F_EXCL`
const CREATE: u16 = 0x400 | 0x200;

fn create_pair(queues: u32, peer_namespace: i32) -> io::Result<()> {
    let named = |name: &str, mac: [u8; 6]| {
        let mut link = LinkMessage::default();
        link.attributes.push(LinkAttribute::Address(mac.to_vec()));
        link.attributes.push(LinkAttribute::IfName(name.to_owned()));
        link.attributes.push(LinkAttribute::NumTxQueues(queues));
        link.attributes.push(LinkAttribute::NumRxQueues(queues));
        link
    };
    let mut peer = named(CLIENT_INTERFACE, CLIENT_MAC);
    peer.attributes.push(LinkAttribute::NetNsFd(peer_namespace));
    let mut link = named(SERVER_INTERFACE, SERVER_MAC);
    link.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Veth),
        LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
    ]));
    Connection::open(NETLINK_ROUTE)?
        .request(RouteNetlinkMessage::NewLink(link), Request::Acknowledged(CREATE))
        .map(drop)
}

/// Returns the interface's index.
fn set_up_interface(interface: &str, address: Ipv4Addr) -> io::Result<u32> {
    fs::write("/proc/sys/net/ipv4/tcp_congestion_control", CONGESTION_CONTROL)
        .map_err(failed_step("set the congestion control"))?;
    let links = route::links()?;
    let find = |name: &str| links.iter().find(|link| link.name == name).map(|link| link.index);
    let index = find(interface).ok_or(io::ErrorKind::NotFound)?;
    // With segmentation offload a large packet would bypass the receiver's NAPI, and SO_INCOMING_NAPI_ID would
    // be 0. A veth device has NAPIs only while generic receive offload is on.
    Ethtool::open()
        .and_then(|mut ethtool| ethtool.set_features(index, &OFFLOAD_FEATURES))
        .map_err(failed_step("disable segmentation offload and enable receive offload"))?;
    let mut connection = Connection::open(NETLINK_ROUTE)?;
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.prefix_len = PREFIX_LENGTH;
    message.header.index = index;
    message.attributes.push(AddressAttribute::Address(IpAddr::V4(address)));
    message.attributes.push(AddressAttribute::Local(IpAddr::V4(address)));
    connection
        .request(RouteNetlinkMessage::NewAddress(message), Request::Acknowledged(CREATE))
        .map_err(failed_step("set the address"))?;
    for index in [find("lo"), Some(index)].into_iter().flatten() {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.header.flags = LinkFlags::Up;
        link.header.change_mask = LinkFlags::Up;
        connection
            .request(RouteNetlinkMessage::SetLink(link), Request::Acknowledged(0))
            .map_err(failed_step("bring the interface up"))?;
    }
    Ok(index)
}

/// Packets of the client that have found the server's receive ring full so far: a veth counts them as dropped by the
/// sender. Call it in the client's namespace.
///
/// # Errors
/// If the interfaces can't be listed.
pub fn ring_drops() -> io::Result<u64> {
    let link = route::links()?.into_iter().find(|link| link.name == CLIENT_INTERFACE);
    Ok(link.and_then(|link| link.tx_dropped).unwrap_or(0))
}

/// A neighbour entry that the kernel neither asks for nor forgets.
fn add_neighbour(interface: u32, address: Ipv4Addr, mac: [u8; 6]) -> io::Result<()> {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.ifindex = interface;
    message.header.state = NeighbourState::Permanent;
    message.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::Inet(address)));
    message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.to_vec()));
    Connection::open(NETLINK_ROUTE)?
        .request(RouteNetlinkMessage::NewNeighbour(message), Request::Acknowledged(CREATE))
        .map(drop)
}

/// Keeps GRO from merging the packets that an interface receives. A fleet reads packets as they come, into slots that
/// hold one of them; a veth needs GRO to be on, because it has no NAPI without.
fn receive_single_packets(interface: u32) -> io::Result<()> {
    let mut link = LinkMessage::default();
    link.header.index = interface;
    link.attributes.push(LinkAttribute::GroIpv4MaxSize(1));
    Connection::open(NETLINK_ROUTE)?
        .request(RouteNetlinkMessage::SetLink(link), Request::Acknowledged(0))
        .map(drop)
}
