//! A thread that hangs: another process stops it alone, by ptrace.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use crate::isolated::once_more;
use crate::processes::KillOnDrop;

/// Set for a test that is run once more, to stop a thread.
const STOPS: &str = "LULL_TEST_STOPS";

/// A thread of this process, which hangs until this is dropped. The test begins with
/// [`stop_if_asked`].
pub struct HungThread {
    _tracer: KillOnDrop,
}

impl HungThread {
    pub fn start(name: &str) -> Self {
        let threads = fs::read_dir("/proc/self/task").expect("threads").flatten();
        let is_named = |thread: &fs::DirEntry| {
            fs::read_to_string(thread.path().join("comm")).is_ok_and(|it| it.trim_end() == name)
        };
        let thread = threads.into_iter().find(is_named).expect("a thread of this name").file_name();
        let mut command = once_more();
        command.env(STOPS, thread).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut tracer = command.spawn().expect("the test's own program");
        let output = BufReader::new(tracer.stdout.take().expect("a pipe"));
        assert!(output.lines().map_while(Result::ok).any(|line| line.contains("it hangs")));
        Self { _tracer: tracer.into() }
    }
}

/// In the process that [`HungThread::start`] has started: stops the thread until it is killed
/// itself. Returns whether this is one.
pub fn stop_if_asked() -> bool {
    let Ok(thread) = std::env::var(STOPS) else { return false };
    let thread = Pid::from_raw(thread.parse().expect("a thread id"));
    ptrace::seize(thread, ptrace::Options::empty()).expect("the thread can be traced");
    ptrace::interrupt(thread).expect("it is traced");
    waitpid(thread, Some(WaitPidFlag::__WALL)).expect("it stops");
    println!("it hangs");
    std::io::stdin().read_line(&mut String::new()).expect("a pipe");
    true
}
