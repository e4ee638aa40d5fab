//! `/proc/<pid>/stat` (`proc_pid_stat(5)`), of processes and threads.

use std::fs;
use std::io;

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

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(by_id, ProcessStat::read("self").unwrap());
        assert_eq!(ProcessStat::read(i32::MAX).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
