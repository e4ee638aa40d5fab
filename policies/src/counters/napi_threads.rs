//! What the kernel threads that poll queues did.

use std::io;
use std::time::Duration;

use procfs::process::Process;
use serde::Serialize;

use crate::cpus::Pid;
use crate::host::Interface;
use crate::host::process::is_napi_thread;
use crate::host::scheduler::fifo_priority;
use crate::netlink::netdev::Netdev;

/// What the kernel thread that polls a queue did between two snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NapiThread {
    pub queue: u32,
    pub thread: i32,
    /// The CPU that it ran on last, if the kernel says.
    pub core: Option<u32>,
    /// The CPU time that it used. Of a real-time thread also the time in which it was ready, except
    /// in the totals since its start: it takes its core as soon as it is woken, unless the thread
    /// there is in the kernel, and what that one does until it leaves the kernel is counted for
    /// nobody if it goes to sleep there (`kernel/sched/core.c`, `rq_clock_skip_update`). Busy polls
    /// of the application are not part of it. A thread that polls all the time uses all of its core.
    pub cpu_time: Duration,
    /// How often it was woken: its voluntary context switches, as each wake-up ends with one.
    pub wakes: u64,
    /// How long it was ready while something else had its core, if that is not part of the CPU time
    /// yet.
    #[serde(skip)]
    ready: Duration,
    #[serde(skip)]
    is_real_time: bool,
}

impl NapiThread {
    /// Reads the totals of each queue's thread since the thread was started.
    pub(super) fn read_all(interface: &Interface) -> Vec<Self> {
        let Ok(mut netdev) = Netdev::open() else { return Vec::new() };
        let mut threads = Vec::new();
        for queue in &interface.queues {
            // The thread may be younger than the interface's description.
            let napi = queue.napi.as_ref().and_then(|napi| netdev.napi(napi.id).ok());
            let thread = napi.and_then(|napi| napi.pid).filter(|thread| is_napi_thread(*thread));
            let thread = thread.and_then(|thread| i32::try_from(thread).ok());
            threads.extend(thread.and_then(|thread| Self::read(queue.index, thread).ok()));
        }
        threads
    }

    fn read(queue: u32, thread: i32) -> io::Result<Self> {
        let process = Process::new(thread).map_err(io::Error::other)?;
        let wakes = process.status().map_err(io::Error::other)?.voluntary_ctxt_switches;
        let core = process.stat().map_err(io::Error::other)?.processor;
        let times = process.schedstat().map_err(io::Error::other)?;
        Ok(Self {
            queue,
            thread,
            core: core.and_then(|core| u32::try_from(core).ok()),
            cpu_time: Duration::from_nanos(times.sum_exec_runtime),
            wakes: wakes.ok_or(io::ErrorKind::Unsupported)?,
            ready: Duration::from_nanos(times.run_delay),
            is_real_time: Pid::from_raw(thread).is_some_and(|id| fifo_priority(id).is_ok_and(|it| it > 0)),
        })
    }

    /// The difference to an earlier reading. A thread that is younger than the reading has begun at 0.
    /// Its class is that of the later reading: of the time before the earlier one nothing counts,
    /// whatever class it had then.
    pub(super) fn since(&self, before: &[Self]) -> Self {
        let before = before.iter().find(|other| other.thread == self.thread);
        let (run, ready, wakes) =
            before.map_or_else(Default::default, |before| (before.cpu_time, before.ready, before.wakes));
        let in_kernel = if self.is_real_time { self.ready.saturating_sub(ready) } else { Duration::ZERO };
        Self {
            cpu_time: self.cpu_time.saturating_sub(run) + in_kernel,
            wakes: self.wakes.saturating_sub(wakes),
            ready: Duration::ZERO,
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Cpus;

    #[test]
    fn a_thread_that_sleeps_ten_times_was_woken_as_often() {
        let id = rustix::thread::gettid().as_raw_nonzero().get();
        let before = NapiThread::read(0, id).unwrap();
        for _ in 0..10 {
            std::thread::sleep(Duration::from_micros(100));
        }
        let after = NapiThread::read(0, id).unwrap();
        assert!(after.since(&[before]).wakes >= 10, "{before:?} {after:?}");
        assert_eq!(after.since(&[]), NapiThread { ready: Duration::ZERO, ..after });
        assert!(Cpus::allowed().unwrap().contains(after.core.unwrap()), "{after:?}");
    }

    #[test]
    fn ready_time_from_before_a_thread_became_real_time_does_not_count() {
        let millis = Duration::from_millis;
        let before = NapiThread {
            queue: 0,
            thread: 7,
            core: None,
            cpu_time: millis(100),
            wakes: 0,
            ready: millis(5_000),
            is_real_time: false,
        };
        let after = NapiThread { cpu_time: millis(110), ready: millis(5_003), is_real_time: true, ..before };
        assert_eq!(after.since(&[before]).cpu_time, millis(13));
        let ordinary = NapiThread { is_real_time: false, ..after };
        assert_eq!(ordinary.since(&[before]).cpu_time, millis(10));
    }
}
