//! Control groups of a process that is to have little memory or CPU time, on version 2 or 1 of the hierarchy.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where systemd, or the machine's own start, mounts the hierarchies. Version 2 has one, version 1 one a controller.
const ROOT: &str = "/sys/fs/cgroup";

/// A group with a limit. Removed on drop, after its processes.
#[derive(Debug)]
pub struct ControlGroup {
    path: PathBuf,
    version_2: bool,
}

impl ControlGroup {
    pub fn of_memory(bytes: u64) -> Option<Self> {
        let bytes = bytes.to_string();
        Self::new("memory", &[("memory.max", &bytes)], &[("memory.limit_in_bytes", &bytes)])
    }

    /// A group that gets this share of one core, in percent, in periods of 100 ms.
    pub fn of_cpu_percent(percent: u32) -> Option<Self> {
        let quota = (percent * 1000).to_string();
        let both = format!("{quota} 100000");
        let version_1 = [("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", &*quota)];
        Self::new("cpu", &[("cpu.max", &both)], &version_1)
    }

    /// `None` without root, or without the controller.
    fn new(controller: &str, version_2: &[(&str, &str)], version_1: &[(&str, &str)]) -> Option<Self> {
        let controllers = std::fs::read_to_string(format!("{ROOT}/cgroup.controllers")).unwrap_or_default();
        let in_version_2 = controllers.split_whitespace().any(|name| name == controller);
        let (parent, settings) = if in_version_2 {
            // The groups below the root have the controller only if the root passes it on.
            let _ = std::fs::write(format!("{ROOT}/cgroup.subtree_control"), format!("+{controller}"));
            (ROOT.into(), version_2)
        } else {
            (format!("{ROOT}/{controller}"), version_1)
        };
        let name = format!("lull-test-{controller}-{}", std::process::id());
        // Without the hierarchy this is an ordinary folder, or nothing.
        Path::new(&parent).join("cgroup.procs").is_file().then_some(())?;
        let group = Self { path: Path::new(&parent).join(name), version_2: in_version_2 };
        std::fs::create_dir(&group.path).ok()?;
        settings.iter().try_for_each(|(file, value)| std::fs::write(group.path.join(file), value)).ok()?;
        Some(group)
    }

    pub fn add(&self, process: u32) {
        std::fs::write(self.path.join("cgroup.procs"), process.to_string()).expect("the process moves");
    }

    /// A shell command that moves the shell into the group.
    pub fn enter_command(&self) -> String {
        format!("echo $$ > {}", self.path.join("cgroup.procs").display())
    }

    /// How many processes the kernel has killed because the group was out of memory.
    pub fn killed(&self) -> u64 {
        let file = if self.version_2 { "memory.events" } else { "memory.oom_control" };
        self.counter(file, "oom_kill ")
    }

    /// How many periods the group has spent out of CPU time.
    pub fn throttled(&self) -> u64 {
        self.counter("cpu.stat", "nr_throttled ")
    }

    /// The bytes that are charged to the group: of programs, caches, and with version 2 of sockets, too.
    pub fn memory(&self) -> u64 {
        let file = if self.version_2 { "memory.current" } else { "memory.usage_in_bytes" };
        self.counter(file, "")
    }

    fn counter(&self, file: &str, name: &str) -> u64 {
        let text = std::fs::read_to_string(self.path.join(file)).unwrap_or_default();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.unwrap_or(0)
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // A process that has just been killed is in it for a moment longer.
        for _ in 0..500 {
            if std::fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
