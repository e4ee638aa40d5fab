//! Reads interfaces from rtnetlink, netdev and ethtool netlink, sysfs and `/proc`.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::interface::{Interface, RxQueue, TxQueue, sysfs};
use super::irq::{self, Direction};
use crate::cpus::Cpus;
use crate::error::Error;
use crate::netlink::ethtool::Ethtool;
use crate::netlink::netdev::{Napi, Netdev, ReportedQueue};
use crate::netlink::route::{self, Link};

/// All interfaces of the calling thread's network namespace.
///
/// # Errors
/// [`Error::Kernel`] if rtnetlink can't list the interfaces. What else can't be read is in
/// [`Interface::notes`].
pub fn interfaces() -> Result<Vec<Interface>, Error> {
    let links = links()?;
    let mut netdev = Netdev::open();
    Ok(links.into_iter().map(|link| inspect(link, &mut netdev)).collect())
}

/// One interface by name.
///
/// # Errors
/// [`Error::NoInterface`] if it does not exist, with the names that do; [`Error::Kernel`] if rtnetlink
/// can't list the interfaces.
pub fn interface(name: &str) -> Result<Interface, Error> {
    let links = links()?;
    let available = links.iter().map(|link| link.name.as_str()).collect::<Vec<_>>().join(", ");
    let link = links
        .into_iter()
        .find(|link| link.name == name)
        .ok_or_else(|| Error::NoInterface { name: name.to_owned(), available })?;
    Ok(inspect(link, &mut Netdev::open()))
}

pub(crate) fn interface_by_index(index: u32) -> Result<Interface, Error> {
    let found = links()?.into_iter().find(|link| link.index == index);
    let link =
        found.ok_or_else(|| Error::NoInterface { name: format!("#{index}"), available: String::new() })?;
    Ok(inspect(link, &mut Netdev::open()))
}

/// Waits until the device has a NAPI for each queue, and the new number of queues if there is one, for at most two seconds.
pub(crate) fn wait_for_queues(ifindex: u32, count: Option<u64>) -> Result<Interface, Error> {
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        let interface = interface_by_index(ifindex)?;
        let here = interface.queues.len() as u64;
        let ready = count.is_none_or(|count| here == count)
            && interface.queues.iter().all(|queue| queue.napi.is_some());
        if ready || Instant::now() > deadline {
            return Ok(interface);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// The interface that has a local address. For the unspecified address: the only interface besides
/// loopback that is up, or `None` if there are several.
///
/// # Errors
/// [`Error::Kernel`] if rtnetlink can't list the interfaces or addresses.
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
                notes.push(format!("cannot list queues over netdev netlink: {error}"));
                Default::default()
            });
            let napis = netdev.napis(link.index).unwrap_or_else(|error| {
                notes.push(format!("cannot list NAPIs over netdev netlink: {error}"));
                Vec::new()
            });
            (queues, tx_queues, napis)
        }
        Err(error) => {
            notes.push(format!(
                "netdev netlink is not available, so NAPIs can be neither read nor set: {error}"
            ));
            Default::default()
        }
    };
    let indices = queue_numbers(&link.name, "rx", &reported);
    if !link.up && link.name != "lo" {
        notes.push("the link is down; most drivers have NAPIs and interrupts only while it is up".to_owned());
    }
    // veth links no queue to its NAPI, but adds its NAPIs in queue order, with ascending ids. If the
    // counts differ (drivers with NAPIs for transmit), the order is not usable.
    let any_link = reported.iter().any(|queue| queue.napi.is_some());
    let by_order = !any_link && !napis.is_empty() && napis.len() == indices.len();
    if !any_link && !napis.is_empty() && !by_order {
        notes.push(format!(
            "{} NAPIs and {} receive queues, and the driver does not report which NAPI polls which queue",
            napis.len(),
            indices.len()
        ));
    }
    if link.up && napis.is_empty() && link.name != "lo" {
        notes.push("no NAPI: the driver uses none, or (veth) generic receive offload is off".to_owned());
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
            let irq_by_name = (named_irqs.len() == indices.len()).then(|| named_irqs[position]);
            let irq = napi.as_ref().and_then(|napi| napi.irq).or(irq_by_name);
            RxQueue {
                index,
                napi_reported: napi.is_some() && !by_order,
                napi,
                irq,
                irq_affinity: irq.and_then(|irq| irq::affinity(irq).ok()),
                irq_effective: irq.and_then(|irq| irq::effective_affinity(irq).ok()),
                irq_managed: irq.is_some_and(irq::is_managed),
                rps_cpus: read_cpus(&sysfs::rps_cpus(&link.name, index)),
                rps_flow_count: read_number(&sysfs::rps_flow_count(&link.name, index)),
            }
        })
        .collect();
    let tx_queues = tx_queues(&link.name, &reported_tx, &napis);
    let mut ethtool = Ethtool::open();
    let coalescing = ethtool.as_mut().ok().and_then(|ethtool| ethtool.coalescing(link.index).ok());
    let channels = ethtool.as_mut().ok().and_then(|ethtool| ethtool.channels(link.index).ok());
    let rx_ring = ethtool.as_mut().ok().and_then(|ethtool| ethtool.rx_ring(link.index).ok());
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
        rx_ring,
        notes,
    }
}

fn tx_queues(interface: &str, reported: &[ReportedQueue], napis: &[Napi]) -> Vec<TxQueue> {
    let indices = queue_numbers(interface, "tx", reported);
    let named_irqs = irq::irqs_by_name(interface, Direction::Tx);
    let describe = |(position, &index): (usize, &u32)| {
        let id = reported.iter().find(|queue| queue.index == index).and_then(|queue| queue.napi);
        let napi = napis.iter().find(|napi| Some(napi.id) == id);
        let irq_by_name = (named_irqs.len() == indices.len()).then(|| named_irqs[position]);
        TxQueue {
            index,
            irq: napi.and_then(|napi| napi.irq).or(irq_by_name),
            xps_cpus: read_cpus(&sysfs::xps_cpus(interface, index)),
        }
    };
    indices.iter().enumerate().map(describe).collect()
}

/// `None` if the file says -1: the machine has one node, or the device belongs to none.
fn numa_node(interface: &str) -> Option<u32> {
    let device = sysfs::class_net(interface).join("device");
    // A virtio device has no such file; the PCI device that it is a part of has.
    let files = ["numa_node", "../numa_node"].map(|file| device.join(file));
    files.iter().find_map(|file| fs::read_to_string(file).ok())?.trim().parse().ok()
}

/// The name of the interface's driver; `None` for a virtual device.
pub(super) fn driver(interface: &str) -> Option<String> {
    let link = fs::read_link(sysfs::class_net(interface).join("device/driver")).ok()?;
    Some(link.file_name()?.to_str()?.to_owned())
}

fn queue_numbers(interface: &str, kind: &str, reported: &[ReportedQueue]) -> Vec<u32> {
    if !reported.is_empty() {
        return reported.iter().map(|queue| queue.index).collect();
    }
    let mut queues: Vec<u32> = fs::read_dir(sysfs::class_net(interface).join("queues"))
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            entry.ok()?.file_name().to_str()?.strip_prefix(kind)?.strip_prefix('-')?.parse().ok()
        })
        .collect();
    queues.sort_unstable();
    queues
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
    fn an_unknown_interface_is_an_error_that_lists_the_existing_ones() {
        let message = interface("nonesuch0").unwrap_err().to_string();
        assert!(message.contains("nonesuch0") && message.contains("lo"), "{message}");
    }
}
