//! Which driver workers use.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Which driver workers use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum DriverKind {
    /// Epoll where the values of an interface's queue are fixed and its waits poll (suppression, kernel polling with a fixed
    /// grace time or on a host that was prepared by others), or if io_uring is not available. Else uring.
    #[default]
    Auto,
    /// Only epoll: readiness, and a system call for each receive and send.
    Epoll,
    /// io_uring: a turn's receives and sends take one system call, which also polls the queue.
    Uring,
}

const KINDS: [(DriverKind, &str); 3] =
    [(DriverKind::Auto, "auto"), (DriverKind::Epoll, "epoll"), (DriverKind::Uring, "uring")];

impl fmt::Display for DriverKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = KINDS.iter().find(|(kind, _)| kind == self).map_or("", |(_, name)| name);
        f.pad(name)
    }
}

/// A string that is not a driver.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown driver {given:?}; the drivers are: auto, epoll, uring")]
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
    fn every_driver_parses_back_from_its_name_and_the_error_for_an_unknown_one_lists_them() {
        for (kind, name) in KINDS {
            assert_eq!(name.parse(), Ok(kind));
            assert_eq!(kind.to_string(), name);
        }
        assert!("iouring".parse::<DriverKind>().unwrap_err().to_string().contains("auto, epoll, uring"));
    }
}
