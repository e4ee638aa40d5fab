//! An interface whose cable leads to another machine: what is checked before it carries an experiment,
//! what is changed, and how that is restored.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};

use policies::host::Machine;
use policies::netlink::ethtool::Ethtool;
use policies::netlink::route;
use policies::{host, nearest_cores};
use serde::{Deserialize, Serialize};

use super::rtnetlink::{PREFIX_LENGTH, SINGLE_PACKETS, merge_up_to, set_address, set_neighbour};
use super::veth::{CLIENT_ADDRESS, MOST_FLEETS, SERVER_ADDRESS, failed_step, fleet_address};
use crate::Error;

/// Two machines, one of which runs this program.
#[derive(Debug, Clone, Serialize)]
pub struct Card {
    /// This machine's end.
    pub server: CardEnd,
    pub client: CardEnd,
    /// The command that starts this program on the client's machine. No report has it: it may name a
    /// password.
    #[serde(skip)]
    pub command: String,
}

impl Card {
    /// The cores of the fleets: at most half of the client's, the farther ones from its card, and no
    /// more than the server has queues. Its interrupts are left where they are.
    pub fn fleet_cores(&self) -> &[u32] {
        let cores = &self.client.cores;
        let count = self.server.queues.min(cores.len() / 2).clamp(1, MOST_FLEETS.into());
        &cores[cores.len().saturating_sub(count)..]
    }
}

/// An end of the cable, as it was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CardEnd {
    pub machine: String,
    pub interface: String,
    index: u32,
    pub driver: Option<String>,
    pub queues: usize,
    pub mac: [u8; 6],
    /// The cores that the lab may use, the nearest to the card first.
    pub cores: Vec<u32>,
    merges_up_to: Option<u32>,
    /// Offloads that merge packets, of those that are on.
    merging: Vec<String>,
}

/// Offloads by which a card merges packets before GRO sees them.
const MERGING: [&str; 2] = ["rx-lro", "rx-gro-hw"];

impl CardEnd {
    /// Looks at an interface, and changes nothing. `forwards_nothing`: whether it must not forward
    /// packets for addresses that this machine doesn't have.
    ///
    /// # Errors
    /// What is in the way of an experiment, and what to do.
    pub fn check(interface: &str, forwards_nothing: bool) -> Result<Self, Error> {
        let found = host::interface(interface)?;
        let name = &found.name;
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let class = |file: &str| read(&format!("/sys/class/net/{name}/{file}"));
        if !found.up || class("carrier") != "1" {
            return Err(format!(
                "{name} has no link: set it up (ip link set {name} up), and look at its cable"
            )
            .into());
        }
        let mac: Vec<u8> =
            class("address").split(':').flat_map(|byte| u8::from_str_radix(byte, 16)).collect();
        let mac = <[u8; 6]>::try_from(mac).ok().filter(|mac| *mac != [0; 6]);
        let mac = mac.ok_or_else(|| format!("{name} is no Ethernet interface"))?;
        let routes = read("/proc/net/route");
        let mut routes = routes.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        if routes.any(|route| route.len() > 1 && route[0] == name && route[1] == "00000000") {
            return Err(format!(
                "{name} has this machine's default route: name the interface whose cable leads to the other machine alone"
            )
            .into());
        }
        let mtu = class("mtu");
        if mtu.parse::<u32>().unwrap_or(0) < 1500 {
            return Err(
                format!("{name} has an MTU of {mtu}: an experiment sends packets of 1500 bytes").into()
            );
        }
        let network = |address: Ipv4Addr| address.to_bits() >> (32 - PREFIX_LENGTH);
        let in_use =
            |address: &IpAddr| matches!(address, IpAddr::V4(it) if network(*it) == network(SERVER_ADDRESS));
        if let Some((_, address)) = route::addresses()?.into_iter().find(|(_, address)| in_use(address)) {
            return Err(format!(
                "this machine has the address {address}: an experiment needs the network {SERVER_ADDRESS}/{PREFIX_LENGTH} for itself"
            )
            .into());
        }
        let forwarding = format!("/proc/sys/net/ipv4/conf/{name}/forwarding");
        if forwards_nothing && read(&forwarding) == "1" {
            return Err(format!(
                "{name} forwards packets, also those for a fleet: switch it off meanwhile (echo 0 >{forwarding})"
            )
            .into());
        }
        let mut ethtool = Ethtool::open()?;
        let is_on = |feature: &&str| ethtool.has_feature(found.index, feature).unwrap_or(false);
        let merging = MERGING.into_iter().filter(is_on).map(str::to_owned).collect();
        let link = route::links()?.into_iter().find(|link| link.index == found.index);
        Ok(Self {
            machine: Machine::read().to_string(),
            interface: name.clone(),
            index: found.index,
            driver: found.driver.clone(),
            queues: found.queues.len(),
            mac,
            cores: nearest_cores(&found, usize::MAX)?,
            merges_up_to: link.and_then(|link| link.gro_ipv4_max_size),
            merging,
        })
    }

    /// What an experiment changes here, until it ends. `peer`: the client's hardware address at the
    /// server's end.
    pub fn changes(&self, is_server: bool) -> Vec<String> {
        let address = if is_server { SERVER_ADDRESS } else { CLIENT_ADDRESS };
        let mut changes = vec![format!("the address {address}/{PREFIX_LENGTH}")];
        if is_server {
            let (first, last) = (fleet_address(0), fleet_address(MOST_FLEETS - 1));
            changes.push(format!("neighbour entries for {first} to {last}"));
            changes
                .push("each policy's settings of its queues and interrupts, one after the other".to_owned());
        } else {
            changes.push("gro_ipv4_max_size 1".to_owned());
            changes.extend(self.merging.iter().map(|feature| format!("{feature} off")));
        }
        changes
    }

    /// Makes the changes. Dropping what it returns restores what was there.
    pub(crate) fn change(&self, peer: Option<[u8; 6]>) -> io::Result<ChangedCard<'_>> {
        let address = if peer.is_some() { SERVER_ADDRESS } else { CLIENT_ADDRESS };
        set_address(self.index, address, true).map_err(failed_step("add the address"))?;
        // From here on a failure restores.
        let changed = ChangedCard { end: self, peer, address };
        match peer {
            Some(mac) => (0..MOST_FLEETS)
                .try_for_each(|number| set_neighbour(self.index, fleet_address(number), mac, true))
                .map_err(failed_step("add a fleet's neighbour entry"))?,
            None => {
                merge_up_to(self.index, SINGLE_PACKETS).map_err(failed_step("limit merged packets"))?;
                self.set_merging(false).map_err(failed_step("switch merging off"))?;
            }
        }
        Ok(changed)
    }

    fn set_merging(&self, on: bool) -> io::Result<()> {
        let features: Vec<(&str, bool)> = self.merging.iter().map(|feature| (feature.as_str(), on)).collect();
        if features.is_empty() { Ok(()) } else { Ethtool::open()?.set_features(self.index, &features) }
    }
}

/// An interface with an experiment's settings.
#[derive(Debug)]
pub(crate) struct ChangedCard<'a> {
    end: &'a CardEnd,
    peer: Option<[u8; 6]>,
    address: Ipv4Addr,
}

impl Drop for ChangedCard<'_> {
    fn drop(&mut self) {
        let Self { end, peer, address } = *self;
        let restored = |what: &str, result: io::Result<()>| {
            if let Err(error) = result {
                tracing::warn!("{}: {what} could not be restored: {error}", end.interface);
            }
        };
        match peer {
            Some(mac) => (0..MOST_FLEETS).for_each(|number| {
                // Fails for those that were not made.
                let _ = set_neighbour(end.index, fleet_address(number), mac, false);
            }),
            None => {
                let size = end.merges_up_to.map_or(Ok(()), |size| merge_up_to(end.index, size));
                restored("gro_ipv4_max_size", size);
                restored("merging", end.set_merging(true));
            }
        }
        restored("the address", set_address(end.index, address, false));
    }
}
