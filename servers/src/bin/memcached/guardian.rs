//! A process that keeps root privileges, to restore the host's settings after a server that has dropped them.

use std::io::{self, Read};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use policies::JournalDir;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The environment variable that makes the program run as the guardian.
const GUARDIAN_VARIABLE: &str = "LULL_GUARDIAN";
/// The server's pipe closes shortly before its process has ended, so restoring is retried.
const ATTEMPTS: u32 = 50;
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// A running guardian. It restores the settings once this process has ended, for whatever reason.
pub struct Guardian {
    _child: Child,
    /// The kernel closes this pipe when the process ends.
    _lifeline: Option<ChildStdin>,
}

/// Starts the guardian.
pub fn start(in_background: bool) -> io::Result<Guardian> {
    // The guardian of a daemon must not keep the terminal or a pipe open.
    let stderr = if in_background { Stdio::null() } else { Stdio::inherit() };
    let mut child = Command::new(std::env::current_exe()?)
        .env(GUARDIAN_VARIABLE, "1")
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(stderr)
        .spawn()?;
    let lifeline = child.stdin.take();
    Ok(Guardian { _child: child, _lifeline: lifeline })
}

/// Whether this process should run as the guardian.
pub fn is_requested() -> bool {
    std::env::var_os(GUARDIAN_VARIABLE).is_some()
}

/// Runs as the guardian: waits for the server's end, then restores the settings.
pub fn run() -> ExitCode {
    // Signals to the server's process group must not end the guardian.
    let _ = nix::unistd::setsid();
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        // If this fails, the signal ends the guardian, and the next start of a server restores the settings.
        let _ = signal_hook::flag::register(signal, Arc::default());
    }
    let mut ignored = Vec::new();
    // Returns when the server has ended: it never writes.
    let _ = io::stdin().read_to_end(&mut ignored);
    let mut failed = false;
    for _ in 0..ATTEMPTS {
        std::thread::sleep(RETRY_INTERVAL);
        match policies::recover(&JournalDir::default()) {
            Ok(reports) => {
                failed = reports.iter().any(policies::RestoreReport::failed);
                if !reports.is_empty() && !failed {
                    return ExitCode::SUCCESS;
                }
            }
            Err(error) => {
                eprintln!("memcached: cannot restore the host's settings: {error}");
                failed = true;
            }
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
