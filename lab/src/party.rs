//! The two parties of an experiment, each a process of its own: the server and the load.
//!
//! A party is this program again, moved into its namespace. It reads its orders as JSON, a line each,
//! and answers likewise. When the lab dies its parties die (`PR_SET_PDEATHSIG`), and with the last of
//! them the namespaces.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use loadgen::rounds::Round;
use loadgen::{Arrival, Config as LoadConfig, Loop, Report as LoadReport, WarmUp, Workload};
use policies::counters::{
    CpuTime, Delta, PerfCounters, PerfTarget, PerformanceModel, Snapshot, thread_cpu_time,
};
use policies::{Applied, Change, Cpus, GraceTime, Policy, host};
use runtime::io::{AsyncFd, Direction, SourceKind};
use runtime::{Builder, DriverKind, Runtime, WaitStrategy, WorkerReport};
use rustix::process::{Pid, Signal, set_parent_process_death_signal, setpriority_process};
use serde::{Deserialize, Serialize};
use servers::memcached::{Config as ServerConfig, Server};

use crate::allocations;
use crate::grace_blocks::Blocks;
use crate::namespace::Namespace;
use crate::peers::{self, EchoLoad, EchoOrder};

/// The hidden argument by which the program knows that it is a party.
pub const PARTY: &str = "party";

/// What a party is told to be.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "kebab-case")]
pub enum Role {
    /// Serve.
    Server(ServerOrder),
    /// Make load.
    Load(LoadOrder),
    /// Be an echo server.
    Echo(EchoOrder),
    /// Load an echo server.
    EchoLoad(EchoLoad),
}

/// How the server is to run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServerOrder {
    /// The policy.
    pub policy: Policy,
    /// The interface, on the testbed.
    pub interface: Option<String>,
    /// The address to listen on.
    pub address: IpAddr,
    /// The worker's core.
    pub core: u32,
    /// Where packing gathers the network's work.
    pub packing_core: u32,
    /// The grace time.
    pub grace_time: GraceTime,
    /// Grace times to take in turns while it is measured.
    pub grace_blocks: Option<Blocks>,
    /// How workers wait.
    pub wait: String,
    /// The worker's driver.
    pub driver: DriverKind,
}

/// What load there is to be.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LoadOrder {
    /// The client's interface, on the testbed.
    pub interface: Option<String>,
    /// The server.
    pub server: SocketAddr,
    /// The core of the load's thread.
    pub core: u32,
    /// Connections.
    pub connections: usize,
    /// Requests a second; a closed loop where there is none.
    pub rate: Option<f64>,
    /// Seconds before measuring.
    pub warm_up: f64,
    /// Seconds of measuring.
    pub duration: f64,
    /// Records in the server.
    pub records: u64,
    /// Whether to store them first.
    pub load_records: bool,
}

/// What the server tells at its start.
#[derive(Debug, Clone, Serialize)]
pub struct ServerReady {
    /// Where it listens.
    pub address: SocketAddr,
    /// What its worker really runs.
    pub reports: Vec<WorkerReport>,
    /// The host's knobs, and how each went.
    pub applied: Vec<Applied>,
}

/// What the server's side saw of a round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServerSide {
    /// Requests that it answered.
    pub requests: u64,
    /// Seconds.
    pub seconds: f64,
    /// Seconds that its core was busy: the worker, and the softirqs beside it.
    pub core_busy: f64,
    /// CPU seconds of its worker's thread alone.
    pub thread_cpu: f64,
    /// Packets that its interface received.
    pub rx_packets: u64,
    /// Packets a softirq (or an interrupt, as `per` says).
    pub packets_per_event: f64,
    /// What `packets_per_event` is.
    pub per: String,
    /// The share of the packets that a busy poll got.
    pub busy_poll_share: f64,
    /// NET_RX softirqs a CPU.
    pub net_rx: Vec<u64>,
    /// The largest share of a core that the hypervisor took.
    pub steal: f64,
    /// Instructions a query, where the machine counts them.
    pub ipq: Option<f64>,
    /// Instructions a cycle, where the machine counts them.
    pub ipc: Option<f64>,
    /// Connections whose NAPI is their worker's.
    pub aligned: u64,
    /// Connections whose NAPI is another's.
    pub misaligned: u64,
    /// The grace time that its worker had at the end.
    pub grace_time: Option<Duration>,
    /// Requests a second in each turn of each round.
    pub grace_blocks: Option<Vec<Round<f64>>>,
}

/// Runs this process as a party. Returns when the lab closes its end.
pub fn run(order: &str, namespace: Option<&str>) -> Result<(), Box<dyn std::error::Error>> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if let Some(path) = namespace {
        Namespace::open(path)?.enter_process()?;
    }
    match serde_json::from_str(order)? {
        Role::Server(order) => serve(&order),
        Role::Load(order) => load(&order),
        Role::Echo(order) => {
            peers::serve(&order, |address| {
                say(&serde_json::json!({ "address": address, "allocations": allocations::address() }))
            })?;
            Ok(())
        }
        Role::EchoLoad(order) => {
            let seen = peers::load(&order, || say(&serde_json::json!("begin")))?;
            Ok(say(&seen)?)
        }
    }
}

fn say(value: &impl Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, value)?;
    writeln!(out)?;
    out.flush()
}

fn serve(order: &ServerOrder) -> Result<(), Box<dyn std::error::Error>> {
    let mut builder = Builder::new()
        .ignore_environment()
        .policy(order.policy)
        .workers(1)
        .cores(Cpus::one(order.core))
        .packing_cores(Cpus::one(order.packing_core))
        .grace_time(order.grace_time)
        .wait(order.wait.parse::<WaitStrategy>()?)
        .driver(order.driver);
    if let Some(name) = &order.interface {
        builder = builder.interface(name);
    }
    let grace_time = Arc::new(Mutex::new(order.grace_time.initial()));
    let found = Arc::clone(&grace_time);
    builder = builder.on_host_change(move |change| {
        if let (Change::GraceTime { time, .. }, Ok(mut found)) = (change, found.lock()) {
            *found = *time;
        }
    });
    let mut runtime = builder.build()?;
    let applied = runtime.applied().to_vec();
    let config =
        ServerConfig { listen: vec![(order.address, None)], port: Some(0), ..ServerConfig::default() };
    let (stop, stopped) = UnixStream::pair()?;
    let core = order.core;
    let interface = order.interface.clone().unwrap_or_else(|| "lo".to_owned());
    let watch = Watch { interface, core, blocks: order.grace_blocks.clone(), grace_time };
    runtime.block_on(async move {
        stopped.set_nonblocking(true)?;
        let stopped = AsyncFd::new(stopped, SourceKind::Other)?;
        let server = Arc::new(Server::start(&config)?);
        let reports = runtime::reports();
        let thread = reports.first().map_or(0, |report| report.thread);
        say(&ServerReady { address: server.addresses()[0], reports, applied })?;
        let watched = Arc::clone(&server);
        // On a thread of its own: the worker's time is the server's.
        std::thread::spawn(move || {
            if let Err(error) = follow_orders(&watched, &watch, thread) {
                eprintln!("lab: the server's side of a round could not be measured: {error}");
            }
            drop(stop);
        });
        stopped.ready(Direction::Read).await;
        Ok(())
    })
}

/// What is measured on the server's side, and with what.
struct Watch {
    interface: String,
    core: u32,
    blocks: Option<Blocks>,
    /// What the runtime has found.
    grace_time: Arc<Mutex<Duration>>,
}

/// Takes counters at each `begin`, and tells what changed at each `end`.
fn follow_orders(server: &Server, watch: &Watch, thread: i32) -> Result<(), Box<dyn std::error::Error>> {
    let interface = host::interface(&watch.interface)?;
    let core = watch.core;
    let grace_time = || watch.grace_time.lock().map_or(Duration::ZERO, |time| *time);
    let (mut begun, mut blocks) = (None, None);
    for line in io::stdin().lock().lines() {
        match line?.as_str() {
            "begin" => {
                let perf = PerfCounters::start(PerfTarget::Cpu(core)).ok();
                let cpu = thread_cpu_time(thread)?;
                begun = Some((Snapshot::take(&interface)?, server.requests(), cpu, perf));
                if let Some(turns) = &watch.blocks {
                    blocks = Some(turns.take(server, &watch.interface, grace_time)?);
                }
            }
            "end" => {
                let Some((before, requests, cpu, perf)) = begun.take() else { continue };
                let delta = Snapshot::take(&interface)?.since(&before);
                let requests = server.requests() - requests;
                let thread_cpu = (thread_cpu_time(thread)? - cpu).as_secs_f64();
                let perf = perf.and_then(|mut perf| perf.read().ok());
                let model = PerformanceModel::new(requests, delta.elapsed, perf);
                let mut side = server_side(server, &delta, core, requests, thread_cpu, model);
                side.grace_time = Some(grace_time());
                side.grace_blocks = blocks.take();
                say(&side)?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn server_side(
    server: &Server,
    delta: &Delta,
    core: u32,
    requests: u64,
    thread_cpu: f64,
    model: PerformanceModel,
) -> ServerSide {
    let packets = delta.packets_per_interrupt();
    let busy = |cpu: &CpuTime| cpu.busy.as_secs_f64();
    let alignment = server.alignment();
    ServerSide {
        requests,
        seconds: delta.elapsed.as_secs_f64(),
        core_busy: delta.cpus.get(core as usize).map_or(0.0, busy),
        thread_cpu,
        rx_packets: delta.rx_packets.total(),
        packets_per_event: packets.value,
        per: packets.name.to_owned(),
        busy_poll_share: delta.busy_poll_share(),
        net_rx: delta.net_rx.clone(),
        steal: delta.worst_steal(),
        ipq: model.ipq,
        ipc: model.ipc,
        aligned: alignment.aligned,
        misaligned: alignment.misaligned,
        grace_time: None,
        grace_blocks: None,
    }
}

/// What the load tells on its way.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "said", rename_all = "kebab-case")]
enum LoadWord {
    Measuring,
    Done { report: serde_json::Value },
    Failed { error: String },
}

fn load(order: &LoadOrder) -> Result<(), Box<dyn std::error::Error>> {
    // The same driver for all that is compared.
    let mut builder =
        Builder::new().ignore_environment().workers(1).cores(Cpus::one(order.core)).driver(DriverKind::Epoll);
    if let Some(name) = &order.interface {
        // The client's queue is polled by a kernel thread on the client's core, under every policy of
        // the server. Else the server's core would pay for the client's receiving: a veth's packets
        // are received by whoever sends them, and packet steering (RPS) leaves the queue's poll there.
        builder = builder.interface(name).policy(Policy::Packing).packing_cores(Cpus::one(order.core));
    }
    let mut runtime = builder.build()?;
    if let Some(name) = &order.interface {
        yield_to_load(name)?;
    }
    let config = LoadConfig {
        servers: vec![order.server.into()],
        connections: order.connections,
        depth: if order.rate.is_some() { 64 } else { 1 },
        pacing: match order.rate {
            Some(rate) => Loop::Open { rate, arrival: Arrival::EXPONENTIAL },
            None => Loop::Closed,
        },
        workload: Workload { records: order.records, ..Workload::default() },
        warm_up: WarmUp::Fixed(Duration::from_secs_f64(order.warm_up)),
        duration: Duration::from_secs_f64(order.duration),
        ..LoadConfig::default()
    };
    let dropped = ring_drops(order.interface.as_deref())?;
    let outcome = make_load(&mut runtime, &config, order.load_records);
    match outcome {
        Ok(report) => {
            let mut report = serde_json::to_value(report)?;
            report["ring_drops"] = (ring_drops(order.interface.as_deref())? - dropped).into();
            say(&LoadWord::Done { report })?;
        }
        Err(error) => say(&LoadWord::Failed { error: error.to_string() })?,
    }
    Ok(())
}

/// Gives the kernel threads that poll the client's queues half the weight of the load's thread, with
/// which they share a core. At the same weight they hold the load up while answers come in, and client
/// and server take turns more than clients on other machines would.
fn yield_to_load(interface: &str) -> Result<(), Box<dyn std::error::Error>> {
    const HALF_WEIGHT: i32 = 3;
    for napi in host::interface(interface)?.queues.into_iter().filter_map(|queue| queue.napi) {
        if let Some(pid) = napi.pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
            setpriority_process(Some(pid), HALF_WEIGHT)?;
        }
    }
    Ok(())
}

/// Requests' packets that found the server's receive ring full so far: a veth counts them as dropped by
/// the sender.
fn ring_drops(interface: Option<&str>) -> io::Result<u64> {
    let links = policies::netlink::route::links()?;
    let link = links.into_iter().find(|link| Some(link.name.as_str()) == interface);
    Ok(link.and_then(|link| link.tx_dropped).unwrap_or(0))
}

fn make_load(
    runtime: &mut Runtime,
    config: &LoadConfig,
    load_records: bool,
) -> Result<LoadReport, Box<dyn std::error::Error>> {
    runtime.block_on(async {
        if load_records {
            loadgen::load_records(config).await?;
        }
        let mut told = false;
        let WarmUp::Fixed(warm_up) = config.warm_up else { return Err("the lab's warm-up is fixed".into()) };
        let report = loadgen::run_until(config, &AtomicBool::new(false), |progress| {
            if progress.elapsed >= warm_up && !std::mem::replace(&mut told, true) {
                // The lab has gone if this fails, and then this process goes too.
                let _ = say(&LoadWord::Measuring);
            }
        })
        .await?;
        Ok(report)
    })
}

/// A party as the lab sees it.
#[derive(Debug)]
pub struct Party {
    child: Child,
    orders: Option<ChildStdin>,
    words: BufReader<ChildStdout>,
}

/// What a load process found, as far as the lab needs it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LoadSide {
    /// Requests a second.
    pub qps: f64,
    /// Latency, µs.
    pub latency: Latency,
    /// How busy the client's thread was, 0 to 1.
    pub client_busy: f64,
    /// Requests that failed or were never answered.
    pub errors: u64,
    /// Requests that were never answered.
    pub unanswered: u64,
    /// Gets that found nothing.
    pub misses: u64,
    /// Packets that found the server's receive ring full, warm-up included.
    pub ring_drops: u64,
    /// What to know before believing the figures.
    pub warnings: Vec<String>,
}

/// The percentiles of a load's latency, µs.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Latency {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// The largest.
    pub max: f64,
}

impl Party {
    /// Starts this program as a party in a namespace.
    pub fn start(role: &Role, namespace: Option<&Namespace>) -> io::Result<Self> {
        static PROGRAM: OnceLock<io::Result<std::path::PathBuf>> = OnceLock::new();
        let program = PROGRAM.get_or_init(std::env::current_exe);
        let program = program.as_ref().map_err(|error| io::Error::new(error.kind(), error.to_string()))?;
        let mut command = Command::new(program);
        command.arg(PARTY).arg(serde_json::to_string(role)?);
        if let Some(namespace) = namespace {
            let fd = namespace.file().as_raw_fd();
            command.arg(format!("/proc/{}/fd/{fd}", std::process::id()));
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let orders = child.stdin.take();
        let words = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { child, orders, words: BufReader::new(words) })
    }

    fn order(&mut self, order: &str) -> io::Result<()> {
        let orders = self.orders.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(orders, "{order}")
    }

    /// What the party says next.
    pub(crate) fn hear(&mut self) -> io::Result<serde_json::Value> {
        let mut line = String::new();
        if self.words.read_line(&mut line)? == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "a process of the experiment ended before its time; its message is above",
            ));
        }
        Ok(serde_json::from_str(&line)?)
    }

    /// Waits until the server listens. The second value is all that it said, for the report.
    pub fn server_ready(&mut self) -> io::Result<(SocketAddr, serde_json::Value)> {
        let word = self.hear()?;
        let address = serde_json::from_value(word["address"].clone())?;
        Ok((address, word))
    }

    /// Waits for a load to go through its time, with the server measured meanwhile.
    pub fn measure(&mut self, server: &mut Party) -> io::Result<(LoadSide, ServerSide)> {
        loop {
            match serde_json::from_value(self.hear()?)? {
                LoadWord::Measuring => server.order("begin")?,
                LoadWord::Failed { error } => return Err(io::Error::other(error)),
                LoadWord::Done { report } => {
                    server.order("end")?;
                    let side = serde_json::from_value(server.hear()?)?;
                    return Ok((serde_json::from_value(report)?, side));
                }
            }
        }
    }

    fn process(&self) -> io::Result<procfs::process::Process> {
        let pid = i32::try_from(self.child.id()).map_err(io::Error::other)?;
        procfs::process::Process::new(pid).map_err(io::Error::other)
    }

    /// CPU time of the party's main thread so far, in nanoseconds (`/proc/<pid>/schedstat`).
    pub(crate) fn cpu_nanos(&self) -> io::Result<u64> {
        Ok(self.process()?.schedstat().map_err(io::Error::other)?.sum_exec_runtime)
    }

    /// Allocations of the party, which counts them at this address.
    pub(crate) fn allocations(&self, address: u64) -> io::Result<u64> {
        allocations::read(self.child.id(), address)
    }

    /// The party's resident memory, in bytes.
    pub(crate) fn resident_bytes(&self) -> io::Result<u64> {
        let status = self.process()?.status().map_err(io::Error::other)?;
        Ok(status.vmrss.unwrap_or(0) * 1024)
    }

    /// Ends the party, and waits for it.
    pub fn finish(mut self) -> io::Result<()> {
        self.orders.take();
        self.child.wait().map(drop)
    }
}

impl Drop for Party {
    fn drop(&mut self) {
        // After `finish` both fail, and there is nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where a loopback server listens.
pub const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
