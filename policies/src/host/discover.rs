//! Finds interfaces, and which NAPI and interrupt is whose.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use super::facts::InterfaceFacts;
use super::interface::{Interface, RxQueue, TxQueue};
use super::irq::Direction;
use super::irq_names;
use crate::error::Error;
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

/// The name under which the kernel lists an interface, which may be given by an alternative name
/// (`ip link property add`). Of an interface that doesn't exist, the name as it is.
pub fn interface_name(name: &str) -> String {
    let found = links().ok().and_then(|links| named(links, name));
    found.map_or_else(|| name.to_owned(), |link| link.name)
}

fn named(links: Vec<Link>, name: &str) -> Option<Link> {
    let is_alternative = |link: &Link| link.alternative_names.iter().any(|other| other == name);
    let position = links.iter().position(|link| link.name == name);
    position.or_else(|| links.iter().position(is_alternative)).and_then(|index| links.into_iter().nth(index))
}

/// One interface by its name, or by an alternative one.
///
/// # Errors
/// [`Error::NoInterface`] if it does not exist, with the names that do; [`Error::Kernel`] if
/// rtnetlink can't list the interfaces.
pub fn interface(name: &str) -> Result<Interface, Error> {
    Ok(inspect(link(name)?, &mut Netdev::open()))
}

fn link(name: &str) -> Result<Link, Error> {
    let links = links()?;
    let available = links.iter().map(|link| link.name.as_str()).collect::<Vec<_>>().join(", ");
    named(links, name).ok_or_else(|| Error::NoInterface { name: name.to_owned(), available })
}

pub(crate) fn interface_by_index(index: u32) -> Result<Interface, Error> {
    let found = links()?.into_iter().find(|link| link.index == index);
    let link =
        found.ok_or_else(|| Error::NoInterface { name: format!("#{index}"), available: String::new() })?;
    Ok(inspect(link, &mut Netdev::open()))
}

/// Waits until the device has a NAPI for each queue, and the new number of queues if there is one,
/// for at most two seconds.
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

/// The interface that has a local address, or the one below by which that receives (the interface
/// of a VLAN). For the unspecified address: the only interface besides loopback that is up, or
/// `None` if there are several.
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
    Ok(found.map(|link| receiver(inspect(link, &mut Netdev::open()))))
}

/// The interface itself, or the only one below it if that has the queues.
fn receiver(upper: Interface) -> Interface {
    match upper.lower.as_slice() {
        [only] if upper.napi_ids().is_empty() => interface(only).map_or(upper, receiver),
        _ => upper,
    }
}

fn links() -> Result<Vec<Link>, Error> {
    route::links().map_err(Error::kernel("list the interfaces over rtnetlink"))
}

fn inspect(link: Link, netdev: &mut std::io::Result<Netdev>) -> Interface {
    Interface::from_facts(&InterfaceFacts::read(link, netdev))
}

#[cfg(feature = "tools")]
pub(super) fn facts(name: &str) -> Result<InterfaceFacts, Error> {
    Ok(InterfaceFacts::read(link(name)?, &mut Netdev::open()))
}

impl Interface {
    pub(super) fn from_facts(facts: &InterfaceFacts) -> Self {
        let InterfaceFacts { napis, interrupts, .. } = facts;
        let mut notes = facts.unread.clone();
        let reported: Vec<u32> = facts.reported_rx.iter().map(|queue| queue.index).collect();
        let listed = facts.rx_queues.iter().map(|queue| queue.index);
        let indices = if reported.is_empty() { listed.collect() } else { reported };
        if !facts.up && facts.name != "lo" {
            notes.push(
                "the link is down; most drivers have NAPIs and interrupts only while it is up".to_owned(),
            );
        }
        // veth and vmxnet3 link no queue to its NAPI, but add their NAPIs in queue order, with
        // ascending ids. If the counts differ (drivers with NAPIs for transmit), the order is not
        // usable.
        let any_link = facts.reported_rx.iter().any(|queue| queue.napi.is_some());
        let by_order = !any_link && !napis.is_empty() && napis.len() == indices.len();
        if !any_link && !napis.is_empty() && !by_order {
            notes.push(format!(
                "{} NAPIs and {} receive queues, and the driver does not report which NAPI polls which queue",
                napis.len(),
                indices.len()
            ));
        }
        if facts.up && napis.is_empty() && facts.name != "lo" {
            notes.push("no NAPI: the driver uses none, or (veth) generic receive offload is off".to_owned());
        }
        let names = [facts.name.as_str(), facts.device.as_deref().unwrap_or_default()];
        let named = irq_names::by_name(interrupts, &names, Direction::Rx, indices.len());
        let queue = |(position, &index): (usize, &u32)| {
            let napi = if by_order {
                napis.get(position).cloned()
            } else {
                napi_of(index, &facts.reported_rx, napis).cloned()
            };
            let irq = napi.as_ref().and_then(|napi| napi.irq).or(named[position]);
            let interrupt = irq.and_then(|irq| interrupts.iter().find(|found| found.number == irq));
            let listed = facts.rx_queues.iter().find(|queue| queue.index == index);
            let thread = napi.as_ref().and_then(|napi| napi.pid);
            RxQueue {
                index,
                napi_reported: napi.is_some() && !by_order,
                irq,
                irq_affinity: interrupt.and_then(|found| found.affinity.clone()),
                irq_effective: interrupt.and_then(|found| found.effective.clone()),
                irq_managed: interrupt.is_some_and(|found| found.managed),
                napi_thread: thread
                    .and_then(|id| facts.napi_threads.iter().find(|(found, _)| *found == id))
                    .map(|(_, settings)| settings.clone()),
                napi,
                rps_cpus: listed.and_then(|queue| queue.rps_cpus.clone()),
                rps_flow_count: listed.and_then(|queue| queue.rps_flow_count),
            }
        };
        let queues = indices.iter().enumerate().map(queue).collect();
        let mut interface = Self {
            name: facts.name.clone(),
            index: facts.index,
            up: facts.up,
            driver: facts.driver.clone().or_else(|| facts.kind.clone()),
            device: facts.device.clone(),
            lower: facts.lower.clone(),
            numa_node: facts.numa_node,
            queues,
            tx_queues: tx_queues(facts),
            interrupt_names: interrupts.iter().flat_map(|irq| irq.actions.clone()).collect(),
            coalescing: facts.coalescing.clone(),
            channels: facts.channels,
            rx_ring: facts.rx_ring,
            lro: facts.lro,
            defer_hard_irqs: facts.defer_hard_irqs,
            gro_flush_timeout: facts.gro_flush_timeout,
            notes,
        };
        let unknown = interface.queues_of_unknown_interrupts();
        if !unknown.is_empty() {
            interface.notes.push(format!(
                "the interrupts of {unknown} were not found: the driver reports none for their NAPIs, and {}. They stay where \
                 they are; look at /proc/interrupts, and at /proc/irq/N/smp_affinity_list",
                match interface.interrupt_names.as_slice() {
                    [] => format!("none is of {} by its name", facts.device.as_deref().unwrap_or(&facts.name)),
                    names => format!("the names of the device's interrupts don't tell the queue ({})", names.join(", ")),
                }
            ));
        }
        interface
    }
}

fn napi_of<'a>(index: u32, reported: &[ReportedQueue], napis: &'a [Napi]) -> Option<&'a Napi> {
    let id = reported.iter().find(|queue| queue.index == index)?.napi?;
    napis.iter().find(|napi| napi.id == id)
}

fn tx_queues(facts: &InterfaceFacts) -> Vec<TxQueue> {
    let reported: Vec<u32> = facts.reported_tx.iter().map(|queue| queue.index).collect();
    let listed = facts.tx_queues.iter().map(|queue| queue.index);
    let indices: Vec<u32> = if reported.is_empty() { listed.collect() } else { reported };
    let names = [facts.name.as_str(), facts.device.as_deref().unwrap_or_default()];
    let named = irq_names::by_name(&facts.interrupts, &names, Direction::Tx, indices.len());
    let describe = |(position, &index): (usize, &u32)| {
        let napi = napi_of(index, &facts.reported_tx, &facts.napis);
        let irq = napi.and_then(|napi| napi.irq).or(named[position]);
        let interrupt = irq.and_then(|irq| facts.interrupts.iter().find(|found| found.number == irq));
        let listed = facts.tx_queues.iter().find(|queue| queue.index == index);
        TxQueue {
            index,
            irq,
            irq_affinity: interrupt.and_then(|found| found.affinity.clone()),
            irq_managed: interrupt.is_some_and(|found| found.managed),
            xps_cpus: listed.and_then(|queue| queue.xps_cpus.clone()),
        }
    };
    indices.iter().enumerate().map(describe).collect()
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
