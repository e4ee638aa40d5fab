//! The `lab` command.

#![forbid(unsafe_code)]

mod commands;
mod flags;
mod output;

use std::process::ExitCode;

use clap::Parser;
use flags::{Command, Flags};
use lab::preflight::NotQuiet;
use lab::{Error, processes};

/// The exit code where the machine can't carry an experiment now.
const NOT_QUIET: u8 = 3;

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
            if error.is::<NotQuiet>() { NOT_QUIET.into() } else { ExitCode::FAILURE }
        }
    }
}

fn run(flags: Flags) -> Result<(), Error> {
    match flags.command.unwrap_or(Command::Compare(flags.compare)) {
        Command::Compare(flags) => commands::compare(&flags),
        Command::Peers(flags) => commands::peers(&flags),
        Command::Attach(flags) => commands::attach(&flags),
        Command::SelfTest(flags) => commands::self_test(&flags),
        Command::Card(flags) => commands::on_card(&flags),
        Command::Instructions(flags) => commands::instructions(&flags),
        Command::Paper(flags) => commands::paper(&flags),
        Command::ExperimentProcess { namespace } => processes::run(namespace.as_deref()),
    }
}
