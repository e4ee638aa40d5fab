//! The other subcommands.

use std::path::Path;
use std::time::Duration;

use lab::commands::check::check_machine;
use lab::commands::model::{ModelConfig, ModelReport};
use lab::commands::paper::{PaperConfig, PaperPlan, PaperReport};
use lab::commands::waiting::{self, WaitingConfig, WaitingReport};
use lab::cores::{AwakeCores, CoreAssignment};
use lab::instructions::{self, Counted, Counting, InstructionReport};

use crate::flags::{CheckFlags, INSTRUCTIONS, InstructionFlags, LoopbackFlags, PaperFlags, WaitingFlags};
use crate::output::{Failure, Output, print};
use crate::progress_bar::with_bar;

/// The rounds of a full run, for which the check's verdict is.
const ROUNDS: usize = 12;

pub fn check(flags: &CheckFlags) -> Result<(), Failure> {
    let report = check_machine(Duration::from_secs(flags.seconds.into()), ROUNDS)?;
    print(flags.format, &report, &report.document().text())
}

pub fn model(flags: &LoopbackFlags) -> Result<(), Failure> {
    let output = Output::open(&flags.report)?;
    let config = ModelConfig::new(flags.quick, flags.seconds.map(f64::from));
    let cores = CoreAssignment::choose()?;
    // Fails without permission; the servers are compared under the same conditions either way.
    let _awake = AwakeCores::request();
    let report = with_bar(config.steps(), |progress| ModelReport::measure(config, cores, progress))?;
    output.write_all(&report.document(), &report)
}

pub fn waiting(flags: &WaitingFlags) -> Result<(), Failure> {
    let output = Output::open(&flags.run.report)?;
    let mut config = WaitingConfig::new(flags.run.quick, flags.run.seconds.map(f64::from));
    config.driver = flags.driver;
    config.rate = flags.rate.into();
    let cores = CoreAssignment::choose()?;
    // Fails without permission, which the report says.
    let awake = AwakeCores::request();
    let results = with_bar(config.steps(), |progress| waiting::measure(&config, cores, progress))?;
    let report = WaitingReport::new(cores, awake.is_ok(), config, results);
    output.write_all(&report.document(), &report)
}

pub fn instructions(flags: &InstructionFlags) -> Result<(), Failure> {
    let folder = flags.guest.clone().or_else(|| std::env::var_os("LULL_GUEST").map(Into::into));
    let folder =
        folder.ok_or("no machine to count on: run LULL_GUEST=$(tests/guest/prepare) lab instructions")?;
    let kernel = std::fs::read_to_string(folder.join("fetched"))
        .map_err(|error| format!("{}: {error}: tests/guest/prepare makes this folder", folder.display()))?;
    let output = Output::create(flags.format, &flags.output)?;
    let mut counting = Counting { runs: flags.runs, ..Counting::default() };
    for (asked, used) in [
        (&flags.devices, &mut counting.devices),
        (&flags.drivers, &mut counting.drivers),
        (&flags.policies, &mut counting.policies),
        (&flags.loads, &mut counting.loads),
    ] {
        if !asked.is_empty() {
            used.clone_from(asked);
        }
    }
    let rows = with_bar(counting.devices.len() * usize::from(counting.runs), |progress| {
        instructions::count(&folder, &counting, progress)
    })?;
    let report = InstructionReport { kernel: kernel.trim().to_owned(), counting, rows };
    output.write_all(&report.document(), &report)
}

pub fn paper(flags: &PaperFlags) -> Result<(), Failure> {
    let output = Output::create(Default::default(), &flags.output)?;
    let usual = || Path::new(INSTRUCTIONS).exists().then(|| INSTRUCTIONS.into());
    let counted = flags.instructions.clone().or_else(usual).map(|path| Counted::read(&path)).transpose()?;
    let config = PaperConfig::new(flags.quick)
        .shortened(flags.turn_time.map(Duration::from_millis), flags.rounds.map(usize::from));
    let cores = CoreAssignment::choose()?;
    // Fails without permission; all are compared under the same conditions either way.
    let awake = AwakeCores::request();
    let plan = PaperPlan::new(&config, cores)?;
    let programs = plan.programs.clone();
    let parts = with_bar(plan.steps(), |progress| plan.measure(progress));
    let report = PaperReport::new(config, cores, awake.is_ok(), programs, parts, counted);
    let summary = format!("{}\n{}\n", report.summary(), output.page());
    output.write(&report.document(), &report, &summary)
}
