//! `lab numa`.

use lab::experiments::numa::{self, NumaConfig, NumaCores};
use lab::idle_cores::AwakeCores;
use lab::report::{Machine, NumaReport};
use policies::Policy;

use crate::flags::NumaFlags;
use crate::fleet_commands::require_testbed;
use crate::output::{Failure, create_file, write_report};
use crate::progress_bar::{begin_step, progress_bar};

pub fn run(flags: &NumaFlags) -> Result<(), Failure> {
    let has_cores_of_its_own = |policy: &&Policy| matches!(policy, Policy::Packing | Policy::KernelThread);
    if let Some(policy) = flags.policies.iter().find(has_cores_of_its_own) {
        return Err(format!(
            "--policies {policy}: it needs more cores than the workers', so its servers would not be comparable; name vanilla, \
             suppression or kernel-polling"
        )
        .into());
    }
    let cores = NumaCores::choose()?;
    require_testbed("numa")?;
    let file = create_file(flags.report.output.as_deref())?;
    let mut config = NumaConfig::new(flags.policies.clone(), flags.driver, flags.quick);
    config.rounds = flags.rounds.map_or(config.rounds, usize::from);
    // Fails without permission, which the report says.
    let awake = AwakeCores::request();
    let bar = progress_bar(config.steps());
    let measured = numa::measure(&config, &cores, |step| begin_step(&bar, step))?;
    bar.finish_and_clear();
    let report = NumaReport::new(Machine::read(), cores, awake.is_ok(), config, measured);
    write_report(flags.report.format, file, &report, || report.text())
}
