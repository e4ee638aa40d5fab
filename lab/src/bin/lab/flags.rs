//! The command line.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use lab::experiment::{Contender, Experiment, Load};
use lab::instructions::Counting;
use lab::peers::PeerService;
use lab::processes::SUBCOMMAND;
use lab::testbed::{MOST_FLEETS, Receiver};
use policies::GraceTime;
use policies::controller::PollInterval;

/// Would kernel polling help this machine, and by how much?
#[derive(Parser)]
#[command(name = "lab", version, args_conflicts_with_subcommands = true)]
pub struct Flags {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub compare: CompareFlags,
}

#[derive(Subcommand)]
pub enum Command {
    /// Compare policies with the better vanilla, as users get them (the default)
    Compare(CompareFlags),
    /// Compare an echo server on Lull with those on tokio, monoio, compio and a loop on mio, or an
    /// axum application on Lull with the same on tokio
    Peers(PeerFlags),
    /// Compare a server of another project, as it runs, with the same under `policies attach`
    Attach(AttachFlags),
    /// Check the method: find no difference between equal servers, and one that was put there
    SelfTest(SelfTestFlags),
    /// Compare policies on a network card, whose cable leads to a second machine with the load
    Card(CardFlags),
    /// Count instructions, interrupts and context switches of a request under each policy on
    /// emulated NICs: no timing, no noise
    Instructions(InstructionFlags),
    /// Write the tables and figures of Cai and Karsten's paper for this machine, beside the paper's
    /// numbers
    Paper(PaperFlags),
    /// Run a process of an experiment
    #[command(name = SUBCOMMAND, hide = true)]
    ExperimentProcess { namespace: Option<String> },
}

#[derive(Args, Clone)]
pub struct ReportFlags {
    /// Print text for people, or JSON for programs
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// Folder for the page with plots (report.html) and results.json
    #[arg(long, value_name = "FOLDER", default_value = "lab-report")]
    pub output: PathBuf,
}

/// How an experiment under a fleet runs.
#[derive(Args, Clone)]
pub struct RunFlags {
    /// Take fewer rounds and shorter turns: about a minute instead of four (peers, attach: two instead of
    /// three; card: two instead of five; self-test: half of one)
    #[arg(long)]
    pub quick: bool,
    #[command(flatten)]
    pub report: ReportFlags,
    /// Connections for each worker; on a card those of all [default: 64; card: 64 for each queue]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub connections: Option<u16>,
    /// Rounds of each load; fewer than six give no interval [default: 12, quick 8; self-test: 48, 16]
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub rounds: Option<u8>,
    /// Seconds of a turn: from 2 s on a pause of the machine seldom decides its 99th percentile
    /// [default: 1, quick 0.4; peers: 0.25; self-test: 0.2; attach: 0.3]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u8).range(1..=60))]
    pub turn: Option<u8>,
    /// Rates to measure, in requests per second and worker, on a card of all workers
    /// [default: 50000,100000; card: for each queue; peers and attach: 25000,50000; self-test: 40000]
    #[arg(long, value_delimiter = ',', value_name = "LIST", value_parser = clap::value_parser!(u32).range(100..=50_000_000))]
    pub rates: Vec<u32>,
    /// What receives packets in the place of an interrupt: fifo (a real-time kernel thread), thread
    /// (an ordinary one) or rps (the softirq of packet steering). Of several the first one for
    /// everything, the others for rates
    /// [default: fifo; compare: fifo,rps]
    #[arg(long, value_delimiter = ',', value_name = "LIST", value_parser = stand_in)]
    pub receiver: Vec<Receiver>,
    /// Idle cores: asleep as the machine has them, or kept awake (`/dev/cpu_dma_latency`)
    #[arg(long, value_enum, default_value_t = IdleCores::Asleep)]
    pub idle_cores: IdleCores,
    /// Keep the run under a name, in the folder of the report
    #[arg(long, value_name = "NAME")]
    pub save: Option<String>,
    /// Compare with a run that was kept, at its rates: another state of the code, or another kernel
    #[arg(long, value_name = "NAME")]
    pub against: Option<String>,
    /// Measure also on a machine that other programs, or its hypervisor, use, without the ten
    /// seconds of looking for them
    #[arg(long)]
    pub anyway: bool,
}

/// What can stand in for an interrupt.
fn stand_in(name: &str) -> Result<Receiver, String> {
    match name.parse().map_err(|error: policies::UnknownName| error.to_string())? {
        Receiver::Interrupt => Err("a veth has no interrupts; `lab card` measures a card".to_owned()),
        receiver => Ok(receiver),
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum IdleCores {
    Awake,
    Asleep,
}

impl RunFlags {
    pub fn set(&self, experiment: &mut Experiment) {
        if let Some(connections) = self.connections {
            experiment.connections = connections.into();
        }
        if !self.receiver.is_empty() {
            experiment.receivers.clone_from(&self.receiver);
        }
        if !self.rates.is_empty() {
            let rates = self.rates.iter().map(|&rate| Load::Rate(rate.into()));
            let others = experiment.loads.iter().copied().filter(|load| !load.is_open());
            experiment.loads = rates.chain(others).collect();
        }
        if let Some(rounds) = self.rounds {
            experiment.rounds = rounds.into();
        }
        if let Some(seconds) = self.turn {
            experiment.duration = seconds.into();
        }
    }
}

#[derive(Args, Clone)]
pub struct CompareFlags {
    #[command(flatten)]
    pub run: RunFlags,
    /// What to compare: POLICY[:DRIVER[:I]], with a poll interval I in microseconds. Ratios refer to
    /// the better vanilla, or without one to the first
    /// [default: vanilla on epoll and on uring, and kernel-polling on auto]
    #[arg(long, value_delimiter = ',', value_name = "LIST", conflicts_with = "poll_interval")]
    pub contenders: Vec<Contender>,
    /// Poll intervals of kernel polling, in microseconds; it is compared once for each
    #[arg(long, value_delimiter = ',', value_name = "LIST", default_values_t = [PollInterval::default()])]
    pub poll_interval: Vec<PollInterval>,
    /// Grace time under kernel polling and suppression: microseconds, or auto, as the runtime
    /// adapts it
    #[arg(long, value_name = "US", default_value_t)]
    pub gro_flush_timeout: GraceTime,
    /// Workers of a server, each with a queue, a core, and a core for its load; all rates are for one
    /// worker. Without so many cores the workers share one
    /// [default: 2 on a machine with four cores or more, else 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=i64::from(MOST_FLEETS)))]
    pub workers: Option<u8>,
    /// Path of a memcached to compare, too; it runs as it is, with a thread for each worker
    #[arg(long, value_name = "PATH")]
    pub memcached: Option<PathBuf>,
}

#[derive(Args, Clone)]
pub struct CardFlags {
    /// This machine's interface, whose cable leads to the second machine
    #[arg(long, value_name = "NAME")]
    pub interface: String,
    /// The command that starts this program as root on the second machine, for example
    /// 'ssh root@192.0.2.7 ./lab'
    #[arg(long, value_name = "COMMAND", value_parser = NonEmptyStringValueParser::new())]
    pub client: String,
    /// The second machine's interface
    #[arg(long, value_name = "NAME")]
    pub client_interface: String,
    /// Look at both machines, say what would be changed, and end
    #[arg(long)]
    pub check: bool,
    /// What to compare, as for `compare`
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "LIST",
        default_value = "vanilla:epoll,vanilla:uring,kernel-polling"
    )]
    pub contenders: Vec<Contender>,
    #[command(flatten)]
    pub run: RunFlags,
}

#[derive(Args, Clone)]
pub struct PeerFlags {
    /// What the servers do (axum needs the feature `adapters`)
    #[arg(long, value_enum, default_value_t)]
    pub service: PeerService,
    #[command(flatten)]
    pub run: RunFlags,
}

#[derive(Args, Clone)]
pub struct AttachFlags {
    #[command(flatten)]
    pub run: RunFlags,
    /// Path of the memcached to attach to; it runs with one thread
    #[arg(long, value_name = "PATH", default_value = "memcached")]
    pub memcached: PathBuf,
    /// Another server, as a command of the shell; it listens at 198.18.0.1:11211, for which
    /// {address} and {port} stand, and stays in the foreground, with one thread that waits in
    /// epoll. It speaks memcached's protocol, or answers --request
    #[arg(long, value_name = "COMMAND", conflicts_with = "memcached")]
    pub server: Option<String>,
    /// What is asked instead of memcached's protocol, with \r and \n for ends of lines; all replies
    /// have the same length
    #[arg(long, value_name = "TEXT", requires = "server", value_parser = NonEmptyStringValueParser::new())]
    pub request: Option<String>,
    /// Poll intervals, in microseconds from 10 to 1000; the server is attached to once for each
    #[arg(long, value_delimiter = ',', value_name = "LIST", default_value = "30,100")]
    pub poll_interval: Vec<PollInterval>,
}

#[derive(Args, Clone)]
pub struct SelfTestFlags {
    /// Time that one of the servers computes more for each request (microseconds)
    #[arg(long, default_value_t = 5, value_name = "US", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub work: u8,
    #[command(flatten)]
    pub run: RunFlags,
}

#[derive(Args, Clone)]
pub struct PaperFlags {
    /// Report of `lab instructions`, whose counts Table 5 shows: its folder, or results.json
    /// [default: lab-instructions, if it is there]
    #[arg(long, value_name = "PATH")]
    pub instructions: Option<PathBuf>,
    /// Take about two minutes instead of twelve: fewer records, rates, rounds, connections and files
    #[arg(long)]
    pub quick: bool,
    /// Folder for the report and its plots
    #[arg(long, value_name = "FOLDER", default_value = "lab-paper")]
    pub output: PathBuf,
    /// Milliseconds of a turn, with few records and connections: to see that it works, not to
    /// measure
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

/// Where `lab instructions` writes, and `lab paper` looks.
pub const INSTRUCTIONS: &str = "lab-instructions";

#[derive(Args, Clone)]
pub struct InstructionFlags {
    /// Folder for the report; `lab paper` reads its results.json
    #[arg(long, value_name = "FOLDER", default_value = INSTRUCTIONS)]
    pub output: PathBuf,
    /// Print text for people, or JSON for programs
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// The folder that tests/guest/prepare prints, or its path in LULL_GUEST
    #[arg(long)]
    pub guest: Option<PathBuf>,
    #[command(flatten)]
    pub counting: Counting,
}
