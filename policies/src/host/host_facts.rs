//! What plans and explanations need to know of the host besides an interface.

use std::fs;

use serde::{Deserialize, Serialize};

use super::irqbalance::Irqbalance;
use super::numa::Topology;
use crate::cpus::Cpus;
use crate::netlink::netdev::Netdev;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HostFacts {
    pub(crate) kernel: String,
    /// The cores that this process may use.
    pub(crate) allowed: Cpus,
    pub(crate) online: Cpus,
    pub(crate) topology: Topology,
    pub(crate) irqbalance: Option<i32>,
    pub(crate) has_netdev: bool,
    /// Whether the kernel has NAPI threads that poll all the time; `None` if it doesn't say.
    pub(crate) has_polling_threads: Option<bool>,
}

impl HostFacts {
    pub(crate) fn read() -> Self {
        let mut netdev = Netdev::open().ok();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            kernel: kernel.trim().to_owned(),
            allowed: Cpus::allowed().unwrap_or_default(),
            online: Cpus::online().unwrap_or_default(),
            topology: Topology::read(),
            irqbalance: Irqbalance::find().map(|irqbalance| irqbalance.pid),
            has_netdev: netdev.is_some(),
            has_polling_threads: netdev.as_mut().and_then(Netdev::accepts_threaded_busy_poll),
        }
    }

    /// The version's first two numbers; `None` if the release has another form.
    #[cfg(feature = "tools")]
    pub(crate) fn kernel_version(&self) -> Option<(u32, u32)> {
        let mut numbers = self.kernel.split(|next: char| !next.is_ascii_digit());
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }
}
