//! One trial: counters of an interface under a policy.

use std::thread;
use std::time::Duration;

use policies::counters::{Delta, Snapshot};
use policies::{Applied, Cpus, Interface, JournalDir, Lifetime, Plan, Policy, Settings, apply, host};

use crate::error::CommandError;
use crate::output::write_error;

/// Applies a policy, counts while `during` and then `seconds` pass, and restores the host.
pub fn measure(
    interface: &Interface,
    policy: Policy,
    settings: &Settings,
    journals: &JournalDir,
    seconds: u64,
    during: impl FnOnce(&[Applied]) -> Result<(), CommandError>,
) -> Result<Delta, CommandError> {
    // Read again: the previous trial restored values after `interface` was read.
    let interface = host::interface(&interface.name)?;
    let guard = apply(&Plan::new(policy, &interface, settings), Lifetime::Process, journals)?;
    // Packets that are in flight belong to the previous trial.
    thread::sleep(Duration::from_millis(200));
    let before = Snapshot::take(&interface)?;
    during(guard.applied())?;
    thread::sleep(Duration::from_secs(seconds));
    let delta = Snapshot::take(&interface)?.since(&before);
    if let Some(report) = guard.restore() {
        report?.failures().for_each(write_error);
    }
    Ok(delta)
}

/// The `--worker-cores` flag of the command that applies a result, with a leading space; empty for no cores.
pub fn worker_cores_flag(cores: &Cpus) -> String {
    if cores.is_empty() { String::new() } else { format!(" --worker-cores {cores}") }
}
