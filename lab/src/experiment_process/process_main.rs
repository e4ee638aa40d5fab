//! The experiment process's side: runs the role that the lab assigned.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use policies::Cpus;
use rustix::process::{Signal, set_parent_process_death_signal};

use super::messages::{EchoServerReady, ProcessRole, send};
use super::{attacher, fleet, server};
use crate::testbed::Namespace;
use crate::{Error, peers};

/// The hidden subcommand that makes the `lab` program an experiment process.
pub const SUBCOMMAND: &str = "experiment-process";

/// Runs this process as an experiment process. `role` is a [`ProcessRole`] as JSON, `namespace` the
/// path of the network namespace to enter. Returns when the lab closes its end, or when a load is
/// over.
pub fn run(role: &str, namespace: Option<&str>) -> Result<(), Error> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(std::io::Error::from)?;
    if let Some(path) = namespace {
        Namespace::open(path)?.enter_process()?;
    }
    match serde_json::from_str(role)? {
        ProcessRole::Server(spec) => server::run(&spec),
        ProcessRole::Fleet(spec) => fleet::run(&spec),
        ProcessRole::Program(spec) => {
            Cpus::one(spec.core).pin(None)?;
            // The signal on the lab's death stays set across exec. Not KILL: a server of several
            // processes, such as nginx, ends its workers when it is asked to end, and leaves them
            // behind when it is killed.
            set_parent_process_death_signal(Some(Signal::TERM)).map_err(std::io::Error::from)?;
            let error = Command::new(&spec.program).args(&spec.arguments).stdout(Stdio::null()).exec();
            Err(Error::program(&spec.program, error))
        }
        ProcessRole::Attach(spec) => attacher::run(&spec),
        ProcessRole::EchoServer(spec) => Ok(peers::serve(&spec, |address, ran, steps_down| {
            send(&EchoServerReady { address, ran, steps_down })
        })?),
    }
}
