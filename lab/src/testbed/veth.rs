//! The veth pair between two network namespaces, created over netlink.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;

use netlink_sys::protocols::NETLINK_ROUTE;
use policies::netlink::ethtool::Ethtool;
use policies::netlink::message::{Attribute, emit};
use policies::netlink::{Connection, Request, route};
use procfs::FromBufRead;
use procfs::net::Snmp;

use super::namespace::Namespace;

pub const SERVER_INTERFACE: &str = "lull-server";
pub const CLIENT_INTERFACE: &str = "lull-client";
/// The server's address, from the block reserved for benchmarks (RFC 2544).
pub const SERVER_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
pub const CLIENT_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// Bits of the network's part of the addresses.
pub const PREFIX_LENGTH: u8 = 24;
pub const SERVER_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 1];
const CLIENT_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 2];
/// The fleets' hardware address. No interface has it, so the kernel on the client's side ignores
/// packets for a fleet.
pub const FLEET_MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 3];

/// As many fleets have addresses.
pub const MOST_FLEETS: u8 = 64;

/// The address of a [`fleet`](crate::fleet) by its number, from 0 to [`MOST_FLEETS`]. The server finds it behind
/// [`FLEET_MAC`], and no kernel has it.
pub fn fleet_address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(198, 18, 0, 3u8.saturating_add(number))
}

/// The congestion control of both sides. A machine's default may be one that paces (BBR), which
/// sets a timer for each socket; this one is in every kernel, and allowed in every namespace.
pub const CONGESTION_CONTROL: &str = "reno";

/// Two network namespaces joined by a veth pair. The kernel removes both when this is dropped, and
/// when the process exits or is killed.
#[derive(Debug)]
pub struct Testbed {
    pub server: Namespace,
    pub client: Namespace,
}

impl Testbed {
    /// A pair with as many queues at each end.
    pub fn new(queues: u32) -> io::Result<Self> {
        Self::create([queues, queues])
    }

    /// A pair with a queue for each worker at the server's end. The client's end has one, which all
    /// fleets poll: a packet goes by its flow to a queue of the server's, as a card's receive-side
    /// scaling distributes packets.
    pub fn for_fleets(workers: usize) -> io::Result<Self> {
        Self::create([u32::try_from(workers).map_err(io::Error::other)?, 1])
    }

    /// `queues`: how many receive at the server's end and at the client's.
    fn create(queues: [u32; 2]) -> io::Result<Self> {
        let server = Namespace::new().map_err(failed_step("create a network namespace"))?;
        let client = Namespace::new().map_err(failed_step("create a network namespace"))?;
        let client_fd = client.file().as_raw_fd();
        server
            .run(|| {
                create_pair(queues, client_fd).map_err(failed_step("create a veth pair"))?;
                let index = set_up_interface(SERVER_INTERFACE, SERVER_ADDRESS)?;
                (0..MOST_FLEETS)
                    .try_for_each(|number| add_neighbour(index, fleet_address(number), FLEET_MAC))
                    .map_err(failed_step("add a fleet's neighbour entry"))
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

    /// Segments that the server's kernel has sent again since the testbed was created.
    pub fn server_retransmissions(&self) -> io::Result<u64> {
        let snmp = self.server.run(|| fs::read("/proc/thread-self/net/snmp"))?;
        Ok(Snmp::from_buf_read(&*snmp).map_err(io::Error::other)?.tcp_retrans_segs)
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

const CREATE: u16 = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;

/// The peer of a veth device (`include/uapi/linux/veth.h`).
const VETH_INFO_PEER: u16 = 1;
const IFLA_GRO_IPV4_MAX_SIZE: u16 = 64;

/// `struct ifinfomsg`: family, type, index, flags, and which flags to change.
fn link_message(index: u32, flags: u32, attributes: &[Attribute]) -> Vec<u8> {
    let header = [0, index, flags, flags].map(u32::to_ne_bytes);
    [header.concat(), emit(attributes)].concat()
}

const IPV4: u8 = libc::AF_INET as u8;

fn send(command: u16, message: &[u8], flags: u16) -> io::Result<()> {
    Connection::open(NETLINK_ROUTE)?.request(command, message, Request::Acknowledged(flags)).map(drop)
}

/// A queue that sends is joined to the queue of the same number that receives at the other end.
fn create_pair([server, client]: [u32; 2], peer_namespace: i32) -> io::Result<()> {
    let named = |name: &str, mac: [u8; 6], [receiving, sending]: [u32; 2], last: Attribute| {
        let attributes = [
            Attribute::bytes(libc::IFLA_ADDRESS, mac),
            Attribute::text(libc::IFLA_IFNAME, name),
            Attribute::number(libc::IFLA_NUM_TX_QUEUES, sending),
            Attribute::number(libc::IFLA_NUM_RX_QUEUES, receiving),
            last,
        ];
        link_message(0, 0, &attributes)
    };
    let namespace = Attribute::bytes(libc::IFLA_NET_NS_FD, peer_namespace.to_ne_bytes());
    let peer = named(CLIENT_INTERFACE, CLIENT_MAC, [client, server], namespace);
    let peer = Attribute::bytes(VETH_INFO_PEER, peer);
    let info =
        [Attribute::text(libc::IFLA_INFO_KIND, "veth"), Attribute::nested(libc::IFLA_INFO_DATA, &[peer])];
    let info = Attribute::nested(libc::IFLA_LINKINFO, &info);
    send(libc::RTM_NEWLINK, &named(SERVER_INTERFACE, SERVER_MAC, [server, client], info), CREATE)
}

/// Returns the interface's index.
fn set_up_interface(interface: &str, address: Ipv4Addr) -> io::Result<u32> {
    fs::write("/proc/sys/net/ipv4/tcp_congestion_control", CONGESTION_CONTROL)
        .map_err(failed_step("set the congestion control"))?;
    let links = route::links()?;
    let find = |name: &str| links.iter().find(|link| link.name == name).map(|link| link.index);
    let index = find(interface).ok_or(io::ErrorKind::NotFound)?;
    // With segmentation offload a large packet would bypass the receiver's NAPI, and
    // SO_INCOMING_NAPI_ID would be 0. A veth device has NAPIs only while generic receive offload is
    // on.
    Ethtool::open()
        .and_then(|mut ethtool| ethtool.set_features(index, &OFFLOAD_FEATURES))
        .map_err(failed_step("disable segmentation offload and enable receive offload"))?;
    // `struct ifaddrmsg`: family, bits of the network, flags, scope, index.
    let header = [[IPV4, PREFIX_LENGTH, 0, 0], index.to_ne_bytes()].concat();
    let attributes =
        [libc::IFA_ADDRESS, libc::IFA_LOCAL].map(|kind| Attribute::bytes(kind, address.octets()));
    send(libc::RTM_NEWADDR, &[header, emit(&attributes)].concat(), CREATE)
        .map_err(failed_step("set the address"))?;
    for index in [find("lo"), Some(index)].into_iter().flatten() {
        send(libc::RTM_SETLINK, &link_message(index, libc::IFF_UP as u32, &[]), 0)
            .map_err(failed_step("bring the interface up"))?;
    }
    Ok(index)
}

/// A neighbour entry that the kernel neither asks for nor forgets.
fn add_neighbour(interface: u32, address: Ipv4Addr, mac: [u8; 6]) -> io::Result<()> {
    // `struct ndmsg`: family and padding, interface, state, flags, type.
    let [low, high] = libc::NUD_PERMANENT.to_ne_bytes();
    let header = [[IPV4, 0, 0, 0], interface.to_ne_bytes(), [low, high, 0, 0]].concat();
    let attributes =
        [Attribute::bytes(libc::NDA_DST, address.octets()), Attribute::bytes(libc::NDA_LLADDR, mac)];
    send(libc::RTM_NEWNEIGH, &[header, emit(&attributes)].concat(), CREATE)
}

/// Keeps GRO from merging the packets that an interface receives. A fleet reads packets as they
/// come, into slots that hold one of them; a veth needs GRO to be on, because it has no NAPI
/// without.
fn receive_single_packets(interface: u32) -> io::Result<()> {
    let attribute = Attribute::number(IFLA_GRO_IPV4_MAX_SIZE, 1);
    send(libc::RTM_SETLINK, &link_message(interface, 0, &[attribute]), 0)
}
