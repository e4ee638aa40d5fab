//! The machine: as people know it, what plans and explanations need of it besides an interface, and
//! what the calling process may do there.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;

use super::numa::Topology;
use super::process::ProcessStat;
use crate::cpus::Cpus;
use crate::netlink::netdev::Netdev;
use rustix::process::Pid;
use rustix::thread::CapabilitySet;

#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Machine {
    pub cpu: String,
    pub cores: usize,
    pub kernel: String,
}

impl Machine {
    /// Reads this machine's description from `/proc`.
    pub fn read() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            cpu: cpu.map_or_else(|| "unknown CPU".to_owned(), |(_, name)| name.trim().to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: kernel.trim().to_owned(),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} cores, Linux {}", self.cpu, self.cores, self.kernel)
    }
}

#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(deny_unknown_fields))]
pub(crate) struct HostFacts {
    pub(crate) kernel: String,
    /// The cores that this process may use.
    pub(crate) allowed: Cpus,
    pub(crate) online: Cpus,
    pub(crate) topology: Topology,
    /// The process of a running irqbalance, which may move any interrupt every ten seconds.
    pub(crate) irqbalance: Option<i32>,
    pub(crate) has_netdev: bool,
}

impl HostFacts {
    pub(crate) fn read() -> Self {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            kernel: kernel.trim().to_owned(),
            allowed: Cpus::allowed().unwrap_or_default(),
            online: Cpus::online().unwrap_or_default(),
            topology: Topology::read(),
            irqbalance: find_irqbalance(),
            has_netdev: Netdev::open().is_ok(),
        }
    }

    /// The version's first two numbers; `None` if the release has another form.
    pub(crate) fn kernel_version(&self) -> Option<(u32, u32)> {
        let mut numbers = self.kernel.split(|next: char| !next.is_ascii_digit());
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }
}

/// Finds irqbalance among the processes that this one sees.
fn find_irqbalance() -> Option<i32> {
    // Only a process of root: any user can start one of this name.
    let is_irqbalance = |entry: &fs::DirEntry, pid: i32| {
        entry.metadata().is_ok_and(|data| data.uid() == 0)
            && ProcessStat::read(pid).is_ok_and(|stat| stat.name == "irqbalance")
    };
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        is_irqbalance(&entry, pid).then_some(pid)
    })
}

/// The capabilities that some knob needs and this process lacks: `CAP_NET_ADMIN`, `CAP_SYS_NICE`.
pub fn missing_capabilities() -> Vec<&'static str> {
    [(CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"), (CapabilitySet::SYS_NICE, "CAP_SYS_NICE")]
        .into_iter()
        .filter(|(capability, _)| !has_capability(*capability))
        .map(|(_, name)| name)
        .collect()
}

pub(crate) fn has_capability(capability: CapabilitySet) -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(capability))
}

pub(crate) fn has_net_admin() -> bool {
    has_capability(CapabilitySet::NET_ADMIN)
}

pub(crate) fn may_set_napis(thread: Pid) -> bool {
    let sets = rustix::thread::capabilities(Some(thread));
    sets.is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN)) && in_initial_user_namespace()
}

pub(crate) fn in_initial_user_namespace() -> bool {
    // The initial namespace maps every id to itself; no other may map the last one.
    fs::read_to_string("/proc/self/uid_map")
        .is_ok_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]))
}
