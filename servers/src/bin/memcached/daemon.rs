//! Runs in the background.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::process::ExitCode;

use nix::unistd::{ForkResult, fork, setsid};

/// The background process's end of a pipe to the process that was started.
pub struct Background(PipeWriter);

/// Sent through the pipe once the server is ready.
const READY: u8 = b'+';

/// Continues in the background. Returns `Ok` in the background process. The process that was
/// started waits until the server is ready or has failed, and gets the exit code as `Err`.
pub fn detach() -> Result<Background, ExitCode> {
    let fail = |what: &str, error: io::Error| {
        eprintln!("memcached: cannot run in the background: {what}: {error}");
        ExitCode::FAILURE
    };
    let (reader, writer) = io::pipe().map_err(|error| fail("pipe", error))?;
    // SAFETY: the process has no other threads yet, so the child may call any function.
    match unsafe { fork() } {
        Err(error) => Err(fail("fork", error.into())),
        Ok(ForkResult::Parent { .. }) => {
            drop(writer);
            Err(wait_until_ready(reader))
        }
        Ok(ForkResult::Child) => {
            drop(reader);
            setsid().map_err(|error| fail("setsid", error.into()))?;
            Ok(Background(writer))
        }
    }
}

fn wait_until_ready(mut reader: PipeReader) -> ExitCode {
    let mut message = Vec::new();
    match reader.read_to_end(&mut message) {
        Ok(_) if message == [READY] => ExitCode::SUCCESS,
        // The background process has printed the error.
        _ => ExitCode::FAILURE,
    }
}

impl Background {
    /// Ends the process that was started with success, and detaches from the terminal unless
    /// `keep_terminal` is set, for logging.
    pub fn notify_ready(mut self, keep_terminal: bool) -> io::Result<()> {
        std::env::set_current_dir("/")?;
        if !keep_terminal {
            let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
            rustix::stdio::dup2_stdin(&null)?;
            rustix::stdio::dup2_stdout(&null)?;
            rustix::stdio::dup2_stderr(&null)?;
        }
        // Fails without consequence if the process that was started has been killed.
        let _ = self.0.write_all(&[READY]);
        Ok(())
    }
}
