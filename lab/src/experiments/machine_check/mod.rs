//! Whether a machine can show differences between policies at all, and what to change if not.

mod findings;
mod observation;
mod system;
mod wake_up;

use std::time::Duration;

use serde::Serialize;

use crate::Error;
use crate::engine::CoreAssignment;
use crate::idle_cores::AwakeCores;
pub use findings::{Finding, Level};
pub use observation::Observation;
pub(super) use system::vulnerabilities;

/// What a check of the machine found.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct MachineCheck {
    /// Which core would run what.
    pub cores: CoreAssignment,
    /// The findings, in the order of the table.
    pub findings: Vec<Finding>,
    /// What the cores did meanwhile; `None` with one core.
    pub observation: Option<Observation>,
    /// What the machine can show, in one sentence.
    pub verdict: String,
}

/// Checks the machine for about `duration`. `rounds` is the number of rounds of a full run, for which the verdict is.
///
/// # Errors
/// If the process's affinity, `/proc` or the distance of the cores can't be read.
pub fn check_machine(duration: Duration, rounds: usize) -> Result<MachineCheck, Error> {
    let cores = CoreAssignment::choose()?;
    let usable = policies::Cpus::allowed()?.len();
    let mut findings = vec![findings::usable_cores(usable)];
    findings.push(system::other_load(duration / 10)?);
    if cores.server != cores.client {
        let asleep = wake_up::wake_up_us(cores.client, cores.server)?;
        // As experiments run.
        let awake =
            AwakeCores::request().and_then(|_awake| wake_up::wake_up_us(cores.client, cores.server)).ok();
        findings.push(findings::wake_up(asleep, awake));
    }
    let observed = if cores.server == cores.client {
        None
    } else {
        Some(observation::observe(cores, duration.mul_f64(0.9), rounds)?)
    };
    if let Some(observed) = &observed {
        findings.push(findings::distance(observed));
        findings.push(findings::steal(observed));
    }
    findings.extend(system::findings(cores.server));
    let verdict = findings::verdict(&findings, observed.as_ref(), rounds);
    Ok(MachineCheck { cores, findings, observation: observed, verdict })
}
