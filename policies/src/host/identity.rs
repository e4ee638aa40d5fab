//! Identifies a boot, a network namespace and a process, so that a journal can tell whether they are
//! still the same.

use std::fs;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

/// A process. Its start time distinguishes it from a later process with the same id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct ProcessIdentity {
    pub(crate) pid: u32,
    start: u64,
}

impl ProcessIdentity {
    /// A running process by its id; `None` if there is none.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        Some(Self { pid, start: start_time(pid)? })
    }

    pub(crate) fn current() -> Self {
        let pid = std::process::id();
        Self { pid, start: start_time(pid).unwrap_or(0) }
    }

    pub(crate) fn is_alive(&self) -> bool {
        start_time(self.pid) == Some(self.start)
    }
}

/// The start time of a running process, in clock ticks since boot; `None` if there is no such process.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    let process = procfs::process::Process::new(i32::try_from(pid).ok()?).ok()?;
    let stat = process.stat().ok()?;
    // A zombie no longer runs, and no longer holds what it set.
    (stat.state != 'Z').then_some(stat.starttime)
}

pub(crate) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

/// The inode of the calling thread's network namespace; 0 if it can't be read.
pub(crate) fn network_namespace() -> u64 {
    fs::metadata("/proc/thread-self/ns/net").map_or(0, |data| data.ino())
}
