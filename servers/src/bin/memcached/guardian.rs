//! A process that keeps root privileges: it sets the queues' values for a server that has dropped
//! them, and restores the host's settings when that has ended.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use policies::{AdaptedQueue, JournalDir, RestoreReport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

const NAME: &str = env!("CARGO_BIN_NAME");
/// The environment variable that makes the program run as the guardian.
const GUARDIAN_VARIABLE: &str = "LULL_GUARDIAN";
/// How often restoring is tried after the server has ended.
const ATTEMPTS: u32 = 50;
/// How long the server waits for an answer. It holds what a restore needs meanwhile.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// The answer to a request that was carried out.
const DONE: &str = "done";
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// A running guardian. It restores the settings once this process has ended, for whatever reason.
pub struct Guardian {
    child: Child,
    pipes: Arc<Mutex<Pipes>>,
}

/// What connects the server with its guardian. The kernel closes both when the server's process
/// ends.
struct Pipes {
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// Whether a request was not answered in time.
    is_answer_due: bool,
}

/// Starts a guardian. Call it while the process is still root: it restores the host's settings when
/// this process no longer can.
pub fn start() -> io::Result<Guardian> {
    let mut child = Command::new(std::env::current_exe()?)
        .env(GUARDIAN_VARIABLE, "1")
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (Some(requests), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(io::Error::other("the guardian has no pipes"));
    };
    let pipes = Pipes { requests, answers: BufReader::new(answers), is_answer_due: false };
    Ok(Guardian { child, pipes: Arc::new(Mutex::new(pipes)) })
}

impl Guardian {
    /// Lets it restore the settings when this process ends. Says so if it can't.
    pub fn release(mut self) {
        if let Ok(Some(status)) = self.child.try_wait() {
            tracing::error!(%status, "the guardian has ended, and restores no settings; run `policies restore`");
        }
    }

    /// A function that lets the guardian set a queue's values.
    pub fn delegate(&self) -> impl FnMut(&AdaptedQueue) -> io::Result<()> + Send + use<> {
        let pipes = Arc::clone(&self.pipes);
        move |queue| pipes.lock().unwrap_or_else(PoisonError::into_inner).ask(queue)
    }
}

impl Pipes {
    fn ask(&mut self, queue: &AdaptedQueue) -> io::Result<()> {
        if self.is_answer_due {
            // It is that to an earlier request. Until it is here, the next would be taken for it.
            // What it says is out of date: the supervisor repeats the request, or has another.
            self.read_answer(Duration::ZERO)?;
        }
        writeln!(self.requests, "{queue}")?;
        match self.read_answer(ANSWER_TIME)?.trim_end() {
            DONE => Ok(()),
            "" => Err(io::Error::other("the guardian has ended")),
            reason => Err(io::Error::other(reason.to_owned())),
        }
    }

    /// The guardian writes an answer at once, so that the line is complete when its first byte is
    /// here.
    fn read_answer(&mut self, patience: Duration) -> io::Result<String> {
        self.is_answer_due = true;
        let patience =
            Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        let readable = PollFlags::IN;
        let mut answers = [PollFd::new(self.answers.get_ref(), readable)];
        // A signal's handler may run on this thread.
        if retry_on_intr(|| poll(&mut answers, Some(&patience)))? == 0 {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the guardian hangs or was stopped"));
        }
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        self.is_answer_due = false;
        Ok(answer)
    }
}

pub fn is_requested() -> bool {
    std::env::var_os(GUARDIAN_VARIABLE).is_some()
}

/// Runs as the guardian: waits for the server's end, then restores the settings.
pub fn run() -> ExitCode {
    // Signals to the server's process group must not end the guardian.
    let _ = nix::unistd::setsid();
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        // If this fails, the signal ends the guardian, and the next start of a server restores the
        // settings.
        let _ = signal_hook::flag::register(signal, Arc::default());
    }
    // Ends when the server has ended.
    let server = parent();
    for request in io::stdin().lock().lines().map_while(Result::ok) {
        let answer = set_queue(&request, server);
        // The server has ended if this fails.
        let _ = writeln!(io::stdout(), "{answer}");
    }
    restore(server)
}

/// The parent's process id, which is another one as soon as it has ended.
fn parent() -> u32 {
    rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get().unsigned_abs())
}

/// Restores what the server has left. Journals that can't be read may be of others, and are only
/// reported.
fn restore(server: u32) -> ExitCode {
    let journals = JournalDir::default();
    let mut attempts = 0;
    // The server's pipe closes before its process has ended, which with many descriptors takes a
    // while. Until then it holds its journal; those of others may be restored meanwhile, or can't
    // be.
    let last = loop {
        std::thread::sleep(RETRY_INTERVAL);
        let has_ended = parent() != server;
        let recovered = policies::recover(&journals);
        attempts += u32::from(has_ended);
        let is_done = policies::journals_of(server, &journals).is_ok_and(|it| {
            // What is held after the server's end belongs to another process that has got its id.
            !it.left && (has_ended || !it.held)
        });
        if is_done || attempts == ATTEMPTS {
            break recovered;
        }
    };
    match last {
        Ok(recovery) => {
            let failures = recovery.reports.iter().flat_map(RestoreReport::failures);
            failures.for_each(|failure| eprintln!("{NAME}: {failure}"));
            recovery.left.iter().for_each(|left| eprintln!("{NAME}: {left}"));
            if recovery.failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
        }
        Err(error) => {
            eprintln!("{NAME}: cannot restore the host's settings: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Sets what the server asks for, and returns the answer. The server's journal limits what that can
/// be, so that a server that was taken over gains nothing.
fn set_queue(request: &str, server: u32) -> String {
    let set = |queue: AdaptedQueue| queue.set_for(server, &JournalDir::default());
    match request.parse().and_then(set) {
        Ok(()) => DONE.to_owned(),
        Err(error) => error.to_string(),
    }
}
