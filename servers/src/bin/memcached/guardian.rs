//! A small process that stays root, so that the host's settings are put back after a server that is not.

use std::io::{self, Read};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use policies::JournalDir;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Tells the program to be one.
const WANTED: &str = "LULL_GUARDIAN";
/// The server's end shows in its pipe a moment before the kernel has it gone.
const ATTEMPTS: u32 = 50;
const STEP: Duration = Duration::from_millis(20);

/// The guardian; puts the settings back when this process has ended, however that comes.
pub struct Guardian {
    _child: Child,
    /// Closes with this process.
    _alive: Option<ChildStdin>,
}

pub fn start(in_background: bool) -> io::Result<Guardian> {
    // A terminal, or whoever waits for the end of the output, must not wait for the guardian.
    let stderr = if in_background { Stdio::null() } else { Stdio::inherit() };
    let mut child = Command::new(std::env::current_exe()?)
        .env(WANTED, "1")
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(stderr)
        .spawn()?;
    let alive = child.stdin.take();
    Ok(Guardian { _child: child, _alive: alive })
}

pub fn is_wanted() -> bool {
    std::env::var_os(WANTED).is_some()
}

pub fn run() -> ExitCode {
    // Signals for the server, which may go to all of its group, are not for its guardian.
    let _ = nix::unistd::setsid();
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        // Where it can't be caught, a signal ends the guardian, and the next start puts the settings back.
        let _ = signal_hook::flag::register(signal, Arc::default());
    }
    let mut ignored = Vec::new();
    // Nothing is ever written: it ends when the server does.
    let _ = io::stdin().read_to_end(&mut ignored);
    let mut failed = false;
    for _ in 0..ATTEMPTS {
        std::thread::sleep(STEP);
        match policies::recover(&JournalDir::default()) {
            Ok(reports) => {
                failed = reports.iter().any(policies::RestoreReport::failed);
                if !reports.is_empty() && !failed {
                    return ExitCode::SUCCESS;
                }
            }
            Err(error) => {
                eprintln!("memcached: cannot put the host's settings back: {error}");
                failed = true;
            }
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
