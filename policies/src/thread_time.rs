//! CPU time of threads.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::cpus::Pid;
use crate::host::scheduler::fifo_priority;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ThreadTimes {
    pub run: Duration,
    /// It was ready to run while something else had the core. The rest of the time it slept.
    pub ready: Duration,
    /// How often it got a core: after each sleep, and after something else had it.
    pub turns: u64,
}

/// Reads how a thread spends its time.
///
/// Source: `/proc/<tid>/schedstat`.
#[derive(Debug)]
pub struct AwakeTime {
    schedstat: File,
    works_while_ready: bool,
}

impl AwakeTime {
    /// Opens the file of a thread, of this or another process, by its id.
    ///
    /// # Errors
    /// `NotFound` if there is no such thread, or the kernel was built without `CONFIG_SCHED_INFO`.
    pub fn open(thread: i32) -> io::Result<Self> {
        Ok(Self { schedstat: File::open(format!("/proc/{thread}/schedstat"))?, works_while_ready: false })
    }

    /// Opens the file of a kernel thread that polls a NAPI, by its id.
    ///
    /// A real-time thread takes its core as soon as it is woken, unless the thread there is in the
    /// kernel. What that thread does until it leaves the kernel is counted for nobody if it goes to
    /// sleep there, and for the woken one otherwise (`kernel/sched/core.c`,
    /// `rq_clock_skip_update`). So the time in which the woken thread is ready is part of
    /// [`ThreadTimes::run`] here: without it a third of what a saturated core does is missing.
    pub fn open_napi_thread(thread: i32) -> io::Result<Self> {
        Ok(Self { works_while_ready: Self::is_real_time(thread), ..Self::open(thread)? })
    }

    pub(crate) fn is_real_time(thread: i32) -> bool {
        Pid::from_raw(thread).is_some_and(|id| fifo_priority(id).is_ok_and(|it| it > 0))
    }

    pub fn read(&self) -> io::Result<ThreadTimes> {
        let mut buffer = [0; 128];
        let length = self.schedstat.read_at(&mut buffer, 0)?;
        let text = std::str::from_utf8(&buffer[..length]).map_err(io::Error::other)?;
        let mut numbers = text.split_whitespace().map_while(|word| word.parse().ok());
        match (numbers.next(), numbers.next(), numbers.next()) {
            (Some(run), Some(ready), Some(turns)) => {
                let (run, ready) = (Duration::from_nanos(run), Duration::from_nanos(ready));
                match self.works_while_ready {
                    true => Ok(ThreadTimes { run: run + ready, ready: Duration::ZERO, turns }),
                    false => Ok(ThreadTimes { run, ready, turns }),
                }
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// How often the calling thread has gone to sleep (`ru_nvcsw` of `RUSAGE_THREAD`, getrusage(2)).
pub fn voluntary_switches() -> u64 {
    crate::host::scheduler::this_thread_usage().ru_nvcsw.unsigned_abs()
}

/// The CPU time that the calling thread has used (`CLOCK_THREAD_CPUTIME_ID`).
pub fn this_thread_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "timing"]
    fn a_thread_that_sleeps_is_not_awake() {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let awake = AwakeTime::open(thread).unwrap();
        let before = awake.read().unwrap().run;
        std::thread::sleep(Duration::from_millis(50));
        assert!(awake.read().unwrap().run - before < Duration::from_millis(25));
    }
}
