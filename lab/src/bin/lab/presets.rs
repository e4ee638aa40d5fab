//! The other subcommands.

use std::time::Duration;

use lab::engine::CoreAssignment;
use lab::experiments::crossing_model::{self, ModelConfig};
use lab::experiments::machine_check::check_machine;
use lab::experiments::waiting::{self, WaitingConfig};
use lab::idle_cores::AwakeCores;
use lab::report::{CheckReport, ModelReport, ReportDiff, WaitingReport};

use crate::flags::{CheckFlags, DiffFlags, ModelFlags, WaitingFlags};
use crate::output::{Failure, Output, print};
use crate::progress_bar::with_bar;

/// The rounds of a full run, for which the check's verdict is.
const ROUNDS: usize = 12;

pub fn check(flags: &CheckFlags) -> Result<(), Failure> {
    let report = CheckReport::new(check_machine(Duration::from_secs(flags.seconds.into()), ROUNDS)?);
    print(flags.format, &report, &report.document().text())
}

pub fn diff(flags: &DiffFlags) -> Result<(), Failure> {
    let diff = ReportDiff::read(&flags.before, &flags.after)?;
    print(flags.format, &diff, &diff.document().text())
}

pub fn model(flags: &ModelFlags) -> Result<(), Failure> {
    let output = Output::open(&flags.report)?;
    let config = ModelConfig::new(flags.quick, flags.seconds.map(f64::from));
    let cores = CoreAssignment::choose()?;
    // Fails without permission; the servers are compared under the same conditions either way.
    let _awake = AwakeCores::request();
    let measured = with_bar(config.steps(), |progress| crossing_model::measure(&config, cores, progress))?;
    let report = ModelReport::new(cores, config, measured);
    output.write_all(&report.document(), &report)
}

pub fn waiting(flags: &WaitingFlags) -> Result<(), Failure> {
    let output = Output::open(&flags.report)?;
    let mut config = WaitingConfig::new(flags.quick, flags.seconds.map(f64::from));
    config.driver = flags.driver;
    config.rate = flags.rate.into();
    let cores = CoreAssignment::choose()?;
    // Fails without permission, which the report says.
    let awake = AwakeCores::request();
    let results = with_bar(config.steps(), |progress| waiting::measure(&config, cores, progress))?;
    let report = WaitingReport::new(cores, awake.is_ok(), config, results);
    output.write_all(&report.document(), &report)
}
