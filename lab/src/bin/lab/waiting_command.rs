//! `lab waiting`.

use lab::experiments::CoreAssignment;
use lab::experiments::waiting::{self, WaitingConfig};
use lab::idle_cores::AwakeCores;
use lab::report::{Machine, WaitingReport};

use crate::flags::WaitingFlags;
use crate::output::{Failure, create_file, write_report};
use crate::progress_bar::{begin_step, progress_bar};

pub fn run(flags: &WaitingFlags) -> Result<(), Failure> {
    let file = create_file(flags.report.output.as_deref())?;
    let mut config = WaitingConfig::new(flags.quick, flags.seconds.map(f64::from));
    config.driver = flags.driver;
    config.rate = flags.rate.into();
    let cores = CoreAssignment::choose()?;
    // Fails without permission, which the report says.
    let awake = AwakeCores::request();
    let bar = progress_bar(waiting::steps(&config));
    let measured = waiting::measure(&config, cores, |step| begin_step(&bar, step))?;
    bar.finish_and_clear();
    let report = WaitingReport::new(Machine::read(), cores, awake.is_ok(), config, measured);
    write_report(flags.report.format, file, &report, || report.text())
}
