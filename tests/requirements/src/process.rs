//! What tests do to processes, and ask of them.

use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::require;

/// Returns a command that runs the calling `#[isolated]` test again, in a child process.
///
/// # Panics
/// If the test's own program is gone.
pub fn once_more() -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the test's own program"));
    // An isolated process is started with the arguments that select its test.
    command.args(std::env::args_os().skip(1));
    command
}

/// Requires that a process may have `count` descriptors, and raises the soft limit of this process
/// to the hard one.
///
/// # Panics
/// See [`require`].
pub fn descriptors(count: u64) -> Option<()> {
    let limit = getrlimit(Resource::Nofile).maximum;
    let able = limit.is_none_or(|most| most >= count);
    require(&format!("{count} descriptors (ulimit -n)"), able.then_some(()))?;
    // What it may have can be set.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit });
    Some(())
}

/// The resident memory of a process in KiB.
///
/// # Panics
/// If the process does not exist.
pub fn resident_kib(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
    number.expect("VmRSS of the process")
}
