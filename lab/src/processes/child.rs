//! An experiment process, as the lab holds it.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;

use super::messages::{ProcessRole, STATUS, SUBCOMMAND};
use crate::Error;
use crate::fleet::{FleetLoad, FleetMeasurement};
use crate::rounds::AttachProgress;
use crate::testbed::Namespace;

/// What is said of a server that can't be attached to.
pub(crate) const NOT_ATTACHED: &str = "the server can't be attached to";

/// How long a process may take to end by itself.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// How long another machine may take for a message: the longest turn, and its warm-up.
const ANSWERS_WITHIN: Duration = Duration::from_secs(120);

/// A running experiment process. Dropping it ends the process.
#[derive(Debug)]
pub struct ExperimentProcess {
    pub(crate) child: Child,
    /// Whether it is another program, which may start processes.
    is_program: bool,
    /// Whether it ends, and restores what it changed, when the lab closes its end.
    ends_itself: bool,
    /// The command that starts it on another machine.
    remote: Option<String>,
    messages: BufReader<ChildStdout>,
}

impl ExperimentProcess {
    /// Starts this program again as an experiment process in `namespace`, or in the lab's own.
    pub fn start(role: &ProcessRole, namespace: Option<&Namespace>) -> Result<Self, Error> {
        static PROGRAM: OnceLock<io::Result<PathBuf>> = OnceLock::new();
        let program = PROGRAM.get_or_init(std::env::current_exe);
        let program = program.as_ref().map_err(|error| io::Error::new(error.kind(), error.to_string()))?;
        let mut command = Command::new(program);
        command.arg(SUBCOMMAND);
        if let Some(namespace) = namespace {
            let fd = namespace.file().as_raw_fd();
            command.arg(format!("/proc/{}/fd/{fd}", std::process::id()));
        }
        Self::spawn(role, command, None)
    }

    /// The same on another machine, where `command` starts this program.
    pub(crate) fn start_by(role: &ProcessRole, command: &str) -> Result<Self, Error> {
        let mut shell = Command::new("/bin/sh");
        shell.arg("-c").arg(format!("exec {command} {SUBCOMMAND}"));
        Self::spawn(role, shell, Some(command.to_owned()))
    }

    fn spawn(role: &ProcessRole, mut command: Command, remote: Option<String>) -> Result<Self, Error> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let messages = child.stdout.take().ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))?;
        let is_program = matches!(role, ProcessRole::Program { .. });
        let ends_itself =
            matches!(role, ProcessRole::Card { .. } | ProcessRole::Server { .. } | ProcessRole::Fleet { .. });
        let mut process = Self { child, is_program, ends_itself, remote, messages: BufReader::new(messages) };
        process.command(&serde_json::to_string(role)?)?;
        Ok(process)
    }

    fn command(&mut self, command: &str) -> io::Result<()> {
        let stdin = self.child.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(stdin, "{command}")
    }

    pub(crate) fn start_load(&mut self, load: &FleetLoad) -> Result<(), Error> {
        Ok(self.command(&serde_json::to_string(load)?)?)
    }

    /// Awaits the end of the load.
    pub(crate) fn measured(&mut self) -> Result<FleetMeasurement, Error> {
        self.result("load")
    }

    pub(crate) fn attach_progress(&mut self) -> Result<AttachProgress, Error> {
        self.command(STATUS)?;
        self.result(NOT_ATTACHED)
    }

    /// The next message of a process that says what went wrong; `what` failed then.
    pub(crate) fn result<T: DeserializeOwned>(&mut self, what: &str) -> Result<T, Error> {
        let answer = self.receive::<Result<T, String>>().map_err(|error| format!("{what}: {error}"))?;
        answer.map_err(|reason| format!("{what}: {reason}").into())
    }

    /// CPU time of all the process's threads so far, and that in user space as the kernel's ticks
    /// sample it, in seconds; of another program with its descendants.
    pub(crate) fn cpu_seconds(&self) -> io::Result<(f64, f64)> {
        let (mut all, mut user) = process_seconds(self.child.id())?;
        let others = if self.is_program { descendants(self.child.id()) } else { Vec::new() };
        // One that has ended meanwhile counts nothing.
        for (its_all, its_user) in others.into_iter().flat_map(process_seconds) {
            (all, user) = (all + its_all, user + its_user);
        }
        Ok((all, user))
    }

    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> Result<T, Error> {
        let mut line = String::new();
        if self.remote.is_some() && self.messages.buffer().is_empty() {
            let limit = Timespec { tv_sec: ANSWERS_WITHIN.as_secs().cast_signed(), tv_nsec: 0 };
            let output = PollFd::new(self.messages.get_ref(), PollFlags::IN);
            if poll(&mut [output], Some(&limit))? == 0 {
                let problem = format!("nothing has come for {} s", ANSWERS_WITHIN.as_secs());
                return Err(self.failure(&problem).into());
            }
        }
        if self.messages.read_line(&mut line)? == 0 {
            return Err(self.failure("exited early; its error message is above").into());
        }
        let unreadable = |error| self.failure(&format!("unreadable message {line:?}: {error}")).into();
        serde_json::from_str(&line).map_err(unreadable)
    }

    fn failure(&self, problem: &str) -> String {
        match &self.remote {
            Some(command) => {
                format!("`{command}`, which has to start `lab` on the other machine: {problem}")
            }
            None => format!("an experiment process: {problem}"),
        }
    }
}

fn process(pid: u32) -> io::Result<procfs::process::Process> {
    let pid = i32::try_from(pid).map_err(io::Error::other)?;
    procfs::process::Process::new(pid).map_err(io::Error::other)
}

/// Of all threads (`/proc/<pid>/task/*/schedstat`), and in user space (`utime` of
/// `/proc/<pid>/stat`).
fn process_seconds(pid: u32) -> io::Result<(f64, f64)> {
    let process = process(pid)?;
    // A thread that has ended meanwhile counts nothing.
    let times = process.tasks().map_err(io::Error::other)?.flatten().filter_map(|task| task.schedstat().ok());
    let nanos: u64 = times.map(|times| times.sum_exec_runtime).sum();
    let ticks = process.stat().map_err(io::Error::other)?.utime;
    Ok((nanos as f64 / 1e9, ticks as f64 / procfs::ticks_per_second() as f64))
}

/// The children of a process and theirs. Empty on a kernel without `CONFIG_PROC_CHILDREN`.
fn descendants(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(&pid) = found.get(next) {
        next += 1;
        let tasks = process(pid).and_then(|process| process.tasks().map_err(io::Error::other));
        found.extend(tasks.into_iter().flatten().flatten().flat_map(|task| task.children()).flatten());
    }
    found.split_off(1)
}

impl Drop for ExperimentProcess {
    fn drop(&mut self) {
        // A program may have started processes, which would outlive it and keep its namespace. They
        // are listed first: the orphans of a killed process are no longer its children. The number
        // of a process that has been waited for may be another one's.
        let runs = self.is_program && matches!(self.child.try_wait(), Ok(None));
        let started = if runs { descendants(self.child.id()) } else { Vec::new() };
        drop(self.child.stdin.take());
        let deadline = Instant::now() + ENDS_WITHIN;
        while self.ends_itself && Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        for pid in started {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            // Fails if it has ended with its parent.
            let _ = pid.map(|pid| kill_process(pid, Signal::KILL));
        }
        let _ = self.child.wait();
    }
}
