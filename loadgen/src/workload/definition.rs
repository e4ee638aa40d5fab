//! The workload: keys, values, popularity and operations.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::workload::distribution::Distribution;
use crate::workload::mix::Mix;
use crate::workload::popularity::Popularity;

/// The longest key that memcached accepts, in bytes.
pub(crate) const KEY_MAX: usize = 250;

/// What the requests of a run look like.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// Key size in bytes. Clamped between the digits of the last record's number and 250.
    pub key: Distribution,
    /// Value size in bytes.
    pub value: Distribution,
    pub records: u64,
    /// How requests are spread over the records.
    pub popularity: Popularity,
    pub mix: Mix,
    /// Keys per `get`, at least 1.
    pub multiget: u16,
    /// Expiration time of stored records, in whole seconds. Zero means that they never expire.
    pub ttl: Duration,
    /// Whether values carry their key and a checksum, and responses are compared with them.
    pub verify: bool,
    /// Whether a miss is followed by a `set` of the missing record (look-aside caching).
    pub fill: bool,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            key: Distribution::Fixed(30.0),
            value: Distribution::Fixed(200.0),
            records: 10_000,
            popularity: Popularity::Uniform,
            mix: Mix::updates(0.0),
            multiget: 1,
            ttl: Duration::ZERO,
            verify: false,
            fill: false,
        }
    }
}
