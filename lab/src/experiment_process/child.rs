//! An experiment process, as the lab holds it.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::OnceLock;

use serde::de::DeserializeOwned;

use super::messages::{
    BEGIN, END, FleetMessage, LoadMeasurement, LoadMessage, ProcessRole, ServerMeasurement, ServerReady,
};
use super::process_main::SUBCOMMAND;
use crate::fleet::{FleetLoad, FleetMeasurement};
use crate::testbed::Namespace;
use crate::{Error, allocation_counter};

/// A running experiment process. Dropping it kills the process.
#[derive(Debug)]
pub struct ExperimentProcess {
    child: Child,
    commands: Option<ChildStdin>,
    messages: BufReader<ChildStdout>,
}

impl ExperimentProcess {
    /// Starts this program again as an experiment process in `namespace`, or in the lab's own.
    ///
    /// # Errors
    /// If the process can't be started.
    pub fn start(role: &ProcessRole, namespace: Option<&Namespace>) -> Result<Self, Error> {
        static PROGRAM: OnceLock<io::Result<PathBuf>> = OnceLock::new();
        let program = PROGRAM.get_or_init(std::env::current_exe);
        let program = program.as_ref().map_err(|error| io::Error::new(error.kind(), error.to_string()))?;
        let mut command = Command::new(program);
        command.arg(SUBCOMMAND).arg(serde_json::to_string(role)?);
        if let Some(namespace) = namespace {
            let fd = namespace.file().as_raw_fd();
            command.arg(format!("/proc/{}/fd/{fd}", std::process::id()));
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let commands = child.stdin.take();
        let messages = child.stdout.take().ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(Self { child, commands, messages: BufReader::new(messages) })
    }

    fn command(&mut self, command: &str) -> io::Result<()> {
        let commands = self.commands.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(commands, "{command}")
    }

    /// Has a fleet process run a load.
    pub(crate) fn run_fleet(&mut self, load: &FleetLoad) -> Result<FleetMeasurement, Error> {
        self.command(&serde_json::to_string(load)?)?;
        match self.receive()? {
            FleetMessage::Done { measurement } => Ok(*measurement),
            FleetMessage::Failed { error } => Err(Error::LoadProcess(error)),
            FleetMessage::Ready => Err(Error::LoadProcess("the fleet sent no measurement".to_owned())),
        }
    }

    /// The process's exit status, once it has exited.
    pub(crate) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits until a fleet process is connected.
    pub(crate) fn fleet_ready(&mut self) -> Result<(), Error> {
        match self.receive()? {
            FleetMessage::Failed { error } => Err(Error::LoadProcess(error)),
            _ => Ok(()),
        }
    }

    /// CPU time of all the process's threads so far, in seconds.
    pub(crate) fn cpu_seconds(&self) -> io::Result<f64> {
        process_cpu_seconds(self.child.id())
    }

    /// Waits for the process's next message.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> Result<T, Error> {
        let mut line = String::new();
        if self.messages.read_line(&mut line)? == 0 {
            return Err(Error::ProcessExited);
        }
        Ok(serde_json::from_str(&line)?)
    }

    /// Waits until a memcached server process listens.
    ///
    /// # Errors
    /// If the process exits, or sends something else.
    pub fn server_ready(&mut self) -> Result<ServerReady, Error> {
        self.receive()
    }

    /// Waits until this load process has finished, and has `server` measure the same time.
    ///
    /// # Errors
    /// If one of the processes exits or fails.
    pub fn measure(
        &mut self,
        server: &mut ExperimentProcess,
    ) -> Result<(LoadMeasurement, ServerMeasurement), Error> {
        loop {
            match self.receive()? {
                LoadMessage::Measuring => server.command(BEGIN)?,
                LoadMessage::Failed { error } => return Err(Error::LoadProcess(error)),
                LoadMessage::Done { measurement } => {
                    server.command(END)?;
                    return Ok((measurement, server.receive()?));
                }
            }
        }
    }

    fn process(&self) -> io::Result<procfs::process::Process> {
        let pid = i32::try_from(self.child.id()).map_err(io::Error::other)?;
        procfs::process::Process::new(pid).map_err(io::Error::other)
    }

    /// CPU time of the process's main thread so far, in nanoseconds (`/proc/<pid>/schedstat`).
    pub(crate) fn cpu_nanos(&self) -> io::Result<u64> {
        Ok(self.process()?.schedstat().map_err(io::Error::other)?.sum_exec_runtime)
    }

    /// Allocations of the process so far, which counts them at `address`.
    pub(crate) fn allocations(&self, address: u64) -> io::Result<u64> {
        allocation_counter::read(self.child.id(), address)
    }

    /// Resident memory of the process, in bytes.
    pub(crate) fn resident_bytes(&self) -> io::Result<u64> {
        let status = self.process()?.status().map_err(io::Error::other)?;
        Ok(status.vmrss.unwrap_or(0) * 1024)
    }

    /// Closes the process's standard input, at which it exits, and waits for it.
    ///
    /// # Errors
    /// If waiting fails.
    pub fn finish(mut self) -> Result<(), Error> {
        self.commands.take();
        self.child.wait()?;
        Ok(())
    }
}

/// CPU time of all threads of a process so far, in seconds (`/proc/<pid>/task/*/schedstat`).
pub(crate) fn process_cpu_seconds(pid: u32) -> io::Result<f64> {
    let pid = i32::try_from(pid).map_err(io::Error::other)?;
    let tasks = procfs::process::Process::new(pid).and_then(|process| process.tasks());
    let mut nanos = 0;
    for task in tasks.map_err(io::Error::other)? {
        nanos += task.and_then(|task| task.schedstat()).map_err(io::Error::other)?.sum_exec_runtime;
    }
    Ok(nanos as f64 / 1e9)
}

impl Drop for ExperimentProcess {
    fn drop(&mut self) {
        // Both fail after `finish`: the process has been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
