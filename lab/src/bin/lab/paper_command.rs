//! `lab paper`.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use lab::engine::CoreAssignment;
use lab::experiments::paper::{self, PaperConfig, PaperProgress, Part, PartOutcome, Programs};
use lab::idle_cores::AwakeCores;
use lab::report::PaperReport;

use crate::flags::PaperFlags;
use crate::output::Failure;
use crate::progress_bar::progress_bar;

pub fn run(flags: &PaperFlags) -> Result<(), Failure> {
    let config = PaperConfig::new(flags.quick)
        .shortened(flags.turn_time.map(Duration::from_millis), flags.rounds.map(usize::from));
    let cores = CoreAssignment::choose()?;
    // Fails without permission; all are compared under the same conditions either way.
    let awake = AwakeCores::request();
    let programs = Programs::find();
    let steps = Part::ALL.map(|part| paper::steps(&config, cores, &programs, part));
    let bar = progress_bar(steps.iter().sum());
    let terminal = io::stderr().is_terminal();
    let (mut begun, mut done) = (Instant::now(), 0);
    let result = paper::measure(&config, cores, awake.is_ok(), &flags.output, |progress| match progress {
        PaperProgress::Turn(step) => {
            bar.inc(1);
            bar.set_message(step.to_owned());
        }
        PaperProgress::Finished(part, outcome) => {
            // A part may take fewer turns than planned, or more.
            done += Part::ALL.iter().position(|other| *other == part).map_or(0, |index| steps[index]);
            bar.set_position(done as u64);
            let line = finished(part, outcome, begun.elapsed());
            if terminal {
                bar.println(line)
            } else {
                eprintln!("{line}")
            }
            begun = Instant::now();
        }
        _ => {}
    });
    bar.finish_and_clear();
    let folder = &flags.output;
    let result = result.map_err(|error| format!("--output {}: {error}", folder.display()))?;
    let report = PaperReport::new(config, cores, awake.is_ok(), result);
    report
        .document()
        .write(folder, &report)
        .map_err(|error| format!("--output {}: {error}", folder.display()))?;
    let mut out = io::stdout().lock();
    write!(out, "{}", report.summary())?;
    writeln!(out, "\n{}", folder.join("report.html").display())?;
    Ok(())
}

/// A line on a part that is over.
fn finished(part: Part, outcome: &PartOutcome, took: Duration) -> String {
    match outcome {
        PartOutcome::Measured { saved: true, .. } => format!("{part}: measured before"),
        PartOutcome::Measured { .. } => format!("{part}: measured in {:.0} s", took.as_secs_f64()),
        PartOutcome::Missing(reason) => format!("{part}: not measured: {reason}"),
    }
}
