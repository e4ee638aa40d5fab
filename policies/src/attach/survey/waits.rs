//! How a process's threads wait: on what, from samples, and with which timeouts, from a short
//! trace.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::attach::process::{RunTimes, ThreadWait, run_times, thread_wait, threads};
use crate::signals;

/// How often each thread is looked at, and the time between.
const SAMPLES: u32 = 30;
const INTERVAL: Duration = Duration::from_millis(10);
/// More threads of a process are not looked at.
const MOST_THREADS: usize = 128;
/// The share of the time from which on a thread counts as always busy.
const ALWAYS: f64 = 0.9;

#[derive(Debug, Clone, Default)]
pub(super) struct ThreadWaits {
    /// By epoll instance, in how many samples the thread waited on it.
    pub(super) epolls: BTreeMap<i32, u32>,
    pub(super) polls: u32,
    pub(super) selects: u32,
    pub(super) rings: u32,
    running: u32,
    samples: u32,
    first: RunTimes,
    last: RunTimes,
    time: Duration,
}

impl ThreadWaits {
    /// Whether the thread was never seen waiting, and used all of its core: as one whose waits have
    /// a timeout of 0, or one that is overloaded.
    pub(super) fn never_sleeps(&self) -> bool {
        let awake = self.last.run + self.last.ready
            - self.first.run.min(self.last.run)
            - self.first.ready.min(self.last.ready);
        self.samples > 0
            && self.running == self.samples
            && awake as f64 >= self.time.as_nanos() as f64 * ALWAYS
    }
}

pub(super) type Waits = BTreeMap<(u32, i32), ThreadWaits>;

/// Observes for 0.3 s.
///
/// # Errors
/// `EPERM` without `CAP_SYS_PTRACE` over one of the processes.
pub(super) fn sample(pids: impl IntoIterator<Item = u32>) -> io::Result<Waits> {
    let mut seen = Waits::new();
    for pid in pids {
        // A process may have ended.
        for thread in threads(pid).unwrap_or_default().into_iter().take(MOST_THREADS) {
            let first = run_times(pid, thread).unwrap_or_default();
            seen.insert((pid, thread), ThreadWaits { first, ..ThreadWaits::default() });
        }
    }
    let start = Instant::now();
    for _ in 0..SAMPLES {
        thread::sleep(INTERVAL);
        for (&(pid, thread), waits) in &mut seen {
            let wait = match thread_wait(pid, thread) {
                Ok(wait) => wait,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
                Err(_) => continue,
            };
            waits.samples += 1;
            match wait {
                ThreadWait::Epoll(descriptor) => *waits.epolls.entry(descriptor).or_default() += 1,
                ThreadWait::Poll => waits.polls += 1,
                ThreadWait::Select => waits.selects += 1,
                ThreadWait::Ring => waits.rings += 1,
                ThreadWait::Runs => waits.running += 1,
                ThreadWait::Other => {}
            }
        }
    }
    for (&(pid, thread), waits) in &mut seen {
        waits.time = start.elapsed();
        waits.last = run_times(pid, thread).unwrap_or(waits.first);
    }
    Ok(seen)
}

/// Where tracefs may be mounted.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
const MOMENT: Duration = Duration::from_millis(50);
/// How often the trace is read at most, until it has a wait: the thread may get no core at first.
const MOMENTS: u32 = 20;
/// What the names of this program's instances begin with; the process and the thread follow.
const PREFIX: &str = "lull-";

/// How many waits had a timeout of 0, and how many another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Timeouts {
    pub(super) zero: u32,
    pub(super) other: u32,
}

/// A private instance of the kernel's tracing. It is removed on drop.
struct TraceInstance(PathBuf);

impl Drop for TraceInstance {
    fn drop(&mut self) {
        // Fails if it was not created.
        let _ = fs::remove_dir(&self.0);
    }
}

/// Traces `epoll_wait` and `epoll_pwait` of a thread for 50 ms, or until it makes the first: for a
/// second at most.
///
/// # Errors
/// Without root, tracefs, or the tracepoints of system calls (`CONFIG_FTRACE_SYSCALLS`).
pub(super) fn trace_timeouts(thread: i32) -> io::Result<Timeouts> {
    let tracefs = TRACEFS.iter().map(Path::new).find(|path| path.join("instances").exists());
    let instances = tracefs.ok_or(io::ErrorKind::NotFound)?.join("instances");
    remove_abandoned(&instances);
    let trace = TraceInstance(instances.join(format!("{PREFIX}{}-{thread}", std::process::id())));
    let folder = trace.0.clone();
    // A process that dies of a signal drops nothing.
    let _removal = signals::on_termination(move || {
        let _ = fs::remove_dir(&folder);
    })?;
    fs::create_dir(&trace.0)?;
    let write = |file: &str, text: &str| fs::write(trace.0.join(file), text);
    write("buffer_size_kb", "1024")?;
    for event in ["sys_enter_epoll_wait", "sys_enter_epoll_pwait"] {
        let folder = format!("events/syscalls/{event}");
        // Some architectures have only one of them.
        if trace.0.join(&folder).exists() {
            write(&format!("{folder}/filter"), &format!("common_pid == {thread}"))?;
            write(&format!("{folder}/enable"), "1")?;
        }
    }
    for _ in 0..MOMENTS {
        thread::sleep(MOMENT);
        let timeouts = count(&fs::read_to_string(trace.0.join("trace"))?);
        if timeouts != Timeouts::default() {
            return Ok(timeouts);
        }
    }
    Ok(Timeouts::default())
}

/// Removes the instances of processes that were killed while they traced. Their events slow down
/// every system call of the machine.
fn remove_abandoned(instances: &Path) {
    for entry in fs::read_dir(instances).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next());
        let ended = |pid: u32| !Path::new("/proc").join(pid.to_string()).exists();
        if owner.and_then(|pid| pid.parse().ok()).is_some_and(ended) {
            // Somebody else may have removed it.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Lines as `redis-812 [001] ..... 123.456789: sys_epoll_wait(epfd: 5, events: 7f, maxevents: 200,
/// timeout: 0)`.
fn count(text: &str) -> Timeouts {
    let mut timeouts = Timeouts::default();
    for line in text.lines().filter(|line| line.contains("sys_epoll_")) {
        let Some((_, rest)) = line.split_once("timeout: ") else { continue };
        match rest.split([',', ')']).next() {
            Some("0") => timeouts.zero += 1,
            _ => timeouts.other += 1,
        }
    }
    timeouts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_instances_of_processes_that_have_ended_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        let (own, abandoned) = (format!("lull-{}-7", std::process::id()), format!("lull-{}-7", ended.id()));
        for name in [&own, &abandoned, "others", "lull-x"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        remove_abandoned(folder.path());
        let left = |name: &str| folder.path().join(name).exists();
        assert!(left(&own) && left("others") && left("lull-x"));
        assert!(!left(&abandoned));
    }

    #[test]
    fn timeouts_of_zero_are_told_from_others() {
        let text = "# tracer: nop\n\
             s-8 [001] ..... 1.5: sys_epoll_wait(epfd: 5, events: 7f, maxevents: c8, timeout: 0)\n\
             s-8 [001] ..... 1.6: sys_epoll_wait(epfd: 5, events: 7f, maxevents: c8, timeout: ffffffffffffffff)\n\
             s-8 [001] ..... 1.7: sys_epoll_pwait(epfd: 5, events: 7f, maxevents: c8, timeout: 0, sigmask: 0, sigsetsize: 8)\n";
        assert_eq!(count(text), Timeouts { zero: 2, other: 1 });
    }
}
