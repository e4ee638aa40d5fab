//! The parts that are measured one after the other, and saved one by one.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A part of `lab paper`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// The four policies on Lull's memcached: Table 5 and Figure 5.
    Policies,
    /// Unmodified memcached, memcached under `policies attach`, and Lull's: how much of a gain comes from the policy.
    Attached,
    /// nginx as it runs and attached to: Table 2.
    Web,
    /// Lull's memcached with 1 to 10,000 connections: Figure 9.
    Connections,
}

impl Part {
    /// All parts, in the order in which they are measured.
    pub const ALL: [Self; 4] = [Self::Policies, Self::Attached, Self::Web, Self::Connections];

    /// The name, also of the file that keeps the part.
    pub fn name(self) -> &'static str {
        match self {
            Self::Policies => "policies",
            Self::Attached => "attached",
            Self::Web => "web",
            Self::Connections => "connections",
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
