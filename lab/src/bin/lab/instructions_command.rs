//! `lab instructions`.

use std::path::PathBuf;

use clap::Args;
use lab::instructions::{self, Counting, InstructionReport};

use crate::flags::Format;
use crate::output::{Failure, print};
use crate::progress_bar::with_bar;

#[derive(Args, Clone)]
pub struct InstructionFlags {
    /// Print text for people, or JSON for programs
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// The folder that tests/guest/prepare prints, or its path in LULL_GUEST
    #[arg(long)]
    guest: Option<PathBuf>,
    /// Emulated NICs, separated by commas: virtio-net-pci, e1000e, igb, vmxnet3 [default: all]
    #[arg(long, value_delimiter = ',', value_parser = instructions::DEVICES)]
    devices: Vec<String>,
    /// Drivers of the server, separated by commas [default: epoll,uring]
    #[arg(long, value_delimiter = ',', value_parser = ["epoll", "uring"])]
    drivers: Vec<String>,
    /// Policies, separated by commas; NAME:US sets gro-flush-timeout [default: vanilla,packing,suppression,kernel-polling,kernel-polling:200]
    #[arg(long, value_delimiter = ',', value_parser = word)]
    policies: Vec<String>,
    /// Loads, separated by commas: RATE:SECONDS, where a rate of 0 is the closed loop [default: 6000:0.3,0:0.3]
    #[arg(long, value_delimiter = ',', value_parser = load)]
    loads: Vec<String>,
}

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

pub fn run(flags: &InstructionFlags) -> Result<(), Failure> {
    let folder = flags.guest.clone().or_else(|| std::env::var_os("LULL_GUEST").map(Into::into));
    let folder =
        folder.ok_or("no machine to count on: run LULL_GUEST=$(tests/guest/prepare) lab instructions")?;
    let kernel = std::fs::read_to_string(folder.join("fetched"))
        .map_err(|error| format!("{}: {error}: tests/guest/prepare makes this folder", folder.display()))?;
    let mut counting = Counting::default();
    for (asked, used) in [
        (&flags.devices, &mut counting.devices),
        (&flags.drivers, &mut counting.drivers),
        (&flags.policies, &mut counting.policies),
        (&flags.loads, &mut counting.loads),
    ] {
        if !asked.is_empty() {
            used.clone_from(asked);
        }
    }
    let rows =
        with_bar(counting.devices.len(), |progress| instructions::count(&folder, &counting, progress))?;
    let report = InstructionReport::new(kernel.trim().to_owned(), counting, rows);
    print(flags.format, &report, &report.text())
}
