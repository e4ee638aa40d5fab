//! `policies run`: a command, with its children, under kernel polling from its start.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use clap::Args;
use policies::attach::{Attachment, Target};
use policies::{JournalDir, signals};
use rustix::process::{Pid, Signal, kill_process, set_child_subreaper};

use super::{PollingArguments, TICK};
use crate::output::CommandError;
use crate::output::{print_left_journals, write_error};

#[derive(Args)]
pub struct RunArguments {
    #[command(flatten)]
    polling: PollingArguments,
    /// Print what is attached, on standard error
    #[arg(long)]
    verbose: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs the command, and exits with its code; 128 and the signal if a signal ended it.
pub fn run(arguments: &RunArguments, journals: &JournalDir) -> Result<ExitCode, CommandError> {
    print_left_journals(&policies::recover(journals)?);
    // What the command starts stays below this process, also if it goes to the background.
    set_child_subreaper(Pid::from_raw(1)).map_err(|error| CommandError::Signals(error.into()))?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let _interrupt =
        signals::intercept(move || stopped.store(true, Ordering::Release)).map_err(CommandError::Signals)?;
    let (program, rest) = arguments.command.split_first().ok_or(CommandError::NoCommand)?;
    let mut child = Command::new(program)
        .args(rest)
        .spawn()
        .map_err(|source| CommandError::Run { program: program.to_string_lossy().into_owned(), source })?;
    let verbose = arguments.verbose;
    let config = arguments.polling.config(Target::DescendantsOf(std::process::id()), journals);
    let attachment = Attachment::start(config, move |event| {
        if verbose {
            write_error(event);
        }
    });
    // The command runs without it, too.
    let attachment = attachment.map_err(|error| write_error(format_args!("{error}"))).ok();
    let status = wait(&mut child, &stop)?;
    drop(attachment);
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Waits for the command. SIGINT of a terminal goes to the command by itself; SIGTERM is passed on.
fn wait(child: &mut Child, stop: &AtomicBool) -> Result<ExitStatus, CommandError> {
    loop {
        if let Some(status) = child.try_wait().map_err(CommandError::Signals)? {
            return Ok(status);
        }
        if stop.swap(false, Ordering::AcqRel) {
            // It may have ended meanwhile.
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
        }
        thread::sleep(TICK);
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::arguments::{Cli, Command};

    #[test]
    fn a_command_is_run_with_its_own_flags() {
        let line = "policies run --interface eth0 --poll-interval 20 -- nginx -g daemon";
        let Command::Run(arguments) = Cli::try_parse_from(line.split(' ')).ok().unwrap().command else {
            unreachable!("`run` was given")
        };
        assert_eq!(arguments.command, ["nginx", "-g", "daemon"]);
        assert!(Cli::try_parse_from(["policies", "run"]).is_err());
    }
}
