//! The drivers' names.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Which driver workers use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriverKind {
    /// Hybrid under the policies that poll, else uring; epoll where there is no io_uring.
    #[default]
    Auto,
    /// epoll alone: readiness, and a system call for each receive and send.
    Epoll,
    /// io_uring alone. It can busy-poll a queue, but not suspend its interrupts.
    Uring,
    /// epoll as the wait, which suspends interrupts; io_uring for a turn's receives and sends.
    Hybrid,
}

const KINDS: [(DriverKind, &str); 4] = [
    (DriverKind::Auto, "auto"),
    (DriverKind::Epoll, "epoll"),
    (DriverKind::Uring, "uring"),
    (DriverKind::Hybrid, "hybrid"),
];

impl fmt::Display for DriverKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = KINDS.iter().find(|(kind, _)| kind == self).map_or("", |(_, name)| name);
        f.pad(name)
    }
}

/// Text that names no driver.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown driver {given:?}; the drivers are: auto, epoll, uring, hybrid")]
pub struct UnknownDriver {
    given: String,
}

impl FromStr for DriverKind {
    type Err = UnknownDriver;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let kind = KINDS.iter().find(|(_, name)| *name == text);
        kind.map(|(kind, _)| *kind).ok_or_else(|| UnknownDriver { given: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_driver_parses_back_from_its_name_and_an_unknown_one_lists_them() {
        for (kind, name) in KINDS {
            assert_eq!(name.parse(), Ok(kind));
            assert_eq!(kind.to_string(), name);
        }
        assert!(
            "iouring".parse::<DriverKind>().unwrap_err().to_string().contains("auto, epoll, uring, hybrid")
        );
    }
}
