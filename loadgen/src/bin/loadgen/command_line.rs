//! Parses the command line and the workload file.

use std::error::Error;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use clap::{CommandFactory, FromArgMatches};

use crate::flags::Flags;
use crate::workload_file;

/// Parses the flags. Those of a workload file are inserted before those of the command line. Returns `None` if
/// the flags only asked to print something, which this function has done.
pub fn parse() -> Result<Option<Flags>, Box<dyn Error>> {
    let mut command = Flags::command();
    let mut line: Vec<OsString> = std::env::args_os().collect();
    let mut matches = command.clone().get_matches_from(&line);
    if let Some(path) = matches.get_one::<PathBuf>("workload") {
        let at = line.len().min(1);
        line.splice(at..at, workload_file::read(path, &command, &matches)?);
        matches = command.clone().get_matches_from(&line);
    }
    let flags = Flags::from_arg_matches(&matches)?;
    let mut out = std::io::stdout().lock();
    if let Some(shell) = flags.completions {
        // Into memory first: clap_complete panics on write errors.
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut command, "loadgen", &mut script);
        out.write_all(&script)?;
    } else if flags.man {
        clap_mangen::Man::new(command).render(&mut out)?;
    } else {
        return Ok(Some(flags));
    }
    Ok(None)
}
