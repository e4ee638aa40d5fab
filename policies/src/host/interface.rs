//! Interfaces and queues as data, and their paths in sysfs.

use crate::cpus::Cpus;
use crate::netlink::ethtool::{Channels, Coalescing, RxRing};
use crate::netlink::netdev::Napi;

/// Drivers whose NAPIs keep their settings while the link is down (`netif_napi_add_config`), by
/// their names in sysfs: in Linux 7.3, and most of them before. `docs/policies/drivers.md` has the
/// evidence, and what else is known of drivers.
const KEEP_SETTINGS: [&str; 11] = [
    "bnxt_en",
    "ena",
    "fbnic",
    "iavf",
    "ice",
    "idpf",
    "igb",
    "mlx4_core",
    "mlx5_core",
    "netdevsim",
    "virtio_net",
];
/// Drivers that enable a queue's interrupt after each poll, whatever `napi_complete_done` returns.
const IGNORE_DEFERRAL: [&str; 2] = ["mana", "vmxnet3"];
/// Drivers that with large receive offload hand packets on without their NAPI
/// (`netif_receive_skb`).
const LRO_HIDES_NAPIS: [&str; 1] = ["vmxnet3"];

/// A network interface of the calling thread's network namespace.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Interface {
    /// For example `eth0`.
    pub name: String,
    /// The kernel's interface index; it survives a rename.
    pub index: u32,
    pub up: bool,
    /// The driver (`ena`, `virtio_net`, …), or the kind of a virtual device (`veth`, …).
    pub driver: Option<String>,
    /// Its device on a bus (`0000:00:03.0`, `virtio0`); `None` for a virtual device, which has no
    /// interrupts.
    pub device: Option<String>,
    /// The interfaces below it, whose queues receive for it: a bond's ports, the interface of a
    /// VLAN, the VF of a netvsc.
    pub lower: Vec<String>,
    /// The device's NUMA node; `None` on a machine with one node.
    pub numa_node: Option<u32>,
    pub queues: Vec<RxQueue>,
    pub tx_queues: Vec<TxQueue>,
    pub interrupt_names: Vec<String>,
    /// Interrupt coalescing parameters that the device supports, with their values.
    pub coalescing: Vec<(Coalescing, u32)>,
    /// The number of queues, present and maximal, if the driver supports ethtool channels.
    pub channels: Option<Channels>,
    /// The size of the receive rings, present and maximal, if the driver reports it.
    pub rx_ring: Option<RxRing>,
    /// Whether the device joins received packets itself (large receive offload); `None` if that
    /// can't be read.
    pub lro: Option<bool>,
    /// `napi_defer_hard_irqs`, which is of all queues.
    pub defer_hard_irqs: Option<u64>,
    /// `gro_flush_timeout`, which is of all queues, in nanoseconds.
    pub gro_flush_timeout: Option<u64>,
    /// What could not be read, and why.
    pub notes: Vec<String>,
}

#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct RxQueue {
    pub index: u32,
    pub napi: Option<Napi>,
    /// Whether the driver reported the NAPI; if `false`, queues and NAPIs were matched by order.
    pub napi_reported: bool,
    /// The interrupt's number. `None` if the interface has no interrupts, or if it is not known
    /// ([`Interface::irq_is_unknown`]).
    pub irq: Option<u32>,
    /// The CPUs that the interrupt may go to (`smp_affinity_list`).
    pub irq_affinity: Option<Cpus>,
    /// The CPUs that the interrupt goes to (`effective_affinity_list`).
    pub irq_effective: Option<Cpus>,
    /// Whether the kernel manages the interrupt's affinity, so that user space can't set it.
    pub irq_managed: bool,
    pub napi_thread: Option<NapiThreadSettings>,
    /// The CPUs of receive packet steering (`rps_cpus`); empty if it is off.
    pub rps_cpus: Option<Cpus>,
    /// The size of the queue's flow table for receive flow steering (`rps_flow_cnt`); 0 if it is
    /// off.
    pub rps_flow_count: Option<u64>,
}

#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct TxQueue {
    pub index: u32,
    /// The interrupt's number; equal to that of a receive queue if they share one.
    pub irq: Option<u32>,
    /// The CPUs that the interrupt may go to (`smp_affinity_list`).
    pub irq_affinity: Option<Cpus>,
    /// Whether the kernel manages the interrupt's affinity.
    pub irq_managed: bool,
    /// The CPUs that send through this queue (`xps_cpus`); empty if the kernel chooses by flow.
    pub xps_cpus: Option<Cpus>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct NapiThreadSettings {
    pub cpus: Cpus,
    /// Its `SCHED_FIFO` priority, 0 for an ordinary thread; `None` for another scheduling class.
    pub fifo_priority: Option<u32>,
}

impl Interface {
    /// Whether the settings of its NAPIs survive that its link goes down and up, by what is known
    /// of its driver.
    pub fn keeps_napi_settings(&self) -> bool {
        self.is_of(&KEEP_SETTINGS)
    }

    fn is_of(&self, drivers: &[&str]) -> bool {
        self.driver.as_deref().is_some_and(|driver| drivers.contains(&driver))
    }

    /// Whether any receive queue's interrupt is known. A veth has none: its packets arrive on the
    /// sender's CPU.
    pub fn has_interrupts(&self) -> bool {
        self.queues.iter().any(|queue| queue.irq.is_some())
    }

    /// How the device delays its receive interrupts, and the command that has it not; `None` if it
    /// doesn't.
    pub(crate) fn moderation(&self) -> Option<(String, String)> {
        let value = |wanted| self.coalescing.iter().find(|(which, _)| *which == wanted).map(|it| it.1);
        let command = format!("ethtool -C {}", self.name);
        if value(Coalescing::AdaptiveRx) == Some(1) {
            let what = "adapts the delay of its interrupts (adaptive-rx)".to_owned();
            return Some((what, format!("{command} adaptive-rx off rx-usecs 0")));
        }
        let delay = value(Coalescing::RxUsecs).filter(|delay| *delay > 0)?;
        Some((format!("delays its interrupts (rx-usecs {delay})"), format!("{command} rx-usecs 0")))
    }

    /// Whether the queue may have an interrupt that was not found. Policies leave it as it is then.
    pub fn irq_is_unknown(&self, queue: &RxQueue) -> bool {
        queue.irq.is_none() && self.device.is_some()
    }

    /// The queues whose interrupts were not found, as `rx-0, rx-1`; empty if there is none.
    pub(crate) fn queues_of_unknown_interrupts(&self) -> String {
        let is_unknown = |queue: &&RxQueue| queue.napi.is_some() && self.irq_is_unknown(queue);
        let names = self.queues.iter().filter(is_unknown).map(|queue| format!("rx-{}", queue.index));
        names.collect::<Vec<_>>().join(", ")
    }

    /// Whether sockets get no NAPI id from the driver as it is set, so that nobody can poll for
    /// them.
    pub(crate) fn hides_napis(&self) -> bool {
        self.lro == Some(true) && self.is_of(&LRO_HIDES_NAPIS)
    }

    /// Whether its driver enables a queue's interrupt after each poll, whatever deferral and
    /// suspension say.
    pub(crate) fn ignores_deferral(&self) -> bool {
        self.is_of(&IGNORE_DEFERRAL)
    }

    /// Which interfaces below receive for it; `None` if none does.
    pub(crate) fn note_on_lower(&self) -> Option<String> {
        let lower = self.lower.join(", ");
        match (self.lower.is_empty(), self.napi_ids().is_empty()) {
            (true, _) => None,
            (false, true) => Some(format!("{} has no queues of its own: it receives by {lower}", self.name)),
            (false, false) => {
                Some(format!("{} has queues of its own, and receives by {lower} as well", self.name))
            }
        }
    }

    /// The NAPI ids in queue order, without queues whose NAPI is unknown.
    pub fn napi_ids(&self) -> Vec<u32> {
        self.queues.iter().filter_map(|queue| Some(queue.napi.as_ref()?.id)).collect()
    }
}

/// Paths of an interface below `/sys/class/net`.
pub(crate) mod sysfs {
    use std::path::{Path, PathBuf};

    /// The interface's directory. Valid only if `/sys` was mounted in this thread's network
    /// namespace: sysfs shows the namespace of its mount.
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_page_of_drivers_says_what_is_known_here() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/policies/drivers.md");
        let page = std::fs::read_to_string(page).unwrap();
        // After the head and the line below it.
        let rows = page.lines().skip_while(|line| !line.starts_with("| Driver |")).skip(2);
        let rows = rows.take_while(|line| line.starts_with("| "));
        let rows: Vec<Vec<&str>> = rows.map(|row| row.split('|').skip(1).map(str::trim).collect()).collect();
        let drivers = |column: usize, is_meant: fn(&str) -> bool| -> Vec<&str> {
            let meant = rows.iter().filter(|row| is_meant(row[column])).map(|row| row[0]);
            // One device with two drivers, of which sysfs names the lower.
            meant.map(|name| if name == "mlx4_en" { "mlx4_core" } else { name }).collect()
        };
        assert_eq!(drivers(4, |settings_stay| settings_stay != "no"), KEEP_SETTINGS);
        assert_eq!(drivers(6, |deferral| deferral == "no"), IGNORE_DEFERRAL);
        assert_eq!(drivers(8, |remark| remark.contains("large receive offload is on")), LRO_HIDES_NAPIS);
    }
}
