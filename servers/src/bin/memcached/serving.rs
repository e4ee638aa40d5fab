//! How a server runs: in a runtime, with a guardian beside it where it gives up root; and what it
//! reports of that.

use std::error::Error;
use std::io;

use net::ShutdownReport;
use runtime::Builder;
use rustix::process::geteuid;

use super::guardian::{self, Guardian};
use super::process::RunAsUser;

/// Starts a guardian for a server that gives up root and has changed an interface's settings. Call
/// it while the process is still root: the guardian restores the host's settings when this process
/// no longer can.
pub fn guard(
    interface: Option<&str>,
    user: Option<&RunAsUser>,
    in_background: bool,
) -> io::Result<Option<Guardian>> {
    let gives_up_root = user.is_some_and(|user| !user.is_root()) && geteuid().is_root();
    (gives_up_root && interface.is_some()).then(|| guardian::start(in_background)).transpose()
}

/// Builds the runtime, and runs `server` in it.
pub fn run(
    mut builder: Builder,
    guardian: Option<Guardian>,
    server: impl Future<Output = Result<(), Box<dyn Error>>>,
) -> Result<(), Box<dyn Error>> {
    if let Some(guardian) = &guardian {
        builder = builder.queue_delegate(guardian.delegate());
    }
    let mut runtime = builder.build()?;
    runtime.applied().iter().for_each(|step| tracing::debug!("{step}"));
    runtime.block_on(server)?;
    drop(runtime);
    if let Some(guardian) = guardian {
        guardian.release();
    }
    Ok(())
}

/// Switches to the user that was named, if this process is root.
pub fn give_up_root(user: Option<RunAsUser>) -> Result<(), String> {
    if let Some(user) = user.filter(|_| geteuid().is_root()) {
        user.switch()?;
        tracing::info!("running as {}", user.describe());
    }
    Ok(())
}

/// Logs what each worker runs. A fallback to less than the requested policy is logged at every
/// level.
pub fn log_workers() {
    for report in runtime::reports() {
        match report.steps_down.is_empty() {
            true => tracing::info!("{report}"),
            false => tracing::warn!("{report}"),
        }
    }
}

pub fn log_stop(report: ShutdownReport) {
    match report.aborted {
        0 => tracing::info!("stopped; {} connections closed", report.finished),
        aborted => tracing::warn!("stopped; {} connections closed, {aborted} aborted", report.finished),
    }
}
