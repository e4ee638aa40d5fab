//! Inside a test with the attribute [`isolated`](macro@crate::isolated), which runs it in its own
//! process: its driver, the test once more, and a thread of it that another process stops alone, by
//! ptrace.

use std::fs;

use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
pub use requirements::once_more;
use runtime::DriverKind;

use crate::processes::KillOnDrop;

/// The driver that this process tests, of those that the attribute lists.
pub fn driver() -> DriverKind {
    let name = std::env::var("LULL_TEST_DRIVER").unwrap_or_default();
    name.parse().expect("#[isolated] lists drivers")
}

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
        let (tracer, _) = KillOnDrop::start_until(once_more().env(STOPS, thread), "it hangs");
        Self { _tracer: tracer }
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
