//! What is requested: operations, keys, values, popularity and arrival times.

pub(crate) mod arrival;
pub(crate) mod definition;
pub(crate) mod distribution;
pub(crate) mod mix;
pub(crate) mod operation;
pub(crate) mod popularity;
pub(crate) mod verify;

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
