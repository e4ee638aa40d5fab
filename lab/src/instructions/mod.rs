//! Instructions, interrupts and context switches of a request, counted on an emulated machine whose
//! clock is its instructions.
//!
//! Times measured in virtual machines are noisy, and contain the wake-ups that a virtual machine
//! adds. Counts have neither. QEMU's TCG with `-icount` runs a guest with a real driver for an
//! emulated NIC: the server's core serves, another one loads it over a second NIC. `count.c`, a
//! plugin of QEMU, counts; `guest.sh` is what the guest runs; `tests/guest/prepare` puts both, a
//! kernel and QEMU into a folder.

mod qemu;

use std::path::Path;

use serde::{Deserialize, Serialize};

pub use qemu::qemu;

use crate::Error;

/// The emulated NICs, by QEMU's names, of which each has its own driver.
pub const DEVICES: [&str; 4] = ["virtio-net-pci", "e1000e", "igb", "vmxnet3"];

/// What is counted: every combination, on one machine for each device.
#[derive(Debug, Clone, Serialize)]
pub struct Counting {
    pub devices: Vec<String>,
    pub drivers: Vec<String>,
    /// Policies of the server: `NAME`, or `NAME:US` with that gro-flush-timeout.
    pub policies: Vec<String>,
    /// Loads: `RATE:SECONDS`, where a rate of 0 is the closed loop on 16 connections.
    pub loads: Vec<String>,
    pub runs: u8,
}

impl Default for Counting {
    fn default() -> Self {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Self {
            devices: owned(&DEVICES),
            drivers: owned(&["epoll", "uring"]),
            policies: owned(&["vanilla", "packing", "suppression", "kernel-polling", "kernel-polling:200"]),
            loads: owned(&["3000:0.3", "6000:0.3", "9000:0.3", "0:0.3"]),
            runs: 1,
        }
    }
}

/// What a request cost the server's cores: the worker's, and under packing the one that receives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// From 1.
    pub run: u8,
    pub device: String,
    pub driver: String,
    pub policy: String,
    pub load: String,
    pub requests: u64,
    pub user: f64,
    pub kernel: f64,
    /// Of the kernel's, those in softirqs.
    pub softirq: f64,
    /// Of the kernel's, those in interrupts.
    pub irq: f64,
    /// Misses of the modelled caches a request: L1i, L1d, L2 and the last level.
    pub misses: [f64; 4],
    /// Interrupts of the NIC a thousand requests.
    pub nic_interrupts: f64,
    /// Interrupts of any kind a thousand requests, with those of timers and of other cores.
    pub interrupts: f64,
    /// Packets, both directions, an interrupt of the NIC; with none, as if there had been one.
    pub packets_per_interrupt: f64,
    /// Context switches of the server's threads a thousand requests.
    pub context_switches: f64,
}

impl Row {
    pub fn instructions(&self) -> f64 {
        self.user + self.kernel
    }
}

/// Runs the guests one after the other. `folder`: what `tests/guest/prepare` prints. `progress` is
/// called with the name of the NIC before each guest.
pub fn count(folder: &Path, counting: &Counting, mut progress: impl FnMut(&str)) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    for run in 1..=counting.runs {
        for device in &counting.devices {
            progress(device);
            rows.extend(qemu::run(folder, device, counting, run)?);
        }
    }
    Ok(rows)
}
