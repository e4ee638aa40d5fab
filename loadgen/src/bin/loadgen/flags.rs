//! The flags of the command. Those that mutilate has, too, have its names.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{ArgAction, Parser};
use clap_complete::Shell;
use loadgen::{AGENT_PORT, Address, Arrival, Assign, Distribution, Goal, Mix, Popularity, WarmUp};
use policies::{Cpus, Policy};
use runtime::{DriverKind, WaitStrategy};

use crate::value_parsers::{
    Format, Scan, parse_churn, parse_percent, parse_rate, parse_scan, parse_seconds, parse_share,
    parse_warm_up,
};

/// Generate load for servers that speak memcached's protocols or redis', and measure latencies
/// without coordinated omission
#[derive(Parser)]
#[command(
    name = "loadgen",
    version,
    disable_version_flag = true,
    // The last occurrence wins, so that flags after those of a script override them.
    args_override_self = true,
    after_help = "Exit codes: 0 success; 1 the run failed; 2 invalid flags; 3 the figures are invalid, for the printed reason; 4 error responses, wrong values or missing responses; 5 no rate reaches the goal of --search"
)]
pub struct Flags {
    /// Server: HOST, HOST:PORT, or the path of a Unix socket. Repeat it to divide the records among
    /// several servers
    #[arg(short = 's', long = "server", default_value = "127.0.0.1:11211")]
    pub servers: Vec<Address>,
    /// Open loop at this many requests per second in total; 0 selects the closed loop
    #[arg(short = 'q', long, default_value_t = 0.0, value_parser = parse_rate, help_heading = "Load")]
    pub qps: f64,
    /// Duration of the measurement, in seconds
    #[arg(short = 't', long, default_value_t = 5.0, value_parser = parse_seconds, help_heading = "Load")]
    pub time: f64,
    /// Seconds of load before the measurement; auto measures at once and excludes what is not
    /// steady yet
    #[arg(short = 'w', long, default_value = "auto", value_parser = parse_warm_up, help_heading = "Load")]
    pub warmup: WarmUp,
    /// Seconds to wait before anything else
    #[arg(short = 'W', long = "wait-before", alias = "wait_before", default_value_t = 0.0, value_parser = parse_seconds, help_heading = "Load")]
    pub wait_before: f64,
    /// Connections per thread and server
    #[arg(short = 'c', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_000), help_heading = "Load")]
    pub connections: u32,
    /// Requests in flight per connection
    #[arg(short = 'd', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536), help_heading = "Load")]
    pub depth: u32,
    /// Number of threads
    #[arg(short = 'T', long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024), help_heading = "Load")]
    pub threads: u16,
    /// Connect each thread to only one server, assigned round-robin
    #[arg(short = 'R', long, help_heading = "Load")]
    pub roundrobin: bool,
    /// Gaps between requests of the open loop, scaled to the rate: exponential, uniform, fixed,
    /// fb_ia, or as --keysize
    #[arg(short = 'i', long, default_value = "exponential", help_heading = "Load")]
    pub iadist: Arrival,
    /// Closed loop: distribution of the think time between a response and the next request, in
    /// microseconds; as --keysize
    #[arg(long, help_heading = "Load")]
    pub think: Option<Distribution>,
    /// Share of the connections that reconnect each second
    #[arg(long, default_value_t = 0.0, value_parser = parse_churn, help_heading = "Load")]
    pub churn: f64,
    /// Stop early when the 95 % confidence intervals of rate, median and p99 are within this share,
    /// for example 2%
    #[arg(long, value_name = "SHARE", value_parser = parse_percent, help_heading = "Load")]
    pub until_ci: Option<f64>,
    /// Search for the highest rate whose N-th latency percentile is below X µs; -t is the duration
    /// of each step
    #[arg(long, value_name = "N:X", conflicts_with_all = ["qps", "scan", "save"], help_heading = "Load")]
    pub search: Option<Goal>,
    /// Measure at each rate from MIN to MAX in steps of STEP, for -t seconds each
    #[arg(long, value_name = "MIN:MAX:STEP", value_parser = parse_scan, conflicts_with_all = ["qps", "save"], help_heading = "Load")]
    pub scan: Option<Scan>,
    /// Connection of a request of the open loop: round-robin, the next one in turn, busy or not;
    /// random-free, a random one of the free ones; per-connection, gaps drawn for each connection,
    /// as in mutilate
    #[arg(long, default_value_t, help_heading = "Load")]
    pub assign: Assign,
    /// Skip requests of the open loop whose connection is busy
    #[arg(short = 'S', long, help_heading = "Load")]
    pub skip: bool,
    /// Keep at least half of the mean gap between requests of the open loop, also when catching up
    /// after a delay
    #[arg(long, help_heading = "Load")]
    pub moderate: bool,
    /// Use RESP, the protocol of redis and valkey: get and set
    #[arg(long, conflicts_with_all = ["udp", "binary"], help_heading = "Connections")]
    pub resp: bool,
    /// Use the binary protocol
    #[arg(long, conflicts_with = "udp", help_heading = "Connections")]
    pub binary: bool,
    /// Send get requests over UDP; a request without a response within a second counts as
    /// unanswered
    #[arg(long, help_heading = "Connections")]
    pub udp: bool,
    /// User name, for SASL in the binary protocol and for memcached -Y in the text protocol
    #[arg(short = 'U', long, value_name = "NAME", help_heading = "Connections")]
    pub username: Option<String>,
    /// Password of the user
    #[arg(short = 'P', long, requires = "username", help_heading = "Connections")]
    pub password: Option<String>,
    /// File whose first line is the password. Unlike --password it is not visible to other users
    #[arg(
        long,
        value_name = "FILE",
        requires = "username",
        conflicts_with = "password",
        help_heading = "Connections"
    )]
    pub password_file: Option<PathBuf>,
    /// Use TLS
    #[arg(long, help_heading = "Connections")]
    pub tls: bool,
    /// CA certificates of the servers, PEM
    #[arg(long, value_name = "FILE", requires = "tls", help_heading = "Connections")]
    pub cacert: Option<PathBuf>,
    /// Client certificate, PEM
    #[arg(long, value_name = "FILE", requires_all = ["tls", "key"], help_heading = "Connections")]
    pub cert: Option<PathBuf>,
    /// Private key of the client certificate, PEM
    #[arg(long, value_name = "FILE", requires_all = ["tls", "cert"], help_heading = "Connections")]
    pub key: Option<PathBuf>,
    /// Server name expected in the certificate [default: the server's address]
    #[arg(long, value_name = "NAME", requires = "tls", help_heading = "Connections")]
    pub sni: Option<String>,
    /// Accept any server certificate
    #[arg(long, requires = "tls", conflicts_with = "cacert", help_heading = "Connections")]
    pub tls_skip_verify: bool,
    /// Don't set TCP_NODELAY: small requests wait until earlier ones are acknowledged
    #[arg(long = "no_nodelay", alias = "no-nodelay", help_heading = "Connections")]
    pub no_nodelay: bool,
    // As in mutilate, -V is the value size, not the version.
    /// Distribution of key sizes in bytes: N, fixed:N, uniform:A,B, normal:M,S, exponential:M,
    /// pareto:L,S,K, gev:L,S,K, fb_key
    #[arg(short = 'K', long, default_value = "30", help_heading = "Workload")]
    pub keysize: Distribution,
    /// Distribution of value sizes in bytes, as --keysize, or fb_value
    #[arg(short = 'V', long, default_value = "200", help_heading = "Workload")]
    pub valuesize: Distribution,
    /// Number of records over all servers
    #[arg(short = 'r', long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1 << 40), help_heading = "Workload")]
    pub records: u64,
    /// Share of set requests, 0 to 1; the others are get
    #[arg(short = 'u', long, default_value_t = 0.0, value_parser = parse_share, help_heading = "Workload")]
    pub update: f64,
    /// Operations with weights, for example get=90,set=9,delete=1. Also add, replace, append,
    /// prepend, touch, cas, incr, decr, mg, ms
    #[arg(long, conflicts_with = "update", help_heading = "Workload")]
    pub mix: Option<Mix>,
    /// How requests are spread over the records: uniform, zipf:S, hotset:RECORDS,REQUESTS,
    /// latest:S, sequential
    #[arg(long, default_value = "uniform", help_heading = "Workload")]
    pub popularity: Popularity,
    /// Keys per get request
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000), help_heading = "Workload")]
    pub multiget: u16,
    /// Expiration time of stored records, in seconds; 0 means never
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=2_592_000), help_heading = "Workload")]
    pub ttl: u64,
    /// Workload of Facebook's ETC pool: fb_key, fb_value and, with -q, fb_ia
    #[arg(long, help_heading = "Workload")]
    pub etc: bool,
    /// Store values with their key and a checksum, and verify them in responses
    #[arg(long, help_heading = "Workload")]
    pub verify: bool,
    /// Store a record after a miss, as applications with a cache do
    #[arg(long, help_heading = "Workload")]
    pub fill: bool,
    /// Don't store the records before the run
    #[arg(long, conflicts_with = "loadonly", help_heading = "Workload")]
    pub noload: bool,
    /// Store the records and exit
    #[arg(long, help_heading = "Workload")]
    pub loadonly: bool,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 1, help_heading = "Workload")]
    pub seed: u64,
    /// Output format: a table, JSON, or CSV with a header line
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: Format,
    /// Write one line per request: its time in seconds and its latency in µs
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub save: Option<PathBuf>,
    /// Don't show a progress bar
    #[arg(long, help_heading = "Output")]
    pub quiet: bool,
    #[arg(
        long,
        help_heading = "Generator",
        help = format!("Policy for the generator's own interrupts and polling: {}", Policy::names())
    )]
    pub policy: Option<Policy>,
    /// Network interface towards the server, for --policy
    #[arg(long, value_name = "NAME", help_heading = "Generator")]
    pub interface: Option<String>,
    /// I/O driver of the generator: auto, epoll or uring
    #[arg(long, help_heading = "Generator")]
    pub driver: Option<DriverKind>,
    /// How the generator's threads wait: block, spin or adaptive
    #[arg(long, help_heading = "Generator")]
    pub wait: Option<WaitStrategy>,
    /// Accepted for compatibility, without effect: threads block unless --wait says otherwise
    #[arg(short = 'B', long, help_heading = "Generator")]
    pub blocking: bool,
    /// Pin the threads to these CPUs
    #[arg(long, help_heading = "Generator")]
    pub cores: Option<Cpus>,
    /// Pin the threads round-robin to all available CPUs
    #[arg(long, conflicts_with = "cores", help_heading = "Generator")]
    pub affinity: bool,
    /// Run as an agent, which generates load on behalf of a coordinator (mutilate's master)
    #[arg(short = 'A', long = "agentmode", conflicts_with_all = ["agents", "search", "scan", "loadonly"], help_heading = "Agents")]
    pub agent_mode: bool,
    /// Agent to use: HOST or HOST:PORT. Repeat it for several agents
    #[arg(short = 'a', long = "agent", value_name = "HOST", help_heading = "Agents")]
    pub agents: Vec<String>,
    /// Port of the agents
    #[arg(short = 'p', long = "agent_port", alias = "agent-port", default_value_t = AGENT_PORT, help_heading = "Agents")]
    pub agent_port: u16,
    /// Address on which an agent listens. Other addresses than the loopback address need
    /// --identity
    #[arg(long, default_value = "127.0.0.1", help_heading = "Agents")]
    pub listen: IpAddr,
    /// Encrypt, and accept only agents or a coordinator with a copy of this file, which
    /// --new-identity has made
    #[arg(long, value_name = "FILE", help_heading = "Agents")]
    pub identity: Option<PathBuf>,
    /// Make a new file for --identity, which only its owner can read, and exit
    #[arg(long, value_name = "FILE", help_heading = "Agents")]
    pub new_identity: Option<PathBuf>,
    /// Weight of this process's connections when the rate is divided; the default of all processes
    /// is 1
    #[arg(short = 'l', long = "lambda_mul", alias = "lambda-mul", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = "Agents")]
    pub lambda_mul: u32,
    /// Measure only on the coordinator, with this many connections per thread and server
    #[arg(short = 'C', long = "measure_connections", alias = "measure-connections", value_parser = clap::value_parser!(u32).range(1..=65_000), requires = "agents", help_heading = "Agents")]
    pub measure_connections: Option<u32>,
    /// Measure only on the coordinator, with this many requests per second in addition to the
    /// agents'
    #[arg(short = 'Q', long = "measure_qps", alias = "measure-qps", value_parser = parse_rate, requires = "agents", help_heading = "Agents")]
    pub measure_qps: Option<f64>,
    /// Measure only on the coordinator, with this many requests in flight per connection
    #[arg(short = 'D', long = "measure_depth", alias = "measure-depth", value_parser = clap::value_parser!(u32).range(1..=65_536), requires = "agents", help_heading = "Agents")]
    pub measure_depth: Option<u32>,
    /// Print completions for a shell, and exit
    #[arg(long, value_name = "SHELL")]
    pub completions: Option<Shell>,
    /// Print the version
    #[arg(long, action = ArgAction::Version)]
    pub version: Option<bool>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn no_option_is_defined_twice() {
        Flags::command().debug_assert();
    }
}
