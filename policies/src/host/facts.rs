//! What is read of an interface: rtnetlink, netdev and ethtool netlink, sysfs, `/proc`.
//! [`discover`](super::discover) makes an [`Interface`](super::Interface) of it; a
//! [recording](super::recording) keeps it.

use std::fs;
use std::io;
use std::path::Path;

use super::interface::{NapiThreadSettings, sysfs};
use super::process::is_napi_thread;
use super::{irq, scheduler};
use crate::cpus::{Cpus, Pid};
use crate::netlink::ethtool::{Channels, Coalescing, Ethtool, RxRing};
use crate::netlink::netdev::{Napi, Netdev, ReportedQueue};
use crate::netlink::route::Link;

/// The facts about an interface. It has no addresses.
#[derive(Debug, Clone, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub(crate) struct InterfaceFacts {
    pub(crate) name: String,
    pub(crate) index: u32,
    pub(crate) up: bool,
    /// The kind of a virtual device, as rtnetlink has it.
    pub(crate) kind: Option<String>,
    pub(crate) driver: Option<String>,
    /// Its device on a bus: `0000:00:03.0`, `virtio0`. `None` for a virtual device.
    pub(crate) device: Option<String>,
    pub(crate) numa_node: Option<u32>,
    /// The interfaces below it: a bond's ports, the interface of a VLAN, the VF of a netvsc.
    pub(crate) lower: Vec<String>,
    pub(crate) rx_queues: Vec<RxQueueFacts>,
    pub(crate) tx_queues: Vec<TxQueueFacts>,
    pub(crate) reported_rx: Vec<ReportedQueue>,
    pub(crate) reported_tx: Vec<ReportedQueue>,
    pub(crate) napis: Vec<Napi>,
    pub(crate) napi_threads: Vec<(u32, NapiThreadSettings)>,
    pub(crate) interrupts: Vec<InterruptFacts>,
    pub(crate) coalescing: Vec<(Coalescing, u32)>,
    pub(crate) channels: Option<Channels>,
    pub(crate) rx_ring: Option<RxRing>,
    /// Whether the device joins received packets itself (large receive offload).
    pub(crate) lro: Option<bool>,
    pub(crate) defer_hard_irqs: Option<u64>,
    pub(crate) gro_flush_timeout: Option<u64>,
    /// What could not be read, and why.
    pub(crate) unread: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub(crate) struct RxQueueFacts {
    pub(crate) index: u32,
    pub(crate) rps_cpus: Option<Cpus>,
    pub(crate) rps_flow_count: Option<u64>,
}

#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub(crate) struct TxQueueFacts {
    pub(crate) index: u32,
    pub(crate) xps_cpus: Option<Cpus>,
}

#[derive(Debug, Clone, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub(crate) struct InterruptFacts {
    pub(crate) number: u32,
    /// The names that drivers have given it.
    pub(crate) actions: Vec<String>,
    pub(crate) affinity: Option<Cpus>,
    pub(crate) effective: Option<Cpus>,
    pub(crate) managed: bool,
}

impl InterfaceFacts {
    pub(super) fn read(link: Link, netdev: &mut io::Result<Netdev>) -> Self {
        let name = link.name.as_str();
        let mut unread = Vec::new();
        let (reported_rx, reported_tx, napis) = read_netdev(link.index, netdev, &mut unread);
        let mut ethtool = Ethtool::open();
        let mut ask = ethtool.as_mut().ok();
        let device = fs::canonicalize(sysfs::class_net(name).join("device")).ok();
        let device = device.and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
        let interrupts = match &device {
            Some(device) => read_interrupts(name, device, &napis),
            None => Vec::new(),
        };
        Self {
            index: link.index,
            up: link.up,
            kind: link.kind.clone(),
            driver: driver(name),
            numa_node: numa_node(name),
            lower: lower(name),
            rx_queues: rx_queues(name),
            tx_queues: tx_queues(name),
            napi_threads: napis.iter().filter_map(|napi| read_thread(napi.pid?)).collect(),
            reported_rx,
            reported_tx,
            napis,
            interrupts,
            coalescing: ask.as_mut().and_then(|it| it.coalescing(link.index).ok()).unwrap_or_default(),
            channels: ask.as_mut().and_then(|it| it.channels(link.index).ok()),
            lro: ask.as_mut().and_then(|it| it.has_feature(link.index, "rx-lro").ok()),
            rx_ring: ask.as_mut().and_then(|it| it.rx_ring(link.index).ok()),
            defer_hard_irqs: read_number(&sysfs::class_net(name).join("napi_defer_hard_irqs")),
            gro_flush_timeout: read_number(&sysfs::class_net(name).join("gro_flush_timeout")),
            device,
            unread,
            name: link.name,
        }
    }
}

fn read_netdev(
    ifindex: u32,
    netdev: &mut io::Result<Netdev>,
    unread: &mut Vec<String>,
) -> (Vec<ReportedQueue>, Vec<ReportedQueue>, Vec<Napi>) {
    let netdev = match netdev {
        Ok(netdev) => netdev,
        Err(error) => {
            unread.push(format!(
                "netdev netlink is not available, so NAPIs can be neither read nor set: {error}"
            ));
            return Default::default();
        }
    };
    let (rx, tx) = netdev.queues(ifindex).unwrap_or_else(|error| {
        unread.push(format!("cannot list queues over netdev netlink: {error}"));
        Default::default()
    });
    let mut napis = netdev.napis(ifindex).unwrap_or_else(|error| {
        unread.push(format!("cannot list NAPIs over netdev netlink: {error}"));
        Vec::new()
    });
    napis.iter_mut().for_each(|napi| napi.pid = napi.pid.filter(|thread| is_napi_thread(*thread)));
    (rx, tx, napis)
}

fn read_interrupts(interface: &str, device: &str, napis: &[Napi]) -> Vec<InterruptFacts> {
    let Ok(lines) = irq::all() else { return Vec::new() };
    let mut numbers: Vec<u32> = napis.iter().filter_map(|napi| napi.irq).collect();
    let folder = sysfs::class_net(interface).join("device");
    // A virtio device's vectors belong to its PCI parent.
    let of_device = [folder.join("msi_irqs"), folder.join("../msi_irqs")];
    match of_device.iter().find_map(|folder| fs::read_dir(folder).ok()) {
        Some(entries) => {
            let number =
                |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse::<u32>().ok();
            numbers.extend(entries.filter_map(number));
        }
        // Without MSI the name tells whose an interrupt is: `virtio0` (MMIO), `eth0`, `eth0-q0-rx`
        // (Xen).
        None => {
            let is_own = |name: &String| {
                let rest = name.strip_prefix(interface).or_else(|| name.strip_prefix(device));
                rest.is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_alphanumeric()))
            };
            numbers.extend(
                lines.iter().filter(|(_, line)| line.actions.iter().any(is_own)).map(|(irq, _)| *irq),
            );
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    let facts = |number| {
        Some(InterruptFacts {
            number,
            actions: lines.get(&number)?.actions.clone(),
            affinity: irq::affinity(number).ok(),
            effective: irq::effective_affinity(number).ok(),
            managed: irq::is_managed(number),
        })
    };
    numbers.into_iter().filter_map(facts).collect()
}

fn read_thread(id: u32) -> Option<(u32, NapiThreadSettings)> {
    let thread = Pid::from_raw(id as i32)?;
    let cpus = Cpus::of_thread(Some(thread)).ok()?;
    Some((id, NapiThreadSettings { cpus, fifo_priority: scheduler::fifo_priority(thread).ok() }))
}

/// The interfaces below, as sysfs links them.
fn lower(interface: &str) -> Vec<String> {
    let entries = fs::read_dir(sysfs::class_net(interface)).into_iter().flatten().flatten();
    let name = |entry: fs::DirEntry| Some(entry.file_name().to_str()?.strip_prefix("lower_")?.to_owned());
    let mut names: Vec<String> = entries.filter_map(name).collect();
    names.sort_unstable();
    names
}

fn rx_queues(interface: &str) -> Vec<RxQueueFacts> {
    let facts = |index| RxQueueFacts {
        index,
        rps_cpus: read_cpus(&sysfs::rps_cpus(interface, index)),
        rps_flow_count: read_number(&sysfs::rps_flow_count(interface, index)),
    };
    queue_numbers(interface, "rx").into_iter().map(facts).collect()
}

fn tx_queues(interface: &str) -> Vec<TxQueueFacts> {
    let facts = |index| TxQueueFacts { index, xps_cpus: read_cpus(&sysfs::xps_cpus(interface, index)) };
    queue_numbers(interface, "tx").into_iter().map(facts).collect()
}

fn queue_numbers(interface: &str, kind: &str) -> Vec<u32> {
    let entries = fs::read_dir(sysfs::class_net(interface).join("queues")).into_iter().flatten();
    let mut queues: Vec<u32> = entries
        .filter_map(|entry| {
            entry.ok()?.file_name().to_str()?.strip_prefix(kind)?.strip_prefix('-')?.parse().ok()
        })
        .collect();
    queues.sort_unstable();
    queues
}

/// `None` if the file says -1: the machine has one node, or the device belongs to none.
fn numa_node(interface: &str) -> Option<u32> {
    let device = sysfs::class_net(interface).join("device");
    // A virtio device has no such file; the PCI device that it is a part of has.
    let files = ["numa_node", "../numa_node"].map(|file| device.join(file));
    files.iter().find_map(|file| fs::read_to_string(file).ok())?.trim().parse().ok()
}

/// The name of the interface's driver; `None` for a virtual device.
fn driver(interface: &str) -> Option<String> {
    let link = fs::read_link(sysfs::class_net(interface).join("device/driver")).ok()?;
    Some(link.file_name()?.to_str()?.to_owned())
}

fn read_cpus(mask: &Path) -> Option<Cpus> {
    Cpus::from_mask(&fs::read_to_string(mask).ok()?).ok()
}

fn read_number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}
