//! The `memcached` command: a server that speaks memcached's ASCII protocol, on Lull's runtime.

use std::net::{IpAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgAction, Parser};
use policies::{Cpus, Policy, host};
use runtime::{Builder, DriverKind, WaitStrategy};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use servers::memcached::{Config, Server, VERSION};

/// A server that speaks memcached's ASCII protocol and keeps the network card quiet meanwhile
#[derive(Debug, Parser)]
#[command(name = "memcached", disable_version_flag = true)]
struct Flags {
    /// TCP port to listen on; 0 takes any free one
    #[arg(short = 'p', long = "port", value_name = "NUM", default_value_t = 11211)]
    port: u16,
    /// UDP port; UDP is not served, so only 0 (off) is taken
    #[arg(short = 'U', long = "udp-port", value_name = "NUM", default_value_t = 0)]
    udp_port: u16,
    /// Address to listen on; several with commas between them or by several -l
    #[arg(short = 'l', long = "listen", value_name = "ADDR", value_delimiter = ',', default_value = "127.0.0.1", value_parser = parse_address)]
    listen: Vec<IpAddr>,
    /// Unix socket to listen on, instead of TCP
    #[arg(short = 's', long = "unix-socket", value_name = "PATH")]
    unix_socket: Option<PathBuf>,
    /// Item memory, in MiB
    #[arg(short = 'm', long = "memory-limit", value_name = "MiB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    memory: u64,
    /// Most connections at one time; one more is told so and closed
    #[arg(short = 'c', long = "conn-limit", value_name = "NUM", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Workers; the receive queues of the interface unless set, else the cores
    #[arg(short = 't', long = "threads", value_name = "NUM", value_parser = clap::value_parser!(u16).range(1..=4096))]
    threads: Option<u16>,
    /// Size of the largest item; may end in k or m
    #[arg(short = 'I', long = "max-item-size", value_name = "SIZE", default_value = "1m", value_parser = parse_size)]
    max_item: u64,
    /// Log more: -v errors of connections and what runs, -vv also the host settings
    #[arg(short = 'v', long = "verbose", action = ArgAction::Count)]
    verbose: u8,
    /// Print the version
    #[arg(short = 'V', long = "version", action = ArgAction::SetTrue)]
    version: bool,
    /// vanilla, packing, suppression or kernel-polling [env: RUNTIME_POLICY]
    #[arg(long)]
    policy: Option<Policy>,
    /// Interface that clients come in by; the one that has the -l address unless set
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// How workers wait: block, spin, spin-then-block or spin-then-block:50us [env: RUNTIME_WAIT]
    #[arg(long)]
    wait: Option<WaitStrategy>,
    /// Driver: auto, epoll, uring or hybrid [env: RUNTIME_DRIVER]
    #[arg(long)]
    driver: Option<DriverKind>,
    /// Pin workers to these cores, for example 0-3
    #[arg(long)]
    cores: Option<Cpus>,
    /// Cores that the packing policy gathers network work on
    #[arg(long, value_name = "CORES")]
    packing_cores: Option<Cpus>,
    /// Grace time after an empty poll, in microseconds; `lab calibrate` finds a host's
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    gro_flush_timeout: Option<u64>,
}

fn parse_address(text: &str) -> Result<IpAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let hint = "write an address without a port, for example 127.0.0.1 (the port is -p)";
    match (text, 0).to_socket_addrs() {
        Ok(mut found) => found.next().map(|address| address.ip()).ok_or_else(|| hint.to_owned()),
        Err(error) => Err(format!("{error}; {hint}")),
    }
}

/// memcached's limits: an item may have from 1 KiB to 1 GiB.
fn parse_size(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let (digits, unit) = match lower.as_bytes().last() {
        Some(b'k') => (&lower[..lower.len() - 1], 1 << 10),
        Some(b'm') => (&lower[..lower.len() - 1], 1 << 20),
        _ => (lower.as_str(), 1),
    };
    let size = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    match size {
        Some(size) if ((1 << 10)..=(1 << 30)).contains(&size) => Ok(size),
        _ => Err("write a size from 1k to 1024m".to_owned()),
    }
}

/// Far below this no connection could be told anything any more.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let flags = Flags::parse();
    if flags.version {
        println!("memcached {VERSION}");
        return ExitCode::SUCCESS;
    }
    match run(flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("memcached: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(flags: Flags) -> Result<(), Box<dyn std::error::Error>> {
    if flags.udp_port != 0 {
        return Err("UDP is not served; leave -U away or give -U 0".into());
    }
    raise_descriptor_limit(u64::from(flags.connections));
    let mut builder = Builder::new();
    if let Some(policy) = flags.policy {
        builder = builder.policy(policy);
    }
    if let Some(threads) = flags.threads {
        builder = builder.workers(threads.into());
    }
    if let Some(wait) = flags.wait {
        builder = builder.wait(wait);
    }
    if let Some(driver) = flags.driver {
        builder = builder.driver(driver);
    }
    if let Some(cores) = flags.cores.clone() {
        builder = builder.cores(cores);
    }
    if let Some(cores) = flags.packing_cores.clone() {
        builder = builder.packing_cores(cores);
    }
    if let Some(micros) = flags.gro_flush_timeout {
        builder = builder.gro_flush_timeout(Duration::from_micros(micros));
    }
    if let Some(name) = flags.interface.clone().or_else(|| serving_interface(&flags)) {
        builder = builder.interface(name);
    }
    let config = Config {
        listen: flags.listen,
        port: flags.port,
        unix_socket: flags.unix_socket,
        memory: flags.memory << 20,
        connections: flags.connections as usize,
        max_item: flags.max_item as usize,
        verbosity: flags.verbose.into(),
    };
    let mut runtime = builder.build()?;
    if flags.verbose > 1 {
        runtime.applied().iter().for_each(|step| eprintln!("memcached: {step}"));
    }
    runtime.block_on(serve(config))?;
    Ok(())
}

async fn serve(config: Config) -> Result<(), Box<dyn std::error::Error>> {
    let terminated = runtime::signal::terminated()?;
    let server = Server::start(&config)?;
    for report in runtime::reports() {
        // A policy that isn't had in full is never silent.
        if config.verbosity > 0 || !report.steps_down.is_empty() {
            eprintln!("memcached: {report}");
        }
    }
    if config.verbosity > 0 {
        server.addresses().iter().for_each(|address| eprintln!("memcached: listening on {address}"));
    }
    terminated.await;
    let report = server.shutdown(SHUTDOWN_DEADLINE).await;
    if config.verbosity > 0 || report.aborted > 0 {
        eprintln!("memcached: stopped; {} connections ended, {} cut off", report.finished, report.aborted);
    }
    Ok(())
}

/// Loopback serves, but has no queue to set anything on.
fn serving_interface(flags: &Flags) -> Option<String> {
    let address = *flags.listen.first().filter(|_| flags.unix_socket.is_none())?;
    let interface = host::interface_of_address(address).ok().flatten()?;
    (interface.name != "lo").then_some(interface.name)
}

/// Each connection is a descriptor; some more are epoll instances, listeners and the like.
fn raise_descriptor_limit(connections: u64) {
    let wanted = connections + 256;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return;
    }
    let maximum = limit.maximum.map(|maximum| maximum.max(wanted));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).or_else(|_| {
        let current = limit.maximum.map(|maximum| maximum.min(wanted));
        setrlimit(Resource::Nofile, Rlimit { current, maximum: limit.maximum })
    });
    let now = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if raised.is_err() || now < wanted {
        eprintln!("memcached: only {now} descriptors allowed (ulimit -n) for {connections} connections");
    }
}
