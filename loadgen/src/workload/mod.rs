//! What is requested: operations, keys, values, popularity and arrival times.

pub(crate) mod arrival;
pub(crate) mod distribution;
pub(crate) mod mix;
pub(crate) mod popularity;
pub(crate) mod verify;

use std::time::Duration;

use clap::Parser as _;
use clap::builder::TypedValueParser as _;
use serde::{Deserialize, Serialize};

use crate::workload::distribution::Distribution;
use crate::workload::mix::Mix;
use crate::workload::popularity::Popularity;

/// The longest key that memcached accepts, in bytes.
pub(crate) const KEY_MAX: usize = 250;

/// What the requests of a run look like.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, clap::Args)]
#[command(next_help_heading = "Workload")]
pub struct Workload {
    /// Distribution of key sizes in bytes: N, fixed:N, uniform:A,B, normal:M,S, exponential:M,
    /// pareto:L,S,K, gev:L,S,K, fb_key. A key has at least the digits of the last record's number,
    /// and at most 250 bytes
    #[arg(id = "keysize", short = 'K', long, default_value = "30")]
    pub key: Distribution,
    /// Distribution of value sizes in bytes, as --keysize, or fb_value
    #[arg(id = "valuesize", short = 'V', long, default_value = "200")]
    pub value: Distribution,
    /// Number of records over all servers
    #[arg(short, long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub records: u64,
    /// How requests are spread over the records: uniform, zipf:S, hotset:RECORDS,REQUESTS,
    /// latest:S, sequential
    #[arg(long, default_value = "uniform")]
    pub popularity: Popularity,
    /// Operations with weights, for example get=90,set=9,delete=1. Also add, replace, append,
    /// prepend, touch, cas, incr, decr, mg, ms
    #[arg(long, default_value = "get=1")]
    pub mix: Mix,
    /// Keys per get request
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub multiget: u16,
    /// Expiration time of stored records, in whole seconds; 0 means never
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = clap::value_parser!(u64).range(0..=2_592_000).map(Duration::from_secs))]
    pub ttl: Duration,
    /// Store values with their key and a checksum, and verify them in responses
    #[arg(long)]
    pub verify: bool,
    /// Store a record after a miss, as applications with a look-aside cache do
    #[arg(long)]
    pub fill: bool,
}

impl Default for Workload {
    /// The settings of a command without flags.
    fn default() -> Self {
        #[derive(clap::Parser)]
        struct NoFlags {
            #[command(flatten)]
            workload: Workload,
        }
        NoFlags::parse_from([""]).workload
    }
}
