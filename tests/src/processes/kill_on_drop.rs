//! Child processes that end with their test.

use std::io::{self, BufRead, BufReader};
use std::ops::{Deref, DerefMut};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use rustix::process::Signal;

/// A child process. Dropping it kills it, and panics if it had crashed before: ended by `SIGSEGV`,
/// `SIGABRT`, `SIGBUS`, `SIGILL` or `SIGFPE`, which no assertion of a test might notice.
#[derive(Debug)]
pub struct KillOnDrop(Option<Child>);

impl From<Child> for KillOnDrop {
    fn from(child: Child) -> Self {
        Self(Some(child))
    }
}

impl KillOnDrop {
    /// Starts a command, with a pipe as its standard input, and waits until it prints `ready`.
    /// Returns the rest of that line, too.
    pub fn start_until(command: &mut Command, ready: &str) -> (Self, String) {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = Self::from(child.expect("the command"));
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut lines = output.lines().map_while(Result::ok);
        let rest = lines.find_map(|line| Some(line.split_once(ready)?.1.to_owned()));
        // Closing the pipe would end a program that prints.
        std::thread::spawn(move || lines.count());
        (child, rest.unwrap_or_else(|| panic!("it has ended without {ready:?}")))
    }

    pub fn wait_with_output(mut self) -> io::Result<Output> {
        let Some(child) = self.0.take() else { return Err(io::ErrorKind::NotFound.into()) };
        let process = child.id();
        let output = child.wait_with_output()?;
        if let Some(signal) = crash_signal(output.status) {
            panic!("process {process} ended by signal {signal}: {output:?}");
        }
        Ok(output)
    }
}

/// Why a child is there: only methods that consume the guard take it out.
const PRESENT: &str = "the child is taken out only with its guard";

impl Deref for KillOnDrop {
    type Target = Child;

    fn deref(&self) -> &Child {
        self.0.as_ref().expect(PRESENT)
    }
}

impl DerefMut for KillOnDrop {
    fn deref_mut(&mut self) -> &mut Child {
        self.0.as_mut().expect(PRESENT)
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let Some(child) = &mut self.0 else { return };
        let ended = child.try_wait().ok().flatten();
        // Fails if it has exited already.
        let _ = child.kill();
        let _ = child.wait();
        if let Some(signal) = ended.and_then(crash_signal) {
            let text = format!("process {} ended by signal {signal} before the test ended it", child.id());
            if std::thread::panicking() {
                eprintln!("{text}");
            } else {
                panic!("{text}");
            }
        }
    }
}

/// The signal of a crash that a process ended by. A shell reports that of its command as an exit
/// status.
fn crash_signal(status: ExitStatus) -> Option<i32> {
    const SHELL: i32 = 128;
    let signal = status.signal().or_else(|| status.code()?.checked_sub(SHELL))?;
    let crashes = [Signal::SEGV, Signal::ABORT, Signal::BUS, Signal::ILL, Signal::FPE];
    crashes.iter().any(|crash| crash.as_raw() == signal).then_some(signal)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::process::{Command, Stdio};

    use super::*;

    /// Whether dropping the guard of a shell that has run `script` to its end panics.
    fn drop_panics(script: &str) -> bool {
        let mut command = Command::new("sh");
        let child = command.args(["-c", script]).stderr(Stdio::null()).spawn().unwrap();
        let mut child = KillOnDrop::from(child);
        child.wait().unwrap();
        catch_unwind(AssertUnwindSafe(|| drop(child))).is_err()
    }

    #[test]
    fn a_process_that_crashed_fails_its_test_when_it_is_dropped() {
        for signal in ["SEGV", "ABRT", "BUS", "ILL", "FPE"] {
            assert!(drop_panics(&format!("ulimit -c 0; kill -{signal} $$")), "{signal}");
        }
        assert!(drop_panics("ulimit -c 0; sh -c 'kill -SEGV $$'; exit $?"));
    }

    #[test]
    fn a_process_that_exited_or_was_ended_or_still_runs_does_not() {
        for script in ["exit 0", "exit 1", "kill -TERM $$", "kill -KILL $$"] {
            assert!(!drop_panics(script), "{script}");
        }
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        drop(KillOnDrop::from(child));
    }
}
