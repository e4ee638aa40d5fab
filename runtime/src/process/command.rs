//! What is to be run.

use std::ffi::OsStr;
use std::future::Future;
use std::io;
use std::path::Path;
use std::process::{ExitStatus, Output, Stdio};

use super::child::Child;
use super::orphans;
use crate::thread_settings::with_settings_from_before;
use crate::worker::current;

/// A program with its arguments, its environment and its streams: [`std::process::Command`], whose
/// defaults it has.
#[derive(Debug)]
pub struct Command {
    command: std::process::Command,
    kill_on_drop: bool,
}

impl Command {
    /// A program, by its path or by a name that is looked up in `PATH`, without arguments.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self::from(std::process::Command::new(program))
    }

    /// Adds one argument, after those that were added before; no shell splits or expands it.
    pub fn arg(&mut self, argument: impl AsRef<OsStr>) -> &mut Self {
        self.command.arg(argument);
        self
    }

    /// Adds arguments, after those that were added before; no shell splits or expands them.
    pub fn args(&mut self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> &mut Self {
        self.command.args(arguments);
        self
    }

    /// Sets a variable of the child's environment.
    pub fn env(&mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Self {
        self.command.env(name, value);
        self
    }

    /// Sets variables of the child's environment.
    pub fn envs(
        &mut self,
        variables: impl IntoIterator<Item = (impl AsRef<OsStr>, impl AsRef<OsStr>)>,
    ) -> &mut Self {
        self.command.envs(variables);
        self
    }

    /// Removes a variable from the child's environment.
    pub fn env_remove(&mut self, name: impl AsRef<OsStr>) -> &mut Self {
        self.command.env_remove(name);
        self
    }

    /// Removes all variables from the child's environment.
    pub fn env_clear(&mut self) -> &mut Self {
        self.command.env_clear();
        self
    }

    /// The folder that the child starts in.
    pub fn current_dir(&mut self, folder: impl AsRef<Path>) -> &mut Self {
        self.command.current_dir(folder);
        self
    }

    /// The child's standard input. Default: this process's. [`Stdio::piped`] gives
    /// [`Child::stdin`].
    pub fn stdin(&mut self, stdin: impl Into<Stdio>) -> &mut Self {
        self.command.stdin(stdin);
        self
    }

    /// The child's standard output. Default: this process's, and a pipe for
    /// [`output`](Self::output). [`Stdio::piped`] gives [`Child::stdout`].
    pub fn stdout(&mut self, stdout: impl Into<Stdio>) -> &mut Self {
        self.command.stdout(stdout);
        self
    }

    /// The child's standard error. Default: this process's, and a pipe for
    /// [`output`](Self::output). [`Stdio::piped`] gives [`Child::stderr`].
    pub fn stderr(&mut self, stderr: impl Into<Stdio>) -> &mut Self {
        self.command.stderr(stderr);
        self
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
        orphans::reap_left();
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
