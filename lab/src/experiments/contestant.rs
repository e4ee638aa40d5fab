//! What takes part in a comparison of policies.

use std::fmt;

use policies::Policy;
use runtime::DriverKind;
use serde::Serialize;

/// A policy on a driver. The first contestant of a comparison is the reference of all ratios.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Contestant {
    /// The policy.
    pub policy: Policy,
    /// The server's driver.
    pub driver: DriverKind,
}

impl Contestant {
    /// The four policies of the paper on one driver. `kernel-thread` takes part where it is named: it needs a core
    /// that nothing else uses, and Linux 6.19.
    pub fn policies(driver: DriverKind) -> Vec<Self> {
        Policy::PAPER.map(|policy| Self { policy, driver }).into()
    }

    /// Vanilla and kernel polling, each on several drivers.
    pub fn drivers() -> Vec<Self> {
        [
            (Policy::Vanilla, DriverKind::Epoll),
            (Policy::Vanilla, DriverKind::Uring),
            (Policy::KernelPolling, DriverKind::Epoll),
            (Policy::KernelPolling, DriverKind::Uring),
        ]
        .map(|(policy, driver)| Self { policy, driver })
        .into()
    }
}

impl fmt::Display for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.policy, self.driver)
    }
}
