//! The `lab` command.

#![forbid(unsafe_code)]

mod commands;
mod flags;
mod fleet_commands;
mod ineffective_flags;
mod instructions_command;
mod model_command;
mod numa_command;
mod output;
mod paper_command;
mod progress_bar;
mod steps_command;
mod waiting_command;

use std::process::ExitCode;

use flags::Command;
use lab::allocation_counter::CountingAllocator;
use lab::experiment_process;
use lab::experiments::Contestant;

/// Costs every echo server the same, and nothing where nothing is allocated.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn main() -> ExitCode {
    let flags = ineffective_flags::parse();
    // The libraries report by `tracing` what they can't return, for example settings that could not be put back.
    // Not on standard output, which is an experiment process's protocol.
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .with_writer(std::io::stderr)
        .without_time()
        .with_target(false)
        .init();
    let outcome = match flags.command {
        Some(Command::ExperimentProcess { role, namespace }) => {
            experiment_process::run(&role, namespace.as_deref()).map_err(Into::into)
        }
        Some(Command::Diff(flags)) => commands::diff(&flags),
        Some(Command::SelfTest(flags)) => fleet_commands::self_test(&flags),
        Some(Command::Check(flags)) => commands::check(&flags),
        Some(Command::Compare(flags)) => fleet_commands::compare(&flags, flags.contestants()),
        Some(Command::Peers(flags)) if flags.comparison.loopback => commands::compare_peers(&flags),
        Some(Command::Peers(flags)) => fleet_commands::compare_peers(&flags),
        Some(Command::Attach(flags)) => fleet_commands::attach(&flags),
        Some(Command::Steps(flags)) => steps_command::run(&flags),
        Some(Command::Generators(flags)) => commands::compare_generators(&flags),
        Some(Command::MemcachedCpu(flags)) => commands::compare_memcached_cpu(flags),
        Some(Command::Model(flags)) => model_command::run(&flags),
        Some(Command::Numa(flags)) => numa_command::run(&flags),
        Some(Command::Waiting(flags)) => waiting_command::run(&flags),
        Some(Command::Instructions(flags)) => instructions_command::run(&flags),
        Some(Command::Paper(flags)) => paper_command::run(&flags),
        Some(Command::Drivers(flags)) => fleet_commands::compare(&flags, Contestant::drivers()),
        None => fleet_commands::compare(&flags.compare, flags.compare.contestants()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lab: {error}");
            ExitCode::FAILURE
        }
    }
}
