//! Child processes, as in `tokio::process`.
//!
//! ```
//! use futures_util::{AsyncReadExt, AsyncWriteExt};
//! use runtime::process::{Command, Stdio};
//!
//! # #[runtime::main(driver = "epoll", workers = 1)]
//! # async fn main() -> std::io::Result<()> {
//! let output = Command::new("echo").arg("hello").output().await?;
//! assert!(output.status.success() && output.stdout == b"hello\n");
//!
//! let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
//! if let (Some(mut stdin), Some(mut stdout)) = (cat.stdin.take(), cat.stdout.take()) {
//!     stdin.write_all(b"through a pipe").await?;
//!     stdin.close().await?;
//!     let mut copied = String::new();
//!     stdout.read_to_string(&mut copied).await?;
//!     assert_eq!(copied, "through a pipe");
//! }
//! assert!(cat.wait().await?.success());
//! # Ok(())
//! # }
//! ```
//!
//! # How a child is waited for
//! Each child has a pidfd (`pidfd_open(2)`, Linux 5.3), which its worker's driver polls. No SIGCHLD
//! handler and no thread is used. A program that ignores SIGCHLD (`SIG_IGN`) has no children to
//! wait for, as the kernel reaps them at once: waiting returns an error then.
//!
//! # A child that is dropped
//! Dropping a [`Child`] leaves its process running, unless [`Command::kill_on_drop`] is set. Nobody
//! has to wait for it: a task of the worker does, so that it leaves no zombie. If the runtime ends
//! before the child, the next [`Command::spawn`] of the program reaps it, or else `init`, once the
//! program has ended.
//!
//! # What a child inherits
//! As with [`std::process::Command`], the environment, the working folder, and standard input,
//! output and error, unless the command says otherwise. It doesn't inherit a worker's core and
//! timer slack: it has those of the thread that called [`block_on`](crate::Runtime::block_on), or
//! that built the runtime.
//!
//! A child and its pipes stay on the worker that spawned them. [`Command::spawn`] blocks the worker
//! until the child runs its program, as tokio's does: about as long as `fork` takes.

use std::ffi::OsStr;
use std::future::Future;
use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::driver::readiness::{Direction, SourceKind};
use crate::io::AsyncFd;
use crate::pipe::{Receiver, Sender};
use crate::task::spawn;
use crate::thread_settings::with_settings_from_before;
use crate::worker::current;

pub use std::process::{ExitStatus, Output, Stdio};

/// A program with its arguments, its environment and its streams: [`std::process::Command`], whose
/// defaults it has.
#[derive(Debug)]
pub struct Command {
    command: std::process::Command,
    kill_on_drop: bool,
}

/// Settings of the standard library's command.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*);)*) => {
        $($(#[$doc])*
        pub fn $name(&mut self, $($argument: $type),*) -> &mut Self {
            self.command.$name($($argument),*);
            self
        })*
    };
}

impl Command {
    /// A program, by its path or by a name that is looked up in `PATH`, without arguments.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self::from(std::process::Command::new(program))
    }

    setters! {
        /// Adds one argument, after those that were added before; no shell splits or expands it.
        arg(argument: impl AsRef<OsStr>);
        /// Adds arguments, after those that were added before; no shell splits or expands them.
        args(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>);
        /// Sets a variable of the child's environment.
        env(name: impl AsRef<OsStr>, value: impl AsRef<OsStr>);
        /// Sets variables of the child's environment.
        envs(variables: impl IntoIterator<Item = (impl AsRef<OsStr>, impl AsRef<OsStr>)>);
        /// Removes a variable from the child's environment.
        env_remove(name: impl AsRef<OsStr>);
        /// Removes all variables from the child's environment.
        env_clear();
        /// The folder that the child starts in.
        current_dir(folder: impl AsRef<Path>);
        /// The child's standard input. Default: this process's. [`Stdio::piped`] gives
        /// [`Child::stdin`].
        stdin(stdin: impl Into<Stdio>);
        /// The child's standard output. Default: this process's, and a pipe for
        /// [`output`](Self::output). [`Stdio::piped`] gives [`Child::stdout`].
        stdout(stdout: impl Into<Stdio>);
        /// The child's standard error. Default: this process's, and a pipe for
        /// [`output`](Self::output). [`Stdio::piped`] gives [`Child::stderr`].
        stderr(stderr: impl Into<Stdio>);
    }

    /// Kills the child (SIGKILL) when its [`Child`] is dropped before it was waited for, or the
    /// future of [`status`](Self::status), [`output`](Self::output) or [`Child::wait_with_output`].
    /// Default: false, it goes on.
    pub fn kill_on_drop(&mut self, kill_on_drop: bool) -> &mut Self {
        self.kill_on_drop = kill_on_drop;
        self
    }

    /// The standard library's command.
    pub fn as_std(&self) -> &std::process::Command {
        &self.command
    }

    /// The standard library's command, for its other settings
    /// (`std::os::unix::process::CommandExt`).
    pub fn as_std_mut(&mut self) -> &mut std::process::Command {
        &mut self.command
    }

    /// Starts the program, and returns without waiting for its end.
    ///
    /// # Errors
    /// Those of [`std::process::Command::spawn`], such as `NotFound` if the program does not exist.
    /// Those of `pidfd_open(2)` (`ENOSYS` before Linux 5.3) and `epoll_ctl(2)`, after which the
    /// child is killed.
    ///
    /// # Panics
    /// Outside of a runtime, and on a thread that has only [entered](crate::Handle::enter) one.
    #[track_caller]
    pub fn spawn(&mut self) -> io::Result<Child> {
        // Before there is a child.
        current::with(|_| ());
        reap_left();
        let child = with_settings_from_before(|| self.command.spawn())?;
        Child::new(child, self.kill_on_drop)
    }

    /// Starts the program, and waits until it has ended. It starts with this call, not with the
    /// first poll of the future. Pipes that are set are closed.
    pub fn status(&mut self) -> impl Future<Output = io::Result<ExitStatus>> + use<> {
        let child = self.spawn();
        async move {
            let mut child = child?;
            (child.stdin, child.stdout, child.stderr) = (None, None, None);
            child.wait().await
        }
    }

    /// Starts the program, and collects what it writes to its standard output and error until it
    /// has ended. It starts with this call, not with the first poll of the future. As with tokio,
    /// both are pipes, whatever was set, and standard input is this process's unless it was set;
    /// the standard library's `output` gives `/dev/null`.
    pub fn output(&mut self) -> impl Future<Output = io::Result<Output>> + use<> {
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = self.spawn();
        async move { child?.wait_with_output().await }
    }
}

impl From<std::process::Command> for Command {
    fn from(command: std::process::Command) -> Self {
        Self { command, kill_on_drop: false }
    }
}

/// A pipe to a child's standard input.
pub type ChildStdin = Sender;
/// A pipe from a child's standard output.
pub type ChildStdout = Receiver;
/// A pipe from a child's standard error.
pub type ChildStderr = Receiver;

/// A child process, and the pipes to it that [`Stdio::piped`] has made. What
/// becomes of it when it is dropped, the [module](self) says.
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
    fn new(mut child: std::process::Child, kill_on_drop: bool) -> io::Result<Self> {
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let process = WatchedProcess::new(child).map_err(|(error, mut child)| {
            // If it is gone, somebody else has reaped it, and its number may be another process's.
            if error.raw_os_error() != Some(Errno::SRCH.raw_os_error()) {
                let _ = child.kill();
            }
            leave(child);
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
            State::Running(process) => Some(process.child.id()),
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
            State::Running(process) => process.child.try_wait()?,
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
            let out = poll_drain(&mut self.stdout, context, &mut stdout)?;
            let err = poll_drain(&mut self.stderr, context, &mut stderr)?;
            if out.is_ready() { err.map(io::Result::Ok) } else { Poll::Pending }
        })
        .await?;
        let status = self.wait().await?;
        Ok(Output { status, stdout, stderr })
    }
}

/// Reads a pipe to its end, and closes it there.
fn poll_drain(
    pipe: &mut Option<Receiver>,
    context: &mut Context<'_>,
    buffer: &mut Vec<u8>,
) -> Poll<io::Result<()>> {
    if let Some(open) = pipe {
        ready!(open.poll_drain(context, buffer))?;
        *pipe = None;
    }
    Poll::Ready(Ok(()))
}

impl Drop for Child {
    fn drop(&mut self) {
        let state = mem::replace(&mut self.state, State::Reaped(ExitStatus::default()));
        let State::Running(process) = state else { return };
        if self.kill_on_drop {
            // Fails only if somebody else has waited for it.
            let _ = process.kill();
        }
        wait_for(process);
    }
}

/// A child process that has not been reaped, and its pidfd, which is readable once the process has
/// ended.
#[derive(Debug)]
struct WatchedProcess {
    child: std::process::Child,
    pidfd: AsyncFd<OwnedFd>,
}

impl WatchedProcess {
    /// Registers the child's pidfd with the calling worker's driver. The child must not have been
    /// waited for, as its process id may have been reused then. On an error the child is returned,
    /// too.
    fn new(child: std::process::Child) -> Result<Self, (io::Error, std::process::Child)> {
        let watch = |child: &std::process::Child| {
            let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
            AsyncFd::new(pidfd, SourceKind::Other)
        };
        match watch(&child) {
            Ok(pidfd) => Ok(Self { child, pidfd }),
            Err(error) => Err((error, child)),
        }
    }

    /// By the pidfd: the number may be another process's by now, if somebody else has reaped the
    /// child.
    fn kill(&self) -> io::Result<()> {
        Ok(pidfd_send_signal(self.pidfd.get_ref(), Signal::KILL)?)
    }

    /// Waits until the process has ended, and reaps it.
    async fn wait(&mut self) -> io::Result<ExitStatus> {
        let Self { child, pidfd } = self;
        let reap = |_: &OwnedFd| -> io::Result<ExitStatus> {
            child.try_wait()?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
        };
        pidfd.io(Direction::Read, reap).await
    }
}

/// Those that no worker waits for: their runtime has ended before them.
static LEFT: Mutex<Vec<std::process::Child>> = Mutex::new(Vec::new());

/// Waits for a process in a task of this worker, unless it has ended.
fn wait_for(mut process: WatchedProcess) {
    if has_ended(process.child.try_wait()) {
        return;
    }
    let mut orphan = Orphan(Some(process));
    // Not while a thread's locals are dropped, for example. Then the orphan is left for the next
    // spawn, as it is when the worker drops the task.
    if current::try_with(|_| ()).is_some() {
        drop(spawn(async move { orphan.wait().await }));
    }
}

/// Reaps those that have ended since they were left.
fn reap_left() {
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    left.retain_mut(|child| !has_ended(child.try_wait()));
}

/// Leaves a child for [`reap_left`], unless it has ended.
fn leave(mut child: std::process::Child) {
    if !has_ended(child.try_wait()) {
        LEFT.lock().unwrap_or_else(PoisonError::into_inner).push(child);
    }
}

/// An error means that there is nobody to wait for: the kernel, or other code of the program, has
/// reaped the child.
fn has_ended<T>(waited: io::Result<Option<T>>) -> bool {
    !matches!(waited, Ok(None))
}

/// A process that is waited for until its task is dropped.
struct Orphan(Option<WatchedProcess>);

impl Orphan {
    async fn wait(&mut self) {
        if let Some(process) = &mut self.0
            && process.wait().await.is_ok()
        {
            self.0 = None;
        }
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        if let Some(process) = self.0.take() {
            leave(process.child);
        }
    }
}
