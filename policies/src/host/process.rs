//! Processes: what `/proc/<pid>/stat` says of one, and what identifies it, a boot and a network
//! namespace, so that a journal can tell whether they are still the same.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::json::json_object;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProcessStat {
    /// The name, at most 15 bytes.
    pub(crate) name: String,
    /// `Z` for a zombie.
    pub(crate) state: char,
    pub(crate) parent: u32,
    /// In clock ticks since boot.
    pub(crate) start_time: u64,
    /// 1 to 99 for a real-time thread.
    pub(crate) rt_priority: u32,
    /// The scheduling class (`SCHED_OTHER`, …).
    pub(crate) class: i32,
}

/// The positions of fields after the name, where the state is the first.
const PARENT: usize = 1;
const START_TIME: usize = 19;
const RT_PRIORITY: usize = 37;
const CLASS: usize = 38;

impl ProcessStat {
    /// Reads a process's or a thread's. `process`: the id, `self`, or another name below `/proc`.
    pub(crate) fn read(process: impl std::fmt::Display) -> io::Result<Self> {
        let text = fs::read(format!("/proc/{process}/stat")).map_err(|error| match error.raw_os_error() {
            // It ended between the call that opened the file and the one that read it.
            Some(libc::ESRCH) => io::ErrorKind::NotFound.into(),
            _ => error,
        })?;
        parse(&String::from_utf8_lossy(&text)).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// A zombie no longer runs, and no longer holds what it set.
    pub(crate) fn is_running(&self) -> bool {
        self.state != 'Z'
    }
}

/// Parses `12 (name) S 1 12 …`. The name may contain spaces and parentheses.
fn parse(text: &str) -> Option<ProcessStat> {
    let (before, after) = text.rsplit_once(") ")?;
    let (_, name) = before.split_once(" (")?;
    let fields: Vec<&str> = after.split_whitespace().collect();
    Some(ProcessStat {
        name: name.to_owned(),
        state: fields.first()?.chars().next()?,
        parent: fields.get(PARENT)?.parse().ok()?,
        start_time: fields.get(START_TIME)?.parse().ok()?,
        rt_priority: fields.get(RT_PRIORITY)?.parse().ok()?,
        class: fields.get(CLASS)?.parse().ok()?,
    })
}

/// Whether a thread is a kernel thread that polls a NAPI (`napi/NAME-ID`). The kernel reports its id
/// in the first PID namespace: in a container's it may be another process's.
pub(crate) fn is_napi_thread(id: u32) -> bool {
    ProcessStat::read(id).is_ok_and(|thread| thread.name.starts_with("napi/"))
}

/// A process. Its start time distinguishes it from a later process with the same id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProcessIdentity {
    pub(crate) pid: u32,
    start: u64,
    /// The inode of the PID namespace that the id belongs to; 0 if it could not be read.
    pid_namespace: u64,
}

json_object!(ProcessIdentity: pid, start, pid_namespace);

/// `PROC_PID_INIT_INO` in the kernel's `include/linux/proc_ns.h`.
const FIRST_PID_NAMESPACE: u64 = 0xefff_fffc;

pub(crate) fn is_in_first_pid_namespace() -> bool {
    pid_namespace() == FIRST_PID_NAMESPACE
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessState {
    Running,
    Ended,
    /// It belongs to another PID namespace, or `/proc` hides it (`hidepid`).
    Hidden,
}

impl ProcessIdentity {
    /// A running process by its id; `None` if there is none.
    #[cfg(any(feature = "tools", test))]
    pub(crate) fn of(pid: u32) -> Option<Self> {
        Some(Self { pid, start: start_time(pid)?, pid_namespace: pid_namespace() })
    }

    pub(crate) fn current() -> Self {
        // Not by the id: /proc may be that of another PID namespace.
        let start = ProcessStat::read("self").map_or(0, |stat| stat.start_time);
        Self { pid: std::process::id(), start, pid_namespace: pid_namespace() }
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.state() == ProcessState::Running
    }

    pub(crate) fn state(&self) -> ProcessState {
        if !self.may_be_of_this_pid_namespace() {
            let ended = pid_namespace_has_ended(self.pid_namespace);
            return if ended { ProcessState::Ended } else { ProcessState::Hidden };
        }
        match ProcessStat::read(self.pid) {
            Ok(stat) if stat.is_running() && stat.start_time == self.start => ProcessState::Running,
            Err(_) if exists(self.pid) => ProcessState::Hidden,
            _ => ProcessState::Ended,
        }
    }

    pub(crate) fn has_id(&self, pid: u32) -> bool {
        self.pid == pid && self.may_be_of_this_pid_namespace()
    }

    /// Whether the process certainly has ended. Unlike a look into `/proc`, the answer does not
    /// depend on who asks.
    pub(crate) fn is_certainly_gone(&self) -> bool {
        let here = pid_namespace();
        here != 0 && self.pid_namespace == here && !exists(self.pid)
    }

    /// Whether it belongs to this process's PID namespace, or to one that could not be read.
    fn may_be_of_this_pid_namespace(&self) -> bool {
        self.pid_namespace == 0 || self.pid_namespace == pid_namespace()
    }
}

/// The start time of a running process, in clock ticks since boot; `None` if there is no such
/// process.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    ProcessStat::read(pid).ok().filter(ProcessStat::is_running).map(|stat| stat.start_time)
}

/// Whether a process has this id, also one that `/proc` does not show.
fn exists(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
}

/// The id of this boot; empty where `/proc` does not show it (systemd's `ProcSubset=pid`).
pub(crate) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

/// The inode of the calling thread's network namespace; 0 if it can't be read.
pub(crate) fn network_namespace() -> u64 {
    fs::metadata("/proc/thread-self/ns/net").map_or(0, |data| data.ino())
}

/// The inode of this process's PID namespace; 0 if it can't be read.
fn pid_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |data| data.ino())
}

/// Whether no process is left in a PID namespace. Only the first namespace shows those of all
/// others, and only to a process to which `/proc` hides nothing; elsewhere the answer is `false`.
fn pid_namespace_has_ended(inode: u64) -> bool {
    let namespace = |process: &Path| fs::metadata(process.join("ns/pid")).map(|data| data.ino());
    if !is_in_first_pid_namespace() || namespace(Path::new("/proc/1")).is_err() {
        return false;
    }
    let Ok(processes) = fs::read_dir("/proc") else { return false };
    let is_process = |name: &OsStr| name.to_str().is_some_and(|name| name.parse::<u32>().is_ok());
    processes.flatten().filter(|entry| is_process(&entry.file_name())).all(|entry| {
        match namespace(&entry.path()) {
            Ok(found) => found != inode,
            // It has ended.
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_that_a_containers_ids_name_by_chance_is_no_napi_thread() {
        assert!(!is_napi_thread(std::process::id()));
    }

    #[test]
    fn a_name_with_parentheses_and_spaces_moves_no_field() {
        let tail = (2..=49).map(|field| field.to_string()).collect::<Vec<_>>().join(" ");
        let stat = parse(&format!("7 (a) b (c) S {tail}\n")).unwrap();
        // The numbers are those of proc_pid_stat(5) less 2, as the state is field 3.
        let expected = ProcessStat {
            name: "a) b (c".to_owned(),
            state: 'S',
            parent: 2,
            start_time: 20,
            rt_priority: 38,
            class: 39,
        };
        assert_eq!(stat, expected);
        assert_eq!(parse("7 (a) S 1 2"), None);
    }

    #[test]
    fn this_process_is_read_by_its_id_and_as_self() {
        let by_id = ProcessStat::read(std::process::id()).unwrap();
        // The main thread may have gone to sleep between the two.
        let as_self = ProcessStat { state: by_id.state, ..ProcessStat::read("self").unwrap() };
        assert_eq!(by_id, as_self);
        assert_eq!(ProcessStat::read(i32::MAX).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_process_is_seen_running_then_ended() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = ProcessIdentity::of(child.id()).unwrap();
        assert_eq!(process.state(), ProcessState::Running);
        assert!(process.has_id(child.id()) && !process.is_certainly_gone());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(process.state(), ProcessState::Ended);
        assert!(process.is_certainly_gone());
        assert_eq!(ProcessIdentity::current().state(), ProcessState::Running);
    }

    #[test]
    fn a_process_of_another_pid_namespace_is_not_the_one_that_has_its_id_here() {
        let here = ProcessIdentity::current();
        let there = ProcessIdentity { pid_namespace: 1, ..here.clone() };
        // Where all namespaces can be seen, it is known that this one has ended.
        assert_ne!(there.state(), ProcessState::Running);
        assert!(!there.has_id(here.pid) && !there.is_certainly_gone());
        // It could not be read.
        let unknown = ProcessIdentity { pid_namespace: 0, ..here.clone() };
        assert_eq!(unknown.state(), ProcessState::Running);
        assert!(unknown.has_id(here.pid) && !unknown.is_certainly_gone());
    }
}
