//! A child process.

use std::io;
use std::mem;
use std::process::{ExitStatus, Output};
use std::task::Poll;

use rustix::io::Errno;

use super::orphans;
use super::watched_process::WatchedProcess;
use super::{ChildStderr, ChildStdin, ChildStdout};
use crate::pipe::{Receiver, Sender};

/// A child process, and the pipes to it that [`Stdio::piped`](super::Stdio::piped) has made. What
/// becomes of it when it is dropped, the [module](super) says.
///
/// As with the standard library, a child that writes more than a pipe holds (64 KiB) waits until
/// somebody reads: read its output before, or while, waiting for its end, or use
/// [`wait_with_output`](Self::wait_with_output).
#[derive(Debug)]
pub struct Child {
    /// To the child's standard input, if that was set to be piped.
    pub stdin: Option<ChildStdin>,
    /// From the child's standard output, if that was set to be piped.
    pub stdout: Option<ChildStdout>,
    /// From the child's standard error, if that was set to be piped.
    pub stderr: Option<ChildStderr>,
    state: State,
    kill_on_drop: bool,
}

#[derive(Debug)]
enum State {
    Running(WatchedProcess),
    Reaped(ExitStatus),
}

impl Child {
    /// Takes a process that was just started. Kills it if it can't be watched.
    pub(super) fn new(mut child: std::process::Child, kill_on_drop: bool) -> io::Result<Self> {
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let process = WatchedProcess::new(child).map_err(|(error, mut child)| {
            // If it is gone, somebody else has reaped it, and its number may be another process's.
            if error.raw_os_error() != Some(Errno::SRCH.raw_os_error()) {
                let _ = child.kill();
            }
            orphans::leave(child);
            error
        })?;
        // From here on, what fails drops the child.
        let mut child = Self {
            stdin: None,
            stdout: None,
            stderr: None,
            state: State::Running(process),
            kill_on_drop: true,
        };
        child.stdin = stdin.map(Sender::from_owned_fd).transpose()?;
        child.stdout = stdout.map(Receiver::from_owned_fd).transpose()?;
        child.stderr = stderr.map(Receiver::from_owned_fd).transpose()?;
        child.kill_on_drop = kill_on_drop;
        Ok(child)
    }

    /// The process's number; `None` once it was waited for, as it may be another process's then.
    pub fn id(&self) -> Option<u32> {
        match &self.state {
            State::Running(process) => Some(process.id()),
            State::Reaped(_) => None,
        }
    }

    /// Closes the child's standard input, if [`stdin`](Self::stdin) was not taken, and waits until
    /// the child has ended. May be cancelled and called again; a later call returns the same.
    ///
    /// # Errors
    /// Those of `waitpid(2)`: `ECHILD` if the program ignores SIGCHLD, or has waited for the child
    /// by other means. `NotConnected` if the runtime has ended.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.stdin = None;
        let status = match &mut self.state {
            State::Running(process) => process.wait().await?,
            State::Reaped(status) => return Ok(*status),
        };
        self.state = State::Reaped(status);
        Ok(status)
    }

    /// How the child has ended; `None` if it has not. It doesn't close the child's standard input.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        let status = match &mut self.state {
            State::Running(process) => process.try_wait()?,
            State::Reaped(status) => Some(*status),
        };
        if let Some(status) = status {
            self.state = State::Reaped(status);
        }
        Ok(status)
    }

    /// Sends SIGKILL to the child, and doesn't wait for its end. Does nothing if it was waited for.
    ///
    /// # Errors
    /// Those of `pidfd_send_signal(2)`: `ESRCH` if somebody else has waited for the child.
    #[doc(alias = "SIGKILL")]
    pub fn start_kill(&mut self) -> io::Result<()> {
        match &self.state {
            State::Running(process) => process.kill(),
            State::Reaped(_) => Ok(()),
        }
    }

    /// Sends SIGKILL to the child, and waits for its end.
    pub async fn kill(&mut self) -> io::Result<()> {
        self.start_kill()?;
        self.wait().await.map(drop)
    }

    /// Closes the child's standard input, reads the outputs that are piped and were not taken, both
    /// at a time, until nobody can write to them any more, and waits until the child has ended.
    ///
    /// # Errors
    /// As [`wait`](Self::wait), and those of `read(2)`. The child is dropped then.
    pub async fn wait_with_output(mut self) -> io::Result<Output> {
        self.stdin = None;
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        std::future::poll_fn(|context| {
            let Self { stdout: from_stdout, stderr: from_stderr, .. } = &mut self;
            let polled = [
                poll_drain(from_stdout, context, &mut stdout)?,
                poll_drain(from_stderr, context, &mut stderr)?,
            ];
            if polled.iter().all(Poll::is_ready) { Poll::Ready(io::Result::Ok(())) } else { Poll::Pending }
        })
        .await?;
        let status = self.wait().await?;
        Ok(Output { status, stdout, stderr })
    }
}

/// Reads a pipe to its end, and closes it there.
fn poll_drain(
    pipe: &mut Option<Receiver>,
    context: &mut std::task::Context<'_>,
    buffer: &mut Vec<u8>,
) -> io::Result<Poll<()>> {
    let Some(open) = pipe else { return Ok(Poll::Ready(())) };
    match open.poll_drain(context, buffer) {
        Poll::Pending => Ok(Poll::Pending),
        Poll::Ready(result) => {
            result?;
            *pipe = None;
            Ok(Poll::Ready(()))
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let state = mem::replace(&mut self.state, State::Reaped(ExitStatus::default()));
        let State::Running(process) = state else { return };
        if self.kill_on_drop {
            // Fails only if somebody else has waited for it.
            let _ = process.kill();
        }
        orphans::wait_for(process);
    }
}
