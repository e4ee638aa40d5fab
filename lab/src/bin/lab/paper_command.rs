//! `lab paper`.

use std::fs;
use std::time::Duration;

use lab::engine::CoreAssignment;
use lab::experiments::paper::{PaperConfig, PaperPlan};
use lab::idle_cores::AwakeCores;
use lab::report::PaperReport;

use crate::flags::PaperFlags;
use crate::output::Failure;
use crate::progress_bar::with_bar;

pub fn run(flags: &PaperFlags) -> Result<(), Failure> {
    let folder = &flags.output;
    let failed = |error| format!("--output {}: {error}", folder.display());
    fs::create_dir_all(folder).map_err(failed)?;
    let config = PaperConfig::new(flags.quick)
        .shortened(flags.turn_time.map(Duration::from_millis), flags.rounds.map(usize::from));
    let cores = CoreAssignment::choose()?;
    // Fails without permission; all are compared under the same conditions either way.
    let awake = AwakeCores::request();
    let plan = PaperPlan::new(&config, cores)?;
    let programs = plan.programs.clone();
    let parts = with_bar(plan.steps(), |progress| plan.measure(progress));
    let report = PaperReport::new(config, cores, awake.is_ok(), programs, parts);
    report.document().write(folder, &report).map_err(failed)?;
    println!("{}\n{}", report.summary(), folder.join("report.html").display());
    Ok(())
}
