//! CPU time of threads.

use std::time::Duration;

/// The CPU time that the calling thread has used (`CLOCK_THREAD_CPUTIME_ID`).
pub fn this_thread_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}
