//! `policies tune`: finds values for a policy under the present load, and restores the host.

mod icmp_echo;
mod packing;
mod report;
mod suppression;
mod trial;

use std::process::ExitCode;

use clap::Subcommand;
use policies::JournalDir;

use crate::error::CommandError;
use crate::output::Format;
use packing::PackingArguments;
use suppression::SuppressionArguments;

#[derive(Subcommand)]
pub enum Tune {
    /// Find the smallest number of packing cores that the load's network processing does not fill
    Packing(PackingArguments),
    /// Find the interrupt delay with the fewest interrupts within a latency bound
    Suppression(SuppressionArguments),
}

pub fn run(tune: &Tune, journals: &JournalDir, format: Format) -> Result<ExitCode, CommandError> {
    match tune {
        Tune::Packing(arguments) => packing::tune(arguments, journals, format),
        Tune::Suppression(arguments) => suppression::tune(arguments, journals, format),
    }
}
