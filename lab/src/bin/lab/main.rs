//! The `lab` command.

#![forbid(unsafe_code)]

mod flags;
mod fleet_presets;
mod output;
mod presets;
mod progress_bar;

use std::process::ExitCode;

use clap::Parser;
use flags::{Command, Flags};
use lab::processes;
use output::Failure;

fn main() -> ExitCode {
    let flags = Flags::parse();
    // The libraries report by `tracing` what they can't return, for example settings that could not
    // be put back. Not on standard output, which is an experiment process's protocol.
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .with_writer(std::io::stderr)
        .without_time()
        .with_target(false)
        .init();
    match run(flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lab: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(flags: Flags) -> Result<(), Failure> {
    match flags.command.unwrap_or(Command::Compare(flags.compare)) {
        Command::Compare(flags) => fleet_presets::compare(&flags),
        Command::Peers(flags) => fleet_presets::peers(&flags),
        Command::Attach(flags) => fleet_presets::attach(&flags),
        Command::Steps(flags) => fleet_presets::steps(&flags),
        Command::SelfTest(flags) => fleet_presets::self_test(&flags),
        Command::Check(flags) => presets::check(&flags),
        Command::Model(flags) => presets::model(&flags),
        Command::Waiting(flags) => presets::waiting(&flags),
        Command::Instructions(flags) => presets::instructions(&flags),
        Command::Paper(flags) => presets::paper(&flags),
        Command::ExperimentProcess { role, namespace } => Ok(processes::run(&role, namespace.as_deref())?),
    }
}
