//! `lab model`.

use std::io::Write;

use lab::experiments::CoreAssignment;
use lab::experiments::crossing_model::{self, ModelConfig};
use lab::idle_cores::AwakeCores;
use lab::report::{Machine, ModelReport};

use crate::commands::create_testbed;
use crate::flags::ModelFlags;
use crate::output::{Failure, create_file, write_report};
use crate::progress_bar::{begin_step, progress_bar};

pub fn run(flags: &ModelFlags) -> Result<(), Failure> {
    let (file, plot) = (create_file(flags.report.output.as_deref())?, create_file(flags.plot.as_deref())?);
    let config = ModelConfig::new(flags.quick, flags.seconds.map(f64::from));
    let cores = CoreAssignment::choose()?;
    let testbed = if flags.loopback { None } else { create_testbed()? };
    // Fails without permission; the servers are compared under the same conditions either way.
    let _awake = AwakeCores::request();
    let bar = progress_bar(crossing_model::steps(&config));
    let measured = crossing_model::measure(&config, cores, testbed, |step| begin_step(&bar, step))?;
    bar.finish_and_clear();
    let report = ModelReport::new(Machine::read(), cores, config, measured);
    if let Some(mut plot) = plot {
        plot.write_all(report.svg()?.as_bytes())?;
    }
    write_report(flags.report.format, file, &report, || report.text())
}
