//! Interfaces and queues as data, and their paths in sysfs.

use serde::Serialize;

use crate::cpus::Cpus;
use crate::netlink::ethtool::{Channels, Coalescing, RxRing};
use crate::netlink::netdev::Napi;

/// A network interface of the calling thread's network namespace.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Interface {
    /// For example `eth0`.
    pub name: String,
    /// The kernel's interface index; it survives a rename.
    pub index: u32,
    /// Whether it is administratively up.
    pub up: bool,
    /// The driver (`ena`, `virtio_net`, …), or the kind of a virtual device (`veth`, …).
    pub driver: Option<String>,
    /// The device's NUMA node; `None` on a machine with one node.
    pub numa_node: Option<u32>,
    /// Receive queues by number.
    pub queues: Vec<RxQueue>,
    /// Transmit queues by number.
    pub tx_queues: Vec<TxQueue>,
    /// Interrupt coalescing parameters that the device supports, with their values.
    pub coalescing: Vec<(Coalescing, u32)>,
    /// The number of queues, present and maximal, if the driver supports ethtool channels.
    pub channels: Option<Channels>,
    /// The size of the receive rings, present and maximal, if the driver reports it.
    pub rx_ring: Option<RxRing>,
    /// What could not be read, and why.
    pub notes: Vec<String>,
}

/// A receive queue.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct RxQueue {
    /// The queue's number on the interface.
    pub index: u32,
    /// The NAPI that polls the queue, if known.
    pub napi: Option<Napi>,
    /// Whether the driver reported the NAPI; if `false`, queues and NAPIs were matched by order.
    pub napi_reported: bool,
    /// The interrupt's number, if the device has interrupts.
    pub irq: Option<u32>,
    /// The CPUs that the interrupt may go to (`smp_affinity_list`).
    pub irq_affinity: Option<Cpus>,
    /// The CPUs that the interrupt goes to (`effective_affinity_list`).
    pub irq_effective: Option<Cpus>,
    /// Whether the kernel manages the interrupt's affinity, so that user space can't set it.
    pub irq_managed: bool,
    /// The CPUs of receive packet steering (`rps_cpus`); empty if it is off.
    pub rps_cpus: Option<Cpus>,
    /// The size of the queue's flow table for receive flow steering (`rps_flow_cnt`); 0 if it is off.
    pub rps_flow_count: Option<u64>,
}

/// A transmit queue.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct TxQueue {
    /// The queue's number on the interface.
    pub index: u32,
    /// The interrupt's number; equal to that of a receive queue if they share one.
    pub irq: Option<u32>,
    /// The CPUs that send through this queue (`xps_cpus`); empty if the kernel chooses by flow.
    pub xps_cpus: Option<Cpus>,
}

/// Drivers whose NAPIs keep their ids and settings while the link is down (`netif_napi_add_config`, Linux 6.13 or later). No
/// interface of the kernel tells it.
const PERSISTENT_NAPIS: [&str; 12] = [
    "ena",
    "bnxt_en",
    "iavf",
    "ice",
    "idpf",
    "igb",
    "mlx4_core",
    "mlx4_en",
    "mlx5_core",
    "fbnic",
    "virtio_net",
    "netdevsim",
];

impl Interface {
    /// Whether the settings of its NAPIs survive that its link goes down and up, by what is known of its driver.
    pub fn keeps_napi_settings(&self) -> bool {
        self.driver.as_deref().is_some_and(|driver| PERSISTENT_NAPIS.contains(&driver))
    }

    /// Whether any receive queue has an interrupt. A veth has none: its packets arrive on the sender's
    /// CPU.
    pub fn has_interrupts(&self) -> bool {
        self.queues.iter().any(|queue| queue.irq.is_some())
    }

    /// The NAPI ids in queue order, without queues whose NAPI is unknown.
    pub fn napi_ids(&self) -> Vec<u32> {
        self.queues.iter().filter_map(|queue| Some(queue.napi.as_ref()?.id)).collect()
    }
}

/// Paths of an interface below `/sys/class/net`.
pub(crate) mod sysfs {
    use std::path::{Path, PathBuf};

    /// The interface's directory. Valid only if `/sys` was mounted in this thread's network namespace:
    /// sysfs shows the namespace of its mount.
    pub(crate) fn class_net(interface: &str) -> PathBuf {
        Path::new("/sys/class/net").join(interface)
    }

    pub(crate) fn rps_cpus(interface: &str, queue: u32) -> PathBuf {
        class_net(interface).join(format!("queues/rx-{queue}/rps_cpus"))
    }

    pub(crate) fn rps_flow_count(interface: &str, queue: u32) -> PathBuf {
        class_net(interface).join(format!("queues/rx-{queue}/rps_flow_cnt"))
    }

    pub(crate) fn xps_cpus(interface: &str, queue: u32) -> PathBuf {
        class_net(interface).join(format!("queues/tx-{queue}/xps_cpus"))
    }
}
