//! The scheduling class of threads: `SCHED_OTHER`, or real-time `SCHED_FIFO`.

#![expect(unsafe_code, reason = "neither rustix nor std has sched_setscheduler and getrusage")]

use std::io;

use super::process::ProcessStat;
use crate::cpus::Pid;

/// A thread's `SCHED_FIFO` priority, 1 to 99; 0 for an ordinary thread (`SCHED_OTHER`). Takes a
/// thread id.
///
/// # Errors
/// `NotFound` if there is no such thread, `Unsupported` if it has another scheduling class
/// (`SCHED_RR`, `SCHED_BATCH`, `SCHED_IDLE`, `SCHED_DEADLINE`).
pub fn fifo_priority(thread: Pid) -> io::Result<u32> {
    let id = thread.as_raw_nonzero().get();
    let stat = ProcessStat::read(id)?;
    match stat.class {
        libc::SCHED_OTHER => Ok(0),
        libc::SCHED_FIFO => Ok(stat.rt_priority),
        class => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "thread {id} has scheduling class {class}, neither SCHED_OTHER nor SCHED_FIFO; set it to \
                 SCHED_OTHER first (chrt --other --pid 0 {id})"
            ),
        )),
    }
}

/// Makes a thread a real-time thread (`SCHED_FIFO`) with a priority of 1 to 99, or with 0 an
/// ordinary one (`SCHED_OTHER`), which keeps its nice value. Takes a thread id. Needs
/// `CAP_SYS_NICE`.
///
/// # Errors
/// Those of [`fifo_priority`]: another scheduling class is not replaced, because it could not be
/// restored. `EPERM` without the capability, `EINVAL` for a priority above 99.
pub fn set_fifo_priority(thread: Pid, priority: u32) -> io::Result<()> {
    fifo_priority(thread)?;
    let class = if priority == 0 { libc::SCHED_OTHER } else { libc::SCHED_FIFO };
    let priority = libc::c_int::try_from(priority).map_err(|_| io::ErrorKind::InvalidInput)?;
    set(thread, class, priority)
}

fn set(thread: Pid, class: libc::c_int, priority: libc::c_int) -> io::Result<()> {
    // The kernel's struct sched_param is one int. musl's wrapper of this call only returns ENOSYS.
    // SAFETY: the pointer is to an int that lives through the call, and the kernel only reads it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            thread.as_raw_nonzero().get(),
            class,
            std::ptr::from_ref(&priority),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_thread_has_priority_0_and_a_priority_above_99_is_refused() {
        let thread = rustix::thread::gettid();
        assert_eq!(fifo_priority(thread).unwrap(), 0);
        set_fifo_priority(thread, 0).unwrap();
        let error = set_fifo_priority(thread, 100).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
        assert_eq!(fifo_priority(thread).unwrap(), 0);
    }

    #[test]
    fn a_thread_that_does_not_exist_is_not_found() {
        // Above the largest process id (PID_MAX_LIMIT).
        let error = fifo_priority(Pid::from_raw(i32::MAX).unwrap()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
    }
}
