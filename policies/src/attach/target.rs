//! What to attach to, and how: a server, and its processes as they come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use crate::controller::PollInterval;
use crate::error::Error;
use crate::host::process::ProcessIdentity;
use crate::host::process::ProcessStat;
use crate::journal::JournalDir;

/// The mount points of a control group hierarchy that holds units: version 2, hybrid, version 1.
const HIERARCHIES: [&str; 3] = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup"];
/// How deep units are looked for below a hierarchy:
/// `user.slice/user-0.slice/user@0.service/app.slice/NAME`.
const DEEPEST_UNIT: usize = 6;

#[derive(Debug, Clone)]
pub struct AttachConfig {
    pub target: Target,
    /// Only queues of this interface of the server's network namespace; `None` is all interfaces.
    pub interface: Option<String>,
    /// How long a packet may wait for the kernel's timer while the queue is polled.
    /// [`PollInterval::NEVER_SLEEPS`] can't be had from outside, and counts as
    /// [`PollInterval::MIN`].
    pub poll_interval: PollInterval,
    /// Whether listeners with `SO_REUSEPORT`, one for each queue, are steered: each then gets the
    /// new connections of one queue.
    pub steer: bool,
    pub journals: JournalDir,
    /// Polls from 2,000 packets a second on, for tests of what polling does.
    #[doc(hidden)]
    pub polls_always: bool,
}

impl AttachConfig {
    /// All interfaces, the default poll interval, and the default journals.
    pub fn new(target: Target) -> Self {
        Self {
            target,
            interface: None,
            poll_interval: PollInterval::default(),
            steer: false,
            journals: JournalDir::default(),
            polls_always: false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    Process(u32),
    DescendantsOf(u32),
    /// A systemd unit by its name; without a suffix it is a service.
    Unit(String),
    /// A control group by its path below the hierarchy, as in `/proc/PID/cgroup`, or by the path of
    /// its folder.
    Cgroup(PathBuf),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Process(pid) => write!(f, "process {pid}"),
            Target::DescendantsOf(pid) => write!(f, "the children of process {pid}"),
            Target::Unit(name) => write!(f, "unit {name}"),
            Target::Cgroup(path) => write!(f, "control group {}", path.display()),
        }
    }
}

/// Finds a target's processes again and again. The control groups stay in reach after the calling
/// thread has moved to a mount namespace without them.
#[derive(Debug)]
pub(super) struct ProcessFinder {
    target: Target,
    /// A process that was named is the one with this start time.
    root: Option<ProcessIdentity>,
    hierarchies: Vec<File>,
}

impl ProcessFinder {
    pub(super) fn new(target: &Target) -> Result<Self, Error> {
        let no_target =
            |reason: &str| Error::NoTarget { target: target.to_string(), reason: reason.to_owned() };
        let root = match target {
            Target::Process(pid) | Target::DescendantsOf(pid) => {
                Some(ProcessIdentity::of(*pid).ok_or_else(|| no_target("there is no such process"))?)
            }
            Target::Unit(_) | Target::Cgroup(_) => None,
        };
        let open = |path: &&str| File::open(path).ok();
        let hierarchies =
            if root.is_some() { Vec::new() } else { HIERARCHIES.iter().filter_map(open).collect() };
        let finder = Self { target: target.clone(), root, hierarchies };
        if finder.root.is_none() && finder.group().is_none() {
            return Err(no_target(match target {
                Target::Unit(_) => "no control group has its name; see `systemctl status`",
                _ => "there is no such control group; see /proc/PID/cgroup",
            }));
        }
        Ok(finder)
    }

    /// Whether the target can have processes again after all have ended.
    pub(super) fn may_come_back(&self) -> bool {
        match (&self.target, &self.root) {
            (Target::DescendantsOf(_), Some(root)) => root.is_alive(),
            (_, root) => root.is_none(),
        }
    }

    /// The processes, in ascending order of their ids.
    pub(super) fn processes(&self) -> BTreeSet<u32> {
        match (&self.target, &self.root) {
            (Target::Process(pid), Some(root)) => {
                let mut found = descendants(*pid);
                if root.is_alive() {
                    found.insert(*pid);
                }
                found
            }
            (_, Some(root)) => descendants(root.pid),
            (_, None) => self.group().map(|group| members(&group)).unwrap_or_default(),
        }
    }

    fn group(&self) -> Option<PathBuf> {
        let path_of = |hierarchy: &File| PathBuf::from(format!("/proc/self/fd/{}", hierarchy.as_raw_fd()));
        match &self.target {
            Target::Unit(name) => {
                let name = if name.contains('.') { name.clone() } else { format!("{name}.service") };
                self.hierarchies
                    .iter()
                    .find_map(|hierarchy| find_folder(&path_of(hierarchy), &name, DEEPEST_UNIT))
            }
            Target::Cgroup(path) => {
                let below = HIERARCHIES.iter().find_map(|root| path.strip_prefix(root).ok());
                let relative = below.unwrap_or(path.strip_prefix("/").unwrap_or(path));
                self.hierarchies
                    .iter()
                    .map(|hierarchy| path_of(hierarchy).join(relative))
                    .find(|path| path.join("cgroup.procs").exists())
            }
            Target::Process(_) | Target::DescendantsOf(_) => None,
        }
    }
}

fn find_folder(below: &Path, name: &str, depth: usize) -> Option<PathBuf> {
    let here = below.join(name);
    if here.join("cgroup.procs").exists() {
        return Some(here);
    }
    if depth == 0 {
        return None;
    }
    subfolders(below).find_map(|folder| find_folder(&folder, name, depth - 1))
}

fn subfolders(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
}

/// The processes of a control group and of those below it.
fn members(group: &Path) -> BTreeSet<u32> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let mut found: BTreeSet<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
    for folder in subfolders(group) {
        found.extend(members(&folder));
    }
    found
}

fn descendants(root: u32) -> BTreeSet<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(pid) = pid
            && let Ok(stat) = ProcessStat::read(pid)
            && stat.is_running()
        {
            children.entry(stat.parent).or_default().push(pid);
        }
    }
    let mut found = BTreeSet::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            found.insert(child);
            parents.push(child);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_is_found_with_its_children_until_it_ends() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 60 & read line; kill $!"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let finder = ProcessFinder::new(&Target::Process(shell.id())).unwrap();
        let own = ProcessFinder::new(&Target::DescendantsOf(std::process::id())).unwrap();
        let patience = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while finder.processes().len() < 2 {
            assert!(std::time::Instant::now() < patience, "{:?}", finder.processes());
        }
        let found = finder.processes();
        assert!(found.contains(&shell.id()), "{found:?}");
        assert!(own.processes().is_superset(&found), "{:?}", own.processes());
        assert!(!own.processes().contains(&std::process::id()));
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert!(!finder.processes().contains(&shell.id()));
        assert!(!finder.may_come_back());
    }

    #[test]
    fn targets_that_do_not_exist_are_errors_that_name_them() {
        for (target, expected) in [
            (Target::Process(u32::MAX), "process 4294967295"),
            (Target::Unit("nonesuch-unit".to_owned()), "unit nonesuch-unit"),
            (Target::Cgroup("/nonesuch/group".into()), "control group /nonesuch/group"),
        ] {
            let error = ProcessFinder::new(&target).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
