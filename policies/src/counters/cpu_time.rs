//! How CPUs spend their time.

use std::io;
use std::time::Duration;

use procfs::{CurrentSI, KernelStats};
use serde::Serialize;

/// How one CPU spent an interval. The kernel counts in ticks of 10 ms (`USER_HZ`).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CpuTime {
    /// Not idle: user, system, interrupts.
    pub busy: Duration,
    /// Part of `busy`: softirqs, except those that ran on behalf of a system call.
    pub softirq: Duration,
    /// Idle, or waiting for I/O.
    pub idle: Duration,
    /// Taken by the hypervisor.
    pub steal: Duration,
}

/// The counters of one CPU in `/proc/stat`, in ticks of `USER_HZ`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct CpuTicks {
    busy: u64,
    softirq: u64,
    idle: u64,
    steal: u64,
}

impl CpuTicks {
    /// The ticks of each CPU since boot.
    pub(super) fn read_all() -> io::Result<Vec<Self>> {
        let stats = KernelStats::current().map_err(io::Error::other)?;
        Ok(stats
            .cpu_time
            .into_iter()
            .map(|cpu| {
                let softirq = cpu.softirq.unwrap_or(0);
                Self {
                    busy: cpu.user + cpu.nice + cpu.system + cpu.irq.unwrap_or(0) + softirq,
                    softirq,
                    idle: cpu.idle + cpu.iowait.unwrap_or(0),
                    steal: cpu.steal.unwrap_or(0),
                }
            })
            .collect())
    }

    pub(super) fn since(&self, before: &CpuTicks) -> CpuTime {
        let tick = Duration::from_secs(1) / u32::try_from(procfs::ticks_per_second()).unwrap_or(100);
        let time = |now: u64, then: u64| tick * u32::try_from(now.saturating_sub(then)).unwrap_or(u32::MAX);
        CpuTime {
            busy: time(self.busy, before.busy),
            softirq: time(self.softirq, before.softirq),
            idle: time(self.idle, before.idle),
            steal: time(self.steal, before.steal),
        }
    }
}
