//! The veth pair between two network namespaces, created over netlink.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsRawFd;

use netlink_packet_route::AddressFamily;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
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
/// The load's address.
pub const CLIENT_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
const PREFIX_LENGTH: u8 = 30;

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
                set_up_interface(SERVER_INTERFACE, SERVER_ADDRESS)
            })
            .map_err(failed_step("set up the server's end of the veth pair"))?;
        client
            .run(|| set_up_interface(CLIENT_INTERFACE, CLIENT_ADDRESS))
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
    let named = |name: &str| {
        let mut link = LinkMessage::default();
        link.attributes.push(LinkAttribute::IfName(name.to_owned()));
        link.attributes.push(LinkAttribute::NumTxQueues(queues));
        link.attributes.push(LinkAttribute::NumRxQueues(queues));
        link
    };
    let mut peer = named(CLIENT_INTERFACE);
    peer.attributes.push(LinkAttribute::NetNsFd(peer_namespace));
    let mut link = named(SERVER_INTERFACE);
    link.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Veth),
        LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
    ]));
    Connection::open(NETLINK_ROUTE)?
        .request(RouteNetlinkMessage::NewLink(link), Request::Acknowledged(CREATE))
        .map(drop)
}

fn set_up_interface(interface: &str, address: Ipv4Addr) -> io::Result<()> {
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
    Ok(())
}
