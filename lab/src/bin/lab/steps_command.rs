//! `lab steps`.

use lab::experiments::fleet_comparison::{Contender, FleetComparisonConfig};
use lab::experiments::{Contestant, CoreAssignment};
use lab::polling_config::PollingConfig;
use lab::report::LoadStepsReport;
use policies::Policy;
use runtime::WaitStrategy;

use crate::flags::StepsFlags;
use crate::fleet_commands::{require_testbed, run as run_comparison};
use crate::output::{Failure, create_file, write_report};

/// Compares vanilla and kernel polling under loads that step up and down.
pub fn run(flags: &StepsFlags) -> Result<(), Failure> {
    require_testbed("steps")?;
    let driver = flags.driver;
    let contestants = [Policy::Vanilla, Policy::KernelPolling].map(|policy| Contestant { policy, driver });
    let polling = |&latency_budget| PollingConfig { latency_budget, ..PollingConfig::default() };
    let polling: Vec<PollingConfig> = flags.latency_budget.iter().map(polling).collect();
    let contenders = Contender::lull(&contestants, &polling, WaitStrategy::Block);
    let mut config = FleetComparisonConfig::load_steps(contenders, flags.quick);
    config.connections = flags.connections.into();
    config.given_capacity = flags.capacity.map(f64::from);
    if let Some(rounds) = flags.rounds {
        (config.rounds, config.capacity_rounds) = (rounds.into(), rounds.into());
    }
    let file = create_file(flags.report.output.as_deref())?;
    let report = LoadStepsReport::new(run_comparison(config, CoreAssignment::choose()?)?);
    write_report(flags.report.format, file, &report, || report.text())
}
