//! The host's interfaces, their receive queues, NAPIs and interrupts, as they are now.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::irq::Direction;
use crate::netlink::ethtool::{Channels, Coalescing, Ethtool};
use crate::netlink::netdev::{Napi, Netdev, ReportedQueue};
use crate::netlink::route::{self, Link};
use crate::{Cpus, Error, irq};

/// A network interface of this thread's network namespace.
#[derive(Debug, Clone, Serialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// Whether it is up.
    pub up: bool,
    /// The driver (`ena`, `virtio_net`, …), or the kind of a virtual device (`veth`, …).
    pub driver: Option<String>,
    /// The NUMA node that the device hangs on, on a machine with several.
    pub numa_node: Option<u32>,
    /// Its receive queues by number.
    pub queues: Vec<RxQueue>,
    /// Its send queues by number.
    pub tx_queues: Vec<TxQueue>,
    /// Its interrupt coalescing, as far as it has any.
    pub coalescing: Vec<(Coalescing, u32)>,
    /// How many queues it may have, where the driver lets them be counted.
    pub channels: Option<Channels>,
    /// What could not be found out, and why.
    pub notes: Vec<String>,
}

/// A receive queue.
#[derive(Debug, Clone, Serialize)]
pub struct RxQueue {
    /// Its number on the interface.
    pub index: u32,
    /// Its NAPI, where one is known.
    pub napi: Option<Napi>,
    /// Whether the link from queue to NAPI is the driver's own word (`false`: by order).
    pub napi_reported: bool,
    /// Its interrupt, where the device has interrupts.
    pub irq: Option<u32>,
    /// The CPUs that the interrupt may go to.
    pub irq_affinity: Option<Cpus>,
    /// The CPUs that the interrupt really goes to.
    pub irq_effective: Option<Cpus>,
    /// Whether the kernel keeps the interrupt's affinity to itself.
    pub irq_managed: bool,
    /// The CPUs that receive packet steering hands this queue's packets to; empty when it is off.
    pub rps_cpus: Option<Cpus>,
    /// How many flows receive flow steering keeps for this queue; 0 when it is off.
    pub rps_flow_count: Option<u64>,
}

/// A send queue.
#[derive(Debug, Clone, Serialize)]
pub struct TxQueue {
    /// Its number on the interface.
    pub index: u32,
    /// Its interrupt; that of a receive queue where they share one.
    pub irq: Option<u32>,
    /// The CPUs that send by this queue; empty when the kernel chooses by flow.
    pub xps_cpus: Option<Cpus>,
}

impl Interface {
    /// Whether any receive queue has an interrupt. A veth has none: its packets come from the
    /// sender's CPU.
    pub fn has_interrupts(&self) -> bool {
        self.queues.iter().any(|queue| queue.irq.is_some())
    }

    /// The NAPI ids by queue number; queues without one are left out.
    pub fn napi_ids(&self) -> Vec<u32> {
        self.queues.iter().filter_map(|queue| Some(queue.napi.as_ref()?.id)).collect()
    }
}

/// All interfaces of this thread's network namespace.
pub fn interfaces() -> Result<Vec<Interface>, Error> {
    let links = links()?;
    let mut netdev = Netdev::open();
    Ok(links.into_iter().map(|link| inspect(link, &mut netdev)).collect())
}

/// One interface by its name.
///
/// # Errors
/// [`Error::NoInterface`] lists the names that exist.
pub fn interface(name: &str) -> Result<Interface, Error> {
    let links = links()?;
    let known = links.iter().map(|link| link.name.as_str()).collect::<Vec<_>>().join(", ");
    let link = links
        .into_iter()
        .find(|link| link.name == name)
        .ok_or_else(|| Error::NoInterface { name: name.to_owned(), known })?;
    Ok(inspect(link, &mut Netdev::open()))
}

pub(crate) fn interface_at(index: u32) -> Result<Interface, Error> {
    let found = links()?.into_iter().find(|link| link.index == index);
    let link = found.ok_or_else(|| Error::NoInterface { name: format!("#{index}"), known: String::new() })?;
    Ok(inspect(link, &mut Netdev::open()))
}

/// The interface that has a local address, or, for the unspecified address, the only interface
/// besides loopback that is up.
pub fn interface_of_address(address: IpAddr) -> Result<Option<Interface>, Error> {
    let links = links()?;
    let found = if address.is_unspecified() {
        let mut serving = links.into_iter().filter(|link| link.up && link.name != "lo");
        match (serving.next(), serving.next()) {
            (Some(only), None) => Some(only),
            _ => None,
        }
    } else {
        let addresses = route::addresses().map_err(Error::kernel("list the addresses"))?;
        addresses
            .into_iter()
            .find(|(_, candidate)| *candidate == address)
            .and_then(|(index, _)| links.into_iter().find(|link| link.index == index))
    };
    Ok(found.map(|link| inspect(link, &mut Netdev::open())))
}

fn links() -> Result<Vec<Link>, Error> {
    route::links().map_err(Error::kernel("list the interfaces over rtnetlink"))
}

fn inspect(link: Link, netdev: &mut std::io::Result<Netdev>) -> Interface {
    let mut notes = Vec::new();
    let driver = driver(&link.name).or_else(|| link.kind.clone());
    let (reported, reported_tx, napis) = match netdev {
        Ok(netdev) => {
            let (queues, tx_queues) = netdev.queues(link.index).unwrap_or_else(|error| {
                notes.push(format!("the kernel lists no queues over netdev netlink: {error}"));
                Default::default()
            });
            let napis = netdev.napis(link.index).unwrap_or_else(|error| {
                notes.push(format!("the kernel lists no NAPIs over netdev netlink: {error}"));
                Vec::new()
            });
            (queues, tx_queues, napis)
        }
        Err(error) => {
            notes.push(format!("no netdev netlink, so no NAPI can be read or set: {error}"));
            Default::default()
        }
    };
    let indices = queue_numbers(&link.name, "rx", &reported);
    if !link.up && link.name != "lo" {
        notes.push("it is down: it has NAPIs, and mostly interrupts, only while it is up".to_owned());
    }
    // veth links no queue to its NAPI, but adds its NAPIs in queue order, with ascending ids. Where
    // the counts differ (drivers with NAPIs for sending), that order says nothing.
    let any_link = reported.iter().any(|queue| queue.napi.is_some());
    let by_order = !any_link && !napis.is_empty() && napis.len() == indices.len();
    if !any_link && !napis.is_empty() && !by_order {
        notes.push(format!(
            "{} NAPIs and {} receive queues, and the driver does not say which belong together",
            napis.len(),
            indices.len()
        ));
    }
    if link.up && napis.is_empty() && link.name != "lo" {
        notes.push("no NAPI: the driver has none, or (veth) generic receive offload is off".to_owned());
    }
    let named_irqs = irq::irqs_by_name(&link.name, Direction::Rx);
    let queues = indices
        .iter()
        .enumerate()
        .map(|(position, &index)| {
            let napi = if by_order {
                napis.get(position).cloned()
            } else {
                let id = reported.iter().find(|queue| queue.index == index).and_then(|queue| queue.napi);
                napis.iter().find(|napi| Some(napi.id) == id).cloned()
            };
            let by_name = (named_irqs.len() == indices.len()).then(|| named_irqs[position]);
            let irq = napi.as_ref().and_then(|napi| napi.irq).or(by_name);
            RxQueue {
                index,
                napi_reported: napi.is_some() && !by_order,
                napi,
                irq,
                irq_affinity: irq.and_then(|irq| irq::affinity(irq).ok()),
                irq_effective: irq.and_then(|irq| irq::effective_affinity(irq).ok()),
                irq_managed: irq.is_some_and(irq::is_managed),
                rps_cpus: read_cpus(&rps_path(&link.name, index)),
                rps_flow_count: read_number(&rps_flow_path(&link.name, index)),
            }
        })
        .collect();
    let tx_queues = tx_queues(&link.name, &reported_tx, &napis);
    let mut ethtool = Ethtool::open();
    let coalescing = ethtool.as_mut().ok().and_then(|ethtool| ethtool.coalescing(link.index).ok());
    let channels = ethtool.as_mut().ok().and_then(|ethtool| ethtool.channels(link.index).ok());
    let numa_node = numa_node(&link.name);
    Interface {
        name: link.name,
        index: link.index,
        up: link.up,
        driver,
        numa_node,
        queues,
        tx_queues,
        coalescing: coalescing.unwrap_or_default(),
        channels,
        notes,
    }
}

fn tx_queues(interface: &str, reported: &[ReportedQueue], napis: &[Napi]) -> Vec<TxQueue> {
    let indices = queue_numbers(interface, "tx", reported);
    let named_irqs = irq::irqs_by_name(interface, Direction::Tx);
    let find = |(position, &index): (usize, &u32)| {
        let id = reported.iter().find(|queue| queue.index == index).and_then(|queue| queue.napi);
        let napi = napis.iter().find(|napi| Some(napi.id) == id);
        let by_name = (named_irqs.len() == indices.len()).then(|| named_irqs[position]);
        TxQueue {
            index,
            irq: napi.and_then(|napi| napi.irq).or(by_name),
            xps_cpus: read_cpus(&xps_path(interface, index)),
        }
    };
    indices.iter().enumerate().map(find).collect()
}

/// The machine has one node where the file says -1, and then there is nothing to choose.
fn numa_node(interface: &str) -> Option<u32> {
    fs::read_to_string(class_net(interface).join("device/numa_node")).ok()?.trim().parse().ok()
}

fn driver(interface: &str) -> Option<String> {
    let link = fs::read_link(class_net(interface).join("device/driver")).ok()?;
    Some(link.file_name()?.to_str()?.to_owned())
}

/// Only right where `/sys` was mounted in this thread's network namespace: sysfs shows the
/// namespace of its mount.
pub(crate) fn class_net(interface: &str) -> PathBuf {
    Path::new("/sys/class/net").join(interface)
}

fn queue_numbers(interface: &str, kind: &str, reported: &[ReportedQueue]) -> Vec<u32> {
    if !reported.is_empty() {
        return reported.iter().map(|queue| queue.index).collect();
    }
    let mut queues: Vec<u32> = fs::read_dir(class_net(interface).join("queues"))
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            entry.ok()?.file_name().to_str()?.strip_prefix(kind)?.strip_prefix('-')?.parse().ok()
        })
        .collect();
    queues.sort_unstable();
    queues
}

pub(crate) fn rps_path(interface: &str, queue: u32) -> PathBuf {
    class_net(interface).join(format!("queues/rx-{queue}/rps_cpus"))
}

pub(crate) fn rps_flow_path(interface: &str, queue: u32) -> PathBuf {
    class_net(interface).join(format!("queues/rx-{queue}/rps_flow_cnt"))
}

pub(crate) fn xps_path(interface: &str, queue: u32) -> PathBuf {
    class_net(interface).join(format!("queues/tx-{queue}/xps_cpus"))
}

fn read_cpus(mask: &Path) -> Option<Cpus> {
    Cpus::from_mask(&fs::read_to_string(mask).ok()?).ok()
}

fn read_number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_found_by_name_and_by_address() {
        assert_eq!(interface("lo").unwrap().name, "lo");
        let by_address = interface_of_address("127.0.0.1".parse().unwrap()).unwrap();
        assert_eq!(by_address.unwrap().name, "lo");
    }

    #[test]
    fn an_unknown_interface_is_answered_with_the_known_ones() {
        let message = interface("nonesuch0").unwrap_err().to_string();
        assert!(message.contains("nonesuch0") && message.contains("lo"), "{message}");
    }
}
