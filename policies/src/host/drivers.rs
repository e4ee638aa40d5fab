//! What is known of network drivers: how a queue's NAPI and interrupt are found, and what of its
//! settings stays.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Since {
    /// The first kernel that has it; 6.12, the last before per-NAPI settings, stands for earlier
    /// ones as well.
    Linux(u8, u8),
    /// Linux 7.3 has it, 6.12 not. Which kernel between them was the first is not known here.
    By7_3,
    /// Linux 7.3 does not have it.
    Never,
}

impl fmt::Display for Since {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Linux(major, minor) => write!(f, "{major}.{minor}"),
            Self::By7_3 => f.write_str("by 7.3"),
            Self::Never => f.write_str("no"),
        }
    }
}

/// A driver, as its source or a run tells it.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Driver {
    /// The name in sysfs, or the kind of a virtual device.
    pub name: &'static str,
    /// Whether it reports which NAPI polls a queue (`netif_queue_set_napi`).
    pub links_queues: Since,
    /// Whether it reports a NAPI's interrupt (`netif_napi_set_irq`).
    pub reports_irqs: Since,
    /// What its queues' interrupts are called, for an interface eth0.
    pub irq_names: &'static str,
    /// Whether a NAPI keeps its id and settings while the link is down (`netif_napi_add_config`).
    pub keeps_settings: Since,
    /// Whether it coalesces each queue by its own values (`ethtool --per-queue`).
    pub per_queue_coalescing: bool,
    /// Whether it leaves a queue's interrupt masked while deferral or suspension say so
    /// (`napi_complete_done` returns `false`). Without that neither keeps interrupts away. `None`:
    /// not known.
    pub honours_deferral: Option<bool>,
    /// Whether with large receive offload it hands packets on without their NAPI
    /// (`netif_receive_skb`).
    pub lro_hides_napis: bool,
    /// What else matters; may be empty.
    pub remark: &'static str,
    /// The device and kernel on which it was tried, or the files below `drivers/net` that were
    /// read.
    pub evidence: Evidence,
}

/// From where a row is known.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Evidence {
    /// Policies were applied and restored on it; the files were read as well.
    Tried(&'static str),
    Read(&'static str),
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tried(where_) => write!(f, "tried ({where_})"),
            Self::Read(file) => write!(f, "read (`{file}`)"),
        }
    }
}

const NONE: &str = "none";

/// A driver without anything, to which the rows below add.
const ROW: Driver = Driver {
    name: "",
    links_queues: Since::Never,
    reports_irqs: Since::Never,
    irq_names: NONE,
    keeps_settings: Since::Never,
    per_queue_coalescing: false,
    honours_deferral: Some(true),
    lro_hides_napis: false,
    remark: "",
    evidence: Evidence::Read(""),
};

pub const DRIVERS: [Driver; 21] = [
    Driver {
        name: "bnxt_en",
        links_queues: Since::Linux(6, 12),
        reports_irqs: Since::Linux(6, 12),
        irq_names: "`eth0-TxRx-0`",
        keeps_settings: Since::Linux(6, 13),
        evidence: Evidence::Read("ethernet/broadcom/bnxt/bnxt.c"),
        ..ROW
    },
    Driver {
        name: "e1000e",
        links_queues: Since::Linux(6, 13),
        reports_irqs: Since::Linux(6, 13),
        irq_names: "`eth0-rx-0`, or `eth0` without MSI-X",
        remark: "one queue",
        evidence: Evidence::Tried("QEMU, Linux 7.3"),
        ..ROW
    },
    Driver {
        name: "ena",
        links_queues: Since::Linux(6, 13),
        reports_irqs: Since::Linux(6, 13),
        irq_names: "`eth0-Tx-Rx-0`",
        keeps_settings: Since::Linux(6, 15),
        evidence: Evidence::Read("ethernet/amazon/ena/ena_netdev.c"),
        ..ROW
    },
    Driver {
        name: "fbnic",
        links_queues: Since::Linux(6, 12),
        reports_irqs: Since::Linux(6, 12),
        irq_names: "`eth0-TxRx-0`",
        keeps_settings: Since::By7_3,
        evidence: Evidence::Read("ethernet/meta/fbnic/fbnic_txrx.c"),
        ..ROW
    },
    Driver {
        name: "gve",
        links_queues: Since::Linux(6, 13),
        reports_irqs: Since::Linux(6, 13),
        irq_names: "`gve-ntfy-blk0@pci:…`",
        remark: "names number the transmit queues first, so they don't tell a receive queue",
        evidence: Evidence::Read("ethernet/google/gve/gve_main.c"),
        ..ROW
    },
    Driver {
        name: "hv_netvsc",
        links_queues: Since::Linux(6, 12),
        remark: "VMBus channels, whose core is in `/sys/bus/vmbus/devices/*/channels/*/cpu`; where it has a VF below, that \
                 receives most packets",
        evidence: Evidence::Read("hyperv/netvsc.c"),
        ..ROW
    },
    Driver {
        name: "i40e",
        irq_names: "`i40e-eth0-TxRx-0`",
        per_queue_coalescing: true,
        remark: "queues and NAPIs are matched by order",
        evidence: Evidence::Read("ethernet/intel/i40e/i40e_main.c"),
        ..ROW
    },
    Driver {
        name: "iavf",
        reports_irqs: Since::By7_3,
        irq_names: "`iavf-eth0-TxRx-0`",
        keeps_settings: Since::By7_3,
        per_queue_coalescing: true,
        remark: "queues and NAPIs are matched by order",
        evidence: Evidence::Read("ethernet/intel/iavf/iavf_main.c"),
        ..ROW
    },
    Driver {
        name: "ice",
        links_queues: Since::Linux(6, 12),
        reports_irqs: Since::Linux(6, 12),
        irq_names: "`ice-eth0-TxRx-0`",
        keeps_settings: Since::Linux(6, 15),
        per_queue_coalescing: true,
        evidence: Evidence::Read("ethernet/intel/ice/ice_lib.c"),
        ..ROW
    },
    Driver {
        name: "idpf",
        links_queues: Since::Linux(6, 18),
        reports_irqs: Since::Linux(6, 15),
        irq_names: "`idpf-eth0-TxRx-0`",
        keeps_settings: Since::Linux(6, 15),
        per_queue_coalescing: true,
        evidence: Evidence::Read("ethernet/intel/idpf/idpf_txrx.c"),
        ..ROW
    },
    Driver {
        name: "igb",
        links_queues: Since::Linux(6, 16),
        reports_irqs: Since::Linux(6, 16),
        irq_names: "`eth0-rx-0`, `eth0-TxRx-0`",
        keeps_settings: Since::Linux(6, 16),
        evidence: Evidence::Tried("QEMU, Linux 7.3"),
        ..ROW
    },
    Driver {
        name: "igc",
        links_queues: Since::Linux(6, 14),
        reports_irqs: Since::Linux(6, 14),
        irq_names: "`eth0-rx-0`, `eth0-TxRx-0`",
        evidence: Evidence::Read("ethernet/intel/igc/igc_main.c"),
        ..ROW
    },
    Driver {
        name: "ixgbe",
        irq_names: "`eth0-TxRx-0`",
        remark: "queues and NAPIs are matched by order",
        evidence: Evidence::Read("ethernet/intel/ixgbe/ixgbe_main.c"),
        ..ROW
    },
    Driver {
        name: "mana",
        irq_names: "`mana_q0@pci:…` (6.12), `mana_msi1@pci:…` (7.3)",
        honours_deferral: Some(false),
        remark: "queues and NAPIs are matched by order",
        evidence: Evidence::Read("ethernet/microsoft/mana/gdma_main.c"),
        ..ROW
    },
    Driver {
        name: "mlx4_en",
        links_queues: Since::Linux(6, 12),
        reports_irqs: Since::Linux(6, 12),
        irq_names: "`mlx4-1@…`",
        keeps_settings: Since::Linux(6, 13),
        remark: "sysfs has the name mlx4_core",
        evidence: Evidence::Read("ethernet/mellanox/mlx4/en_cq.c"),
        ..ROW
    },
    Driver {
        name: "mlx5_core",
        links_queues: Since::Linux(6, 12),
        reports_irqs: Since::Linux(6, 12),
        irq_names: "`mlx5_comp0@pci:…`",
        keeps_settings: Since::Linux(6, 13),
        per_queue_coalescing: true,
        evidence: Evidence::Read("ethernet/mellanox/mlx5/core/en_main.c"),
        ..ROW
    },
    Driver {
        name: "netdevsim",
        keeps_settings: Since::By7_3,
        links_queues: Since::By7_3,
        honours_deferral: None,
        remark: "for tests of the kernel",
        evidence: Evidence::Read("netdevsim/netdev.c"),
        ..ROW
    },
    Driver {
        name: "tun",
        honours_deferral: None,
        remark: "its NAPIs can't be polled by applications (`netif_napi_add_tx`)",
        evidence: Evidence::Read("tun.c"),
        ..ROW
    },
    Driver {
        name: "veth",
        remark: "queues and NAPIs are matched by order; a NAPI only with generic receive offload; packets arrive on the \
                 sender's core",
        evidence: Evidence::Tried("Linux 6.18"),
        ..ROW
    },
    Driver {
        name: "virtio_net",
        links_queues: Since::Linux(6, 15),
        irq_names: "`virtio0-input.0`; `virtio0-virtqueues` or `virtio0` for all queues",
        keeps_settings: Since::Linux(6, 15),
        per_queue_coalescing: true,
        evidence: Evidence::Tried("QEMU with 2 and 4 queue pairs, Linux 7.3"),
        ..ROW
    },
    Driver {
        name: "vmxnet3",
        irq_names: "`eth0-rxtx-0`, or `eth0-rx-1`, numbered by vector",
        honours_deferral: Some(false),
        lro_hides_napis: true,
        remark: "queues and NAPIs are matched by order; sockets get no NAPI while large receive offload is on: \
                 `ethtool -K eth0 lro off`",
        evidence: Evidence::Tried("QEMU, Linux 7.3"),
        ..ROW
    },
];

impl Driver {
    pub fn find(name: &str) -> Option<&'static Self> {
        // One device with two drivers, of which sysfs names the lower.
        let name = if name == "mlx4_core" { "mlx4_en" } else { name };
        DRIVERS.iter().find(|driver| driver.name == name)
    }

    #[cfg(feature = "tools")]
    pub(crate) fn describe(&self) -> String {
        let remark = if self.remark.is_empty() { String::new() } else { format!("; {}", self.remark) };
        format!(
            "queue to NAPI {}, NAPI to interrupt {}, interrupts {}, settings stay {}, coalescing per queue {}, deferral {}{remark}; {}",
            self.links_queues,
            self.reports_irqs,
            self.irq_names,
            self.keeps_settings,
            yes_or_no(Some(self.per_queue_coalescing)),
            yes_or_no(self.honours_deferral),
            self.evidence
        )
        .replace('`', "")
    }
}

#[cfg(feature = "tools")]
fn yes_or_no(it: Option<bool>) -> &'static str {
    match it {
        Some(true) => "yes",
        Some(false) => "no",
        None => "not known",
    }
}

#[cfg(all(test, feature = "tools"))]
mod tests {
    use super::*;

    #[test]
    fn drivers_are_in_order_and_found_by_the_name_in_sysfs() {
        assert!(DRIVERS.windows(2).all(|pair| pair[0].name < pair[1].name));
        assert_eq!(Driver::find("mlx4_core").unwrap().name, "mlx4_en");
        assert!(Driver::find("gve").unwrap().describe().starts_with("queue to NAPI 6.13"));
        assert!(Driver::find("unknown").is_none());
    }
}
