//! `policies tune packing`.

use std::process::ExitCode;

use clap::Args;
use policies::{Cpus, JournalDir, Plan, Policy, Settings, host};

use super::report::Trials;
use super::trial::{measure, worker_cores_flag};
use crate::error::CommandError;
use crate::output::Format;

#[derive(Args)]
pub struct PackingArguments {
    /// Interface, for example eth0
    interface: String,
    /// Cores of the application's workers, not used for packing while others are free
    #[arg(long, default_value = "", hide_default_value = true)]
    worker_cores: Cpus,
    /// Cores to pack on, tried from the lowest [default: all cores without a worker, tried from the highest]
    #[arg(long, default_value = "", hide_default_value = true)]
    packing_cores: Cpus,
    /// Seconds for each number of cores
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
}

impl PackingArguments {
    fn settings(&self, packing_cores: Cpus) -> Settings {
        Settings { worker_cores: self.worker_cores.iter().collect(), packing_cores, ..Settings::default() }
    }

    /// The cores to pack on, in the order in which they are added.
    fn candidates(&self) -> Result<Vec<u32>, CommandError> {
        if !self.packing_cores.is_empty() {
            return Ok(self.packing_cores.iter().collect());
        }
        let allowed = Cpus::allowed().map_err(CommandError::Affinity)?;
        let mut free: Vec<u32> = allowed.iter().filter(|&cpu| !self.worker_cores.contains(cpu)).collect();
        free.reverse();
        if free.is_empty() {
            free = allowed.iter().collect();
        }
        Ok(free)
    }
}

/// The share of softirq time above which a core counts as full. Below 1, because softirq time is counted
/// by ticks, which miss short softirqs.
const FULL_SHARE: f64 = 0.9;
/// The least gain in packets that justifies another core; two measurements of the same load may differ by
/// less.
const MIN_GAIN: f64 = 1.03;

pub(super) fn tune(
    arguments: &PackingArguments,
    journals: &JournalDir,
    format: Format,
) -> Result<ExitCode, CommandError> {
    let interface = host::interface(&arguments.interface)?;
    let candidates = arguments.candidates()?;
    let max_cores = candidates.len().min(interface.queues.len().max(1));
    let mut trials = Trials::new(&["packing cores", "packets/s", "softirq share of each", "full"]);
    let mut best: Option<(Vec<u32>, f64)> = None;
    let mut reason = "the load fills all of them";
    for count in 1..=max_cores {
        let cores = &candidates[..count];
        let settings = arguments.settings(cores.iter().copied().collect());
        let delta = measure(&interface, Policy::Packing, &settings, journals, arguments.seconds, |_| Ok(()))?;
        let seconds = delta.elapsed.as_secs_f64();
        let rate = delta.rx_packets.total() as f64 / seconds;
        let share = |core: &u32| {
            delta.cpus.get(*core as usize).map_or(0.0, |cpu| cpu.softirq.as_secs_f64() / seconds)
        };
        let shares: Vec<f64> = cores.iter().map(share).collect();
        let full = shares.iter().all(|share| *share > FULL_SHARE);
        trials.add([
            settings.packing_cores.to_string(),
            format!("{rate:.0}"),
            shares.iter().map(|share| format!("{:.0} %", share * 100.0)).collect::<Vec<_>>().join(", "),
            if full { "yes" } else { "no" }.to_owned(),
        ]);
        if rate == 0.0 {
            trials.print(format);
            return Err(CommandError::NoLoad(interface.name));
        }
        match &best {
            Some((_, before)) if rate < before * MIN_GAIN => {
                reason = "another core does not increase the packet rate";
                break;
            }
            _ => best = Some((cores.to_vec(), rate)),
        }
        if !full {
            reason = "they have idle time";
            break;
        }
    }
    let Some((cores, _)) = best else {
        trials.print(format);
        return Ok(ExitCode::FAILURE);
    };
    let cores: Cpus = cores.into_iter().collect();
    let found = format!("the smallest sufficient set: packing cores {cores} ({reason})");
    let plan = Plan::new(Policy::Packing, &interface, &arguments.settings(cores.clone()));
    let command = format!(
        "policies apply {} --policy packing --packing-cores {cores}{}",
        interface.name,
        worker_cores_flag(&arguments.worker_cores)
    );
    trials.print_with_result(format, &found, &plan, &command);
    Ok(ExitCode::SUCCESS)
}
