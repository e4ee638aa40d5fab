//! Two namespaces joined by a veth pair with several queues, made over netlink alone.

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

use crate::namespace::Namespace;

/// The server's end of the veth pair, in the server's namespace.
pub const SERVER_INTERFACE: &str = "lull-server";
/// The client's end, in the client's namespace.
pub const CLIENT_INTERFACE: &str = "lull-client";
/// The server's address: of the block for benchmarks (RFC 2544), so that it is nobody's.
pub const SERVER_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const CLIENT_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
const PREFIX: u8 = 30;

/// The testbed. Dropping it removes it; so does the end of the process, however it comes.
#[derive(Debug)]
pub struct Testbed {
    /// Where the server runs.
    pub server: Namespace,
    /// Where the load comes from.
    pub client: Namespace,
}

impl Testbed {
    /// Makes it.
    ///
    /// # Errors
    /// Without `CAP_SYS_ADMIN` and `CAP_NET_ADMIN`, or on a kernel without veth; the error names the
    /// step.
    pub fn new(queues: u32) -> io::Result<Self> {
        let server = Namespace::new().map_err(step("make a network namespace"))?;
        let client = Namespace::new().map_err(step("make a network namespace"))?;
        let client_fd = client.file().as_raw_fd();
        server
            .run(|| {
                create_pair(queues, client_fd).map_err(step("make a veth pair"))?;
                set_up(SERVER_INTERFACE, SERVER_ADDRESS)
            })
            .map_err(step("set up the server's end"))?;
        client.run(|| set_up(CLIENT_INTERFACE, CLIENT_ADDRESS)).map_err(step("set up the client's end"))?;
        Ok(Self { server, client })
    }
}

fn step(what: &'static str) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("cannot {what}: {error}"))
}

const FEATURES: [(&str, bool); 5] = [
    ("tx-tcp-segmentation", false),
    ("tx-tcp6-segmentation", false),
    ("tx-tcp-ecn-segmentation", false),
    ("tx-tcp-mangleid-segmentation", false),
    ("rx-gro", true),
];

/// NLM_F_CREATE | NLM_F_EXCL
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

fn set_up(interface: &str, address: Ipv4Addr) -> io::Result<()> {
    let links = route::links()?;
    let find = |name: &str| links.iter().find(|link| link.name == name).map(|link| link.index);
    let index = find(interface).ok_or(io::ErrorKind::NotFound)?;
    // With segmentation left to the receiver a sender's large packet would go past the NAPI, and
    // SO_INCOMING_NAPI_ID be 0. Generic receive offload is what makes veth have NAPIs at all.
    Ethtool::open()
        .and_then(|mut ethtool| ethtool.set_features(index, &FEATURES))
        .map_err(step("switch segmentation offload off and receive offload on"))?;
    let mut connection = Connection::open(NETLINK_ROUTE)?;
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.prefix_len = PREFIX;
    message.header.index = index;
    message.attributes.push(AddressAttribute::Address(IpAddr::V4(address)));
    message.attributes.push(AddressAttribute::Local(IpAddr::V4(address)));
    connection
        .request(RouteNetlinkMessage::NewAddress(message), Request::Acknowledged(CREATE))
        .map_err(step("give it an address"))?;
    for index in [find("lo"), Some(index)].into_iter().flatten() {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.header.flags = LinkFlags::Up;
        link.header.change_mask = LinkFlags::Up;
        connection
            .request(RouteNetlinkMessage::SetLink(link), Request::Acknowledged(0))
            .map_err(step("set it up"))?;
    }
    Ok(())
}
