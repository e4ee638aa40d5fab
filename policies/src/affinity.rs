//! How workers and the interrupts of their queues are kept together.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How workers and the interrupts of their queues are kept on the same core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Affinity {
    /// Workers are pinned, and each queue's interrupt goes to its worker's core. An interrupt that was
    /// moved is moved back.
    #[default]
    Pin,
    /// Each worker runs on the core of its queue's interrupt, and moves with it. Waking a thread on the
    /// core that took the interrupt is much cheaper than across cores (FastWake).
    Follow,
    /// Interrupts stay where they are.
    None,
}

impl Affinity {
    const ALL: [Affinity; 3] = [Affinity::Pin, Affinity::Follow, Affinity::None];

    fn name(self) -> &'static str {
        match self {
            Affinity::Pin => "pin",
            Affinity::Follow => "follow",
            Affinity::None => "none",
        }
    }
}

impl fmt::Display for Affinity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown affinity {given:?}; use pin, follow or none")]
pub struct UnknownAffinity {
    pub given: String,
}

impl FromStr for Affinity {
    type Err = UnknownAffinity;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Affinity::ALL
            .into_iter()
            .find(|affinity| affinity.name() == text)
            .ok_or_else(|| UnknownAffinity { given: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_to_its_affinity_and_others_are_errors() {
        for affinity in Affinity::ALL {
            assert_eq!(affinity.to_string().parse(), Ok(affinity));
        }
        let message = "pinned".parse::<Affinity>().unwrap_err().to_string();
        assert!(message.contains("\"pinned\"") && message.contains("follow"), "{message}");
    }
}
