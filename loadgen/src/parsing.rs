//! Values that are written as text: in flags, and in the messages to agents.

/// What is wrong with a value, and what to write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidValue(pub(crate) String);

impl InvalidValue {
    /// `expected`: what it should be, and how that is written.
    pub(crate) fn new(given: &str, expected: &str) -> Self {
        Self(format!("{given:?} is not {expected}"))
    }
}

/// Implements serde's traits with the type's `Display` and `FromStr`. Deserialization rejects what
/// `FromStr` rejects, so a value that arrives over the network is as valid as one from the command
/// line.
macro_rules! serde_display {
    ($type:ty) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text: String = serde::Deserialize::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

pub(crate) use serde_display;
