//! The veth pair between two network namespaces, created over netlink.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;

use policies::netlink::ethtool::Ethtool;
use policies::netlink::message::Attribute;
use policies::netlink::route;

use super::namespace::Namespace;
use super::rtnetlink::{CREATE, SINGLE_PACKETS, link_message, merge_up_to, send, set_address, set_neighbour};

pub const SERVER_INTERFACE: &str = "lull-server";
pub const CLIENT_INTERFACE: &str = "lull-client";
/// The server's address, from the block reserved for benchmarks (RFC 2544).
pub const SERVER_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
pub const CLIENT_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
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
    /// The server's interface.
    pub interface: String,
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
                    .try_for_each(|number| set_neighbour(index, fleet_address(number), FLEET_MAC, true))
                    .map_err(failed_step("add a fleet's neighbour entry"))
            })
            .map_err(failed_step("set up the server's end of the veth pair"))?;
        client
            .run(|| {
                let index = set_up_interface(CLIENT_INTERFACE, CLIENT_ADDRESS)?;
                merge_up_to(index, SINGLE_PACKETS).map_err(failed_step("limit merged packets"))
            })
            .map_err(failed_step("set up the client's end of the veth pair"))?;
        Ok(Self { server, client, interface: SERVER_INTERFACE.to_owned() })
    }

    /// The calling thread's namespace, with an interface whose cable leads to another machine.
    pub(crate) fn of_card(interface: &str) -> io::Result<Self> {
        let here = || Namespace::open("/proc/thread-self/ns/net");
        Ok(Self { server: here()?, client: here()?, interface: interface.to_owned() })
    }

    /// Segments that the server's kernel has sent again since the testbed was created.
    pub fn server_retransmissions(&self) -> io::Result<u64> {
        let snmp = self.server.run(|| fs::read_to_string("/proc/thread-self/net/snmp"))?;
        retransmitted(&snmp)
            .ok_or_else(|| io::Error::other("/proc/net/snmp has no number RetransSegs of Tcp"))
    }
}

/// `RetransSegs` of TCP, which has a line of names and one of numbers. Which other lines there are
/// depends on the kernel: newer ones have none of UDP-Lite.
fn retransmitted(snmp: &str) -> Option<u64> {
    let mut tcp = snmp.lines().filter(|line| line.starts_with("Tcp:")).map(str::split_whitespace);
    let at = tcp.next()?.position(|name| name == "RetransSegs")?;
    tcp.next()?.nth(at)?.parse().ok()
}

pub(super) fn failed_step(what: &'static str) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("cannot {what}: {error}"))
}

const OFFLOAD_FEATURES: [(&str, bool); 5] = [
    ("tx-tcp-segmentation", false),
    ("tx-tcp6-segmentation", false),
    ("tx-tcp-ecn-segmentation", false),
    ("tx-tcp-mangleid-segmentation", false),
    ("rx-gro", true),
];

/// The peer of a veth device (`include/uapi/linux/veth.h`).
const VETH_INFO_PEER: u16 = 1;

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
    set_address(index, address, true).map_err(failed_step("set the address"))?;
    for index in [find("lo"), Some(index)].into_iter().flatten() {
        send(libc::RTM_SETLINK, &link_message(index, libc::IFF_UP as u32, &[]), 0)
            .map_err(failed_step("bring the interface up"))?;
    }
    Ok(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retransmissions_are_found_by_their_name_whatever_else_is_counted() {
        let snmp =
            "Ip: Forwarding\nIp: 1\nTcp: MaxConn RetransSegs InErrs\nTcp: -1 17 3\nUdp: NoPorts\nUdp: 5\n";
        assert_eq!(retransmitted(snmp), Some(17));
        assert_eq!(retransmitted("Udp: NoPorts\nUdp: 5\n"), None);
    }
}
