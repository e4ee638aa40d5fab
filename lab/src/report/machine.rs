//! The machine that was measured.

use std::fs;

use serde::Serialize;

/// The machine that was measured.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Machine {
    /// The CPU's model name.
    pub cpu: String,
    /// The number of cores that this process may use.
    pub cores: usize,
    /// The kernel's release.
    pub kernel: String,
}

impl Machine {
    /// Reads the machine's description from `/proc`.
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
