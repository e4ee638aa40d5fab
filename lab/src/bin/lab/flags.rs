//! The command line.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand, ValueEnum};
use lab::experiment_process::SUBCOMMAND;
use lab::experiments::fleet_comparison::Contender;
use lab::experiments::{Contestant, CoreAssignment};
use lab::peers::PeerService;
use lab::polling_config::PollingConfig;
use policies::law::{CpuBudget, LatencyBudget};
use policies::{Cpus, GraceTime, Policy};
use runtime::{DriverKind, WaitStrategy};

use crate::instructions_command::InstructionFlags;

/// Would kernel polling help this machine, and by how much?
#[derive(Parser)]
#[command(name = "lab", version, args_conflicts_with_subcommands = true)]
pub struct Flags {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub compare: ComparisonFlags,
}

#[derive(Subcommand)]
pub enum Command {
    /// Compare policies (the default)
    Compare(ComparisonFlags),
    /// Compare the drivers under vanilla and under kernel polling
    Drivers(ComparisonFlags),
    /// Compare an echo server on Lull with those on tokio, monoio, compio and a bare epoll loop, or an axum application on
    /// Lull with the same on tokio
    Peers(PeerFlags),
    /// Compare a server of another project, as it runs, with the same under `policies attach`
    Attach(AttachFlags),
    /// Let the load step up and down: how long a server's latency takes to settle, and how far it is beyond vanilla's
    Steps(StepsFlags),
    /// Compare two reports that `lab --output` has written: which figures changed beyond their intervals
    Diff(DiffFlags),
    /// Check the method: find no difference between equal servers, and one that was put there
    SelfTest(SelfTestFlags),
    /// Check whether this machine can show differences, and say what to change
    Check(CheckFlags),
    /// Compare load generators: loadgen, mutilate and mc-crusher
    Generators(GeneratorFlags),
    /// Compare the CPU time per request of this project's memcached server with memcached's
    MemcachedCpu(MemcachedCpuFlags),
    /// Measure what crossings between user space and kernel cost a request, and what avoiding them can save
    Model(ModelFlags),
    /// Compare wait strategies: round trips of messages and their CPU time, and a memcached server at low load
    Waiting(WaitingFlags),
    /// Compare a memcached server on one NUMA node with the same on two: throughput, latency, and where its memory is
    Numa(NumaFlags),
    /// Count instructions, interrupts and context switches of a request under each policy on emulated NICs: no timing, no noise
    Instructions(InstructionFlags),
    /// Write the tables and figures of Cai and Karsten's paper for this machine, beside the paper's numbers
    Paper(PaperFlags),
    /// Run a process of an experiment
    #[command(name = SUBCOMMAND, hide = true)]
    ExperimentProcess { role: String, namespace: Option<String> },
}

/// Where a report goes.
#[derive(Args, Clone)]
pub struct ReportFlags {
    /// Print a table for people, or JSON for programs
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// Also write JSON to this file
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Args, Clone)]
pub struct RunFlags {
    /// Take one minute instead of five; for attach three instead of ten
    #[arg(long)]
    pub quick: bool,
    #[command(flatten)]
    pub report: ReportFlags,
    /// Connections of the load
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub connections: u16,
    /// Rounds of each load [default: 12, or 16 with --quick; attach: 12 or 8; on loopback: 8 or 6]
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub rounds: Option<u8>,
    /// Rates to measure, in requests per second, instead of the capacity and shares of it
    #[arg(long, value_delimiter = ',', value_name = "LIST", value_parser = clap::value_parser!(u32).range(100..=2_000_000))]
    pub rates: Vec<u32>,
    /// 99th percentile that a rate within the capacity keeps, in microseconds [default: 500; attach: 200]
    #[arg(long, value_name = "US", conflicts_with = "rates", value_parser = clap::value_parser!(u32).range(20..=1_000_000))]
    pub capacity_p99: Option<u32>,
}

#[derive(Args, Clone)]
pub struct ComparisonFlags {
    #[command(flatten)]
    pub run: RunFlags,
    /// Grace time under kernel polling and suppression: microseconds, or auto, as the runtime adapts it
    #[arg(long, value_name = "US", default_value_t)]
    pub gro_flush_timeout: GraceTime,
    /// Median delay that kernel polling may cost, in microseconds; with several budgets it is compared once for each
    #[arg(long, value_delimiter = ',', value_name = "LIST", default_values_t = [LatencyBudget::ZERO])]
    pub latency_budget: Vec<LatencyBudget>,
    /// How the server's worker waits: block, spin or adaptive
    #[arg(long, default_value_t = WaitStrategy::Block)]
    pub wait: WaitStrategy,
    /// The server's driver under all policies: epoll, uring or auto (`drivers` and `peers` choose their own)
    #[arg(long, default_value_t = DriverKind::Epoll)]
    pub driver: DriverKind,
    /// Core of the network work under packing, and of the thread of kernel-thread; not the server's [default: the third
    /// core, or else the client's]
    #[arg(long, value_name = "CORE")]
    pub packing_cores: Option<Cpus>,
    /// Policies to compare; ratios refer to vanilla, or without it to the first, whose capacity rates are shares of; one
    /// may be named twice, but kernel-thread [default: vanilla, packing, suppression and kernel-polling]
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub policies: Vec<Policy>,
    /// What to compare instead of policies on one driver: POLICY[:DRIVER[:D[:K]]], with a latency budget D in microseconds and a
    /// CPU budget K in percent; ratios refer to the first
    #[arg(long, value_delimiter = ',', value_name = "LIST", conflicts_with_all = ["policies", "driver", "latency_budget"])]
    pub contenders: Vec<NamedContender>,
    /// Leave idle cores as the machine has them. By default they are kept awake (`/dev/cpu_dma_latency`)
    #[arg(long)]
    pub cores_sleep: bool,
    /// Path of a memcached to compare, too; it runs as it is, with one thread
    #[arg(long, value_name = "PATH")]
    pub memcached: Option<PathBuf>,
    /// Requests in flight on each connection of the fleet
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub depth: u8,
    /// Mean think time of the fleet's closed loop (microseconds)
    #[arg(long, default_value_t = 0, value_name = "US")]
    pub think: u32,
    /// Use loopback instead of the testbed
    #[arg(long)]
    pub loopback: bool,
}

impl ComparisonFlags {
    /// The cores, with the one of `--packing-cores`.
    pub fn cores(&self) -> Result<CoreAssignment, lab::Error> {
        let cores = CoreAssignment::choose()?;
        Ok(match &self.packing_cores {
            Some(packing) => cores.with_packing_cores(packing)?,
            None => cores,
        })
    }

    /// How kernel polling adapts, at least once.
    pub fn polling(&self) -> Vec<PollingConfig> {
        let grace_time = self.gro_flush_timeout;
        let config =
            |&latency_budget| PollingConfig { grace_time, latency_budget, ..PollingConfig::default() };
        self.latency_budget.iter().map(config).collect()
    }

    /// The policies on the driver.
    pub fn contestants(&self) -> Vec<Contestant> {
        match &self.policies[..] {
            [] => Contestant::policies(self.driver),
            policies => policies.iter().map(|&policy| Contestant { policy, driver: self.driver }).collect(),
        }
    }
}

/// A memcached server of this project that takes part: `kernel-polling:auto:20`.
#[derive(Debug, Clone, Copy)]
pub struct NamedContender {
    contestant: Contestant,
    latency_budget: LatencyBudget,
    cpu_budget: CpuBudget,
}

impl FromStr for NamedContender {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        fn parsed<T: FromStr<Err: ToString>>(part: Option<&str>, default: T) -> Result<T, String> {
            part.map_or(Ok(default), |part| part.parse().map_err(|error: T::Err| error.to_string()))
        }
        let mut parts = text.split(':');
        let policy = parsed(parts.next(), Policy::default())?;
        let driver = parsed(parts.next(), DriverKind::Auto)?;
        let latency_budget = parsed(parts.next(), LatencyBudget::ZERO)?;
        let cpu_budget = parsed(parts.next(), CpuBudget::ZERO)?;
        match parts.next() {
            None => Ok(Self { contestant: Contestant { policy, driver }, latency_budget, cpu_budget }),
            Some(more) => Err(format!("{more:?} follows POLICY:DRIVER:D:K")),
        }
    }
}

impl NamedContender {
    /// The server, which waits as named.
    pub fn contender(self, wait: WaitStrategy) -> Contender {
        let Self { contestant: Contestant { policy, driver }, latency_budget, cpu_budget } = self;
        let polling = PollingConfig { latency_budget, cpu_budget, ..PollingConfig::default() };
        Contender::Lull { policy, driver, polling, wait }
    }
}

#[derive(Args, Clone)]
pub struct PeerFlags {
    /// What the servers do: answer bytes with bytes, the same with a thread for each connection, `GET /` by axum, a unary call of tonic's, messages of a WebSocket, or
    /// forward `GET /` to another server (all but echo and threads need the feature `adapters`)
    #[arg(long, value_enum, default_value_t)]
    pub service: Service,
    #[command(flatten)]
    pub comparison: ComparisonFlags,
}

#[derive(Clone, Copy, Default, ValueEnum)]
pub enum Service {
    #[default]
    Echo,
    Threads,
    Axum,
    Grpc,
    Websocket,
    Proxy,
}

impl PeerFlags {
    /// The service.
    ///
    /// # Errors
    /// If this program was built without it, or if it is loaded by loopback only and the testbed was asked for.
    pub fn service(&self) -> Result<PeerService, String> {
        let service = match self.service {
            Service::Echo => PeerService::Echo,
            Service::Threads => PeerService::Threads,
            Service::Axum => PeerService::Axum,
            Service::Grpc => PeerService::Grpc,
            Service::Websocket => PeerService::WebSocket,
            Service::Proxy => PeerService::Proxy,
        };
        let name = self.service.to_possible_value().map(|value| value.get_name().to_owned());
        let name = name.unwrap_or_default();
        if !service.is_built() {
            return Err(format!(
                "this lab was built without {name}: cargo run --release -p lab --features adapters -- peers --service {name}"
            ));
        }
        if !self.comparison.loopback && !service.fleet_speaks_it() {
            return Err(format!("the fleet can't ask for {name}: add --loopback"));
        }
        Ok(service)
    }
}

#[derive(Args, Clone)]
pub struct AttachFlags {
    #[command(flatten)]
    pub run: RunFlags,
    /// Path of the memcached to attach to; it runs with one thread
    #[arg(long, value_name = "PATH", default_value = "memcached")]
    pub memcached: PathBuf,
    /// Another server, as a command of the shell; it listens at 198.18.0.1:11211, for which {address} and {port} stand,
    /// and stays in the foreground, with one thread that waits in epoll. It speaks memcached's protocol, or answers
    /// --request
    #[arg(long, value_name = "COMMAND", conflicts_with = "memcached")]
    pub server: Option<String>,
    /// What is asked instead of memcached's protocol, with \r and \n for ends of lines; all replies have the same length
    #[arg(long, value_name = "TEXT", requires = "server")]
    pub request: Option<String>,
    /// Median delays that kernel polling may cost, in microseconds; the server is attached to once for each
    #[arg(long, value_delimiter = ',', value_name = "LIST", default_value = "0,20,50")]
    pub latency_budget: Vec<LatencyBudget>,
}

#[derive(Args, Clone)]
pub struct StepsFlags {
    /// Take three minutes instead of ten: fewer loads and rounds
    #[arg(long)]
    pub quick: bool,
    #[command(flatten)]
    pub report: ReportFlags,
    /// Connections of the fleet
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub connections: u16,
    /// Rounds of each load; fewer than six give no interval [default: 12, or 8 with --quick]
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub rounds: Option<u8>,
    /// Median delays that kernel polling may cost, in microseconds; it is compared once for each
    #[arg(long, value_delimiter = ',', value_name = "LIST", default_values_t = [LatencyBudget::ZERO])]
    pub latency_budget: Vec<LatencyBudget>,
    /// The servers' driver: epoll, uring or auto
    #[arg(long, default_value_t = DriverKind::Epoll)]
    pub driver: DriverKind,
    /// Capacity that the rates are shares of, in requests per second, instead of vanilla's, which is searched
    #[arg(long, value_name = "RATE", value_parser = clap::value_parser!(u32).range(1000..=2_000_000))]
    pub capacity: Option<u32>,
}

#[derive(Args, Clone)]
pub struct DiffFlags {
    /// The earlier report, as JSON
    #[arg(value_name = "BEFORE")]
    pub before: PathBuf,
    /// The later report, as JSON
    #[arg(value_name = "AFTER")]
    pub after: PathBuf,
    /// Print a table for people, or JSON for programs
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

#[derive(Args, Clone)]
pub struct SelfTestFlags {
    /// Print a table for people, or JSON for programs
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// Time that one of the servers computes more for each request (microseconds)
    #[arg(long, default_value_t = 5, value_name = "US", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub work: u8,
    /// Rounds
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u8).range(6..=100))]
    pub rounds: u8,
}

#[derive(Args, Clone)]
pub struct CheckFlags {
    /// Seconds to take
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u8).range(1..=60))]
    pub seconds: u8,
    /// Print a table for people, or JSON for programs
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

#[derive(Args, Clone)]
pub struct GeneratorFlags {
    /// Path of memcached
    #[arg(long, value_name = "PATH", default_value = "memcached")]
    pub memcached: PathBuf,
    /// Path of mutilate; without it mutilate is left out
    #[arg(long, value_name = "PATH")]
    pub mutilate: Option<PathBuf>,
    /// Path of mc-crusher; without it mc-crusher is left out
    #[arg(long, value_name = "PATH")]
    pub mc_crusher: Option<PathBuf>,
    /// Requests in flight on each connection; each value is a comparison
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16], value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub depths: Vec<u16>,
    /// Connections of each generator
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub connections: u16,
    /// Rounds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub rounds: u8,
    /// Seconds of a turn
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=600))]
    pub seconds: u16,
    /// Print a table for people, or JSON for programs
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

#[derive(Args, Clone)]
pub struct MemcachedCpuFlags {
    /// Path of this project's server [default: memcached beside lab]
    #[arg(long, value_name = "PATH")]
    pub ours: Option<PathBuf>,
    /// Path of the memcached to compare with
    #[arg(long, value_name = "PATH", default_value = "memcached")]
    pub theirs: PathBuf,
    /// Path of loadgen [default: loadgen beside lab]
    #[arg(long, value_name = "PATH")]
    pub loadgen: Option<PathBuf>,
    /// Rounds
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub rounds: u16,
    /// Seconds of a turn
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Print lines for people, or JSON with every turn for programs
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

#[derive(Args, Clone)]
pub struct ModelFlags {
    /// Take one minute instead of five
    #[arg(long)]
    pub quick: bool,
    /// About how many seconds to take [default: 270, or 50 with --quick]
    #[arg(long, value_parser = clap::value_parser!(u16).range(10..=3600))]
    pub seconds: Option<u16>,
    #[command(flatten)]
    pub report: ReportFlags,
    /// Also write a plot to this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Use loopback only, without the testbed
    #[arg(long)]
    pub loopback: bool,
}

#[derive(Args, Clone)]
pub struct WaitingFlags {
    /// Take one minute instead of five
    #[arg(long)]
    pub quick: bool,
    /// About how many seconds to take [default: 280, or 55 with --quick]
    #[arg(long, value_parser = clap::value_parser!(u16).range(5..=3600))]
    pub seconds: Option<u16>,
    /// The driver of the workers and of the memcached server: epoll, uring or auto
    #[arg(long, default_value_t = DriverKind::Epoll)]
    pub driver: DriverKind,
    /// Requests per second at the memcached server
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(100..=200_000))]
    pub rate: u32,
    #[command(flatten)]
    pub report: ReportFlags,
}

#[derive(Args, Clone)]
pub struct NumaFlags {
    /// Take one minute instead of four: fewer rounds, and shorter ones
    #[arg(long)]
    pub quick: bool,
    #[command(flatten)]
    pub report: ReportFlags,
    /// Rounds of each load; fewer than six give no interval [default: 16, or 6 with --quick]
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub rounds: Option<u8>,
    /// Policies of the servers: vanilla, suppression and kernel-polling
    #[arg(long, value_delimiter = ',', value_name = "LIST", default_values_t = [Policy::Vanilla, Policy::KernelPolling])]
    pub policies: Vec<Policy>,
    /// The servers' driver: epoll, uring or auto
    #[arg(long, default_value_t = DriverKind::Epoll)]
    pub driver: DriverKind,
}

#[derive(Args, Clone)]
pub struct PaperFlags {
    /// Take about five minutes instead of 20: fewer records, rates, rounds, connections and files
    #[arg(long)]
    pub quick: bool,
    /// Folder for the report, its plots, and the results of each part. A part whose results are there already, from this
    /// machine and configuration, is not measured again
    #[arg(long, value_name = "DIR", default_value = "lab-paper")]
    pub output: PathBuf,
    /// Milliseconds of a turn, with few records and connections: to see that it works, not to measure
    #[arg(long, hide = true, value_name = "MS", value_parser = clap::value_parser!(u64).range(10..=10_000))]
    pub turn_time: Option<u64>,
    /// Rounds of each load
    #[arg(long, hide = true, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub rounds: Option<u8>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    #[default]
    Table,
    Json,
}
