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
use crate::report::{Document, Section, Table};

/// The emulated NICs, by QEMU's names, of which each has its own driver.
pub const DEVICES: [&str; 4] = ["virtio-net-pci", "e1000e", "igb", "vmxnet3"];

/// What is counted: every combination, on one machine for each device.
#[derive(Debug, Clone, clap::Args, Serialize)]
pub struct Counting {
    /// Emulated NICs
    #[arg(long, value_delimiter = ',', default_values = DEVICES, value_parser = DEVICES)]
    pub devices: Vec<String>,
    /// Drivers of the server
    #[arg(long, value_delimiter = ',', default_values = DRIVERS, value_parser = DRIVERS)]
    pub drivers: Vec<String>,
    /// Policies; NAME:US sets gro-flush-timeout
    #[arg(long, value_delimiter = ',', default_values = POLICIES, value_parser = word)]
    pub policies: Vec<String>,
    /// RATE:SECONDS, where a rate of 0 is the closed loop on 16 connections
    #[arg(long, value_delimiter = ',', default_values = LOADS, value_parser = load)]
    pub loads: Vec<String>,
}

const DRIVERS: [&str; 2] = ["epoll", "uring"];
const POLICIES: [&str; 5] = ["vanilla", "packing", "suppression", "kernel-polling", "kernel-polling:200"];
const LOADS: [&str; 4] = ["3000:0.3", "6000:0.3", "9000:0.3", "0:0.3"];

/// A name that the guest's shell takes for one word.
fn word(text: &str) -> Result<String, String> {
    let plain = |it: char| it.is_ascii_alphanumeric() || "-:.".contains(it);
    if text.is_empty() || !text.chars().all(plain) {
        return Err("expected a policy, or POLICY:MICROSECONDS".to_owned());
    }
    Ok(text.to_owned())
}

fn load(text: &str) -> Result<String, String> {
    let numbers = text.split_once(':').map(|(rate, time)| (rate.parse::<u32>(), time.parse::<f64>()));
    match numbers {
        Some((Ok(_), Ok(seconds))) if seconds > 0.0 && seconds <= 60.0 => Ok(text.to_owned()),
        _ => Err("expected RATE:SECONDS, for example 6000:0.3".to_owned()),
    }
}

/// What a request cost the server's cores: the worker's, and under packing the one that receives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
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
    for device in &counting.devices {
        progress(device);
        rows.extend(qemu::run(folder, device, counting)?);
    }
    Ok(rows)
}

/// What is read of a report's `results.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Counted {
    pub kernel: String,
    pub rows: Vec<Row>,
}

impl Counted {
    /// Of the folder that `lab instructions` has written, or of its `results.json`.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let file = if path.is_dir() { path.join("results.json") } else { path.to_owned() };
        let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        serde_json::from_str(&text).map_err(|error| {
            format!("{}: not a report ({error}); --output FOLDER writes one", file.display()).into()
        })
    }
}

#[derive(Debug, Serialize)]
pub struct InstructionReport {
    pub kernel: String,
    pub counting: Counting,
    pub rows: Vec<Row>,
}

impl InstructionReport {
    /// A table for each device, driver and load.
    pub fn document(&self) -> Document {
        let Counting { devices, drivers, loads, .. } = &self.counting;
        let mut section = Section::new("requests", "A request");
        for device in devices {
            for (driver, load) in
                drivers.iter().flat_map(|driver| loads.iter().map(move |load| (driver, load)))
            {
                let is_here = |row: &&Row| (&row.device, &row.driver, &row.load) == (device, driver, load);
                let rows: Vec<&Row> = self.rows.iter().filter(is_here).collect();
                section.tables.push(counts_table(format!("{device}, {driver}, {}", load_text(load)), &rows));
            }
        }
        Document {
            title: "Instructions of a request".to_owned(),
            conditions: vec![format!(
                "Linux {} in an emulated machine. Instructions and misses of modelled caches are those of the server's cores a \
                 request, interrupts and context switches those a thousand requests; the ratio is to the first policy.",
                self.kernel
            )],
            sections: vec![section],
            ..Document::default()
        }
    }
}

/// Rows by policy, with the ratio to the first one.
pub(crate) fn counts_table(title: String, rows: &[&Row]) -> Table {
    let header = [
        "", "instr.", "ratio", "user", "kernel", "softirq", "irq", "L1i", "L1d", "L2", "LLC", "NIC irqs",
        "all irqs", "pkts/irq", "switches",
    ];
    let cells = |row: &&Row| {
        let (all, first) = (row.instructions(), rows[0].instructions());
        let mut cells = vec![row.policy.clone(), format!("{all:.0}"), format!("{:.2}", all / first)];
        cells.extend([row.user, row.kernel, row.softirq, row.irq].map(|it| format!("{it:.0}")));
        cells.extend(row.misses.map(|it| format!("{it:.1}")));
        cells.extend([row.nic_interrupts, row.interrupts].map(|it| format!("{it:.0}")));
        cells.extend([format!("{:.1}", row.packets_per_interrupt), format!("{:.0}", row.context_switches)]);
        cells
    };
    Table::new(title, &header, rows.iter().map(cells).collect())
}

fn load_text(load: &str) -> String {
    match load.split_once(':') {
        Some(("0", _)) => "closed loop".to_owned(),
        Some((rate, _)) => format!("{rate}/s"),
        None => load.to_owned(),
    }
}
