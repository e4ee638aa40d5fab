//! An axum application with four layers (trace, cors, compression, timeout) on tokio's two shapes and on Lull's two
//! drivers: requests/s, latencies and CPU time of a request, in interleaved rounds.
//!
//! ```sh
//! cargo bench -p lab --features adapters --bench axum -- --rounds 12
//! ```
//!
//! As root, for the veth pair; `--network loopback` needs no privilege. `--help` lists the rest. Each server is a
//! separate process. One thread of this process is the client: it keeps its connections open, or opens one for each
//! request. A server with one worker is pinned to a core, and the client to another one. A server with more workers
//! and its client run on any core.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use axum::serve::ListenerExt;
use clap::Parser;
use hdrhistogram::Histogram;
use lab::Error;
use lab::cores::CoreAssignment;
use lab::peers::raise_descriptor_limit;
use lab::report::interval_text;
use lab::rounds::{DistanceClass, Figure, LoadKind, LoadPlan, Results, Runner, Turn};
use lab::testbed::Testbed;
use loadgen::medians::Interval;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use policies::Cpus;
use tower_http::compression::CompressionLayer;
use tower_http::cors::CorsLayer;
use tower_http::trace::TraceLayer;

/// How long a handler may take. None does.
const LIMIT: Duration = Duration::from_secs(10);
const BODY: &str = "Hello, World!";
const TOO_LATE: StatusCode = StatusCode::REQUEST_TIMEOUT;

#[derive(Parser)]
struct Flags {
    /// Rounds under each load; fewer than six give no interval
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u8).range(1..=100))]
    rounds: u8,
    /// Seconds of a turn that are measured, after a fifth of it that is not
    #[arg(long, default_value_t = 0.5)]
    turn: f64,
    #[arg(long, value_delimiter = ',', default_value = "loopback,veth")]
    network: Vec<Network>,
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_parser = clap::value_parser!(u8).range(1..=64))]
    workers: Vec<u8>,
    #[arg(long, value_delimiter = ',', default_value = "64,1000", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    connections: Vec<u16>,
    #[arg(long, value_delimiter = ',', default_value = "keep-alive,closed")]
    clients: Vec<Clients>,
    /// Cargo's own
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Network {
    Loopback,
    Veth,
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Clients {
    KeepAlive,
    /// A connection for each request
    Closed,
}

impl Clients {
    fn request(self) -> &'static [u8] {
        match self {
            Self::KeepAlive => b"GET / HTTP/1.1\r\nhost: lull\r\n\r\n",
            Self::Closed => b"GET / HTTP/1.1\r\nhost: lull\r\nconnection: close\r\n\r\n",
        }
    }
}

const SHAPES: [&str; 4] =
    ["tokio, multi-thread", "tokio, a runtime for each core", "Lull, uring", "Lull, epoll"];
/// What ratios refer to: the better of tokio's shapes.
const REFERENCES: [usize; 2] = [0, 1];

/// The variable that makes a process a server: the index of its shape, its workers and its address.
const SERVER: &str = "LULL_AXUM_BENCH_SERVER";

fn main() -> Result<(), Error> {
    if let Ok(server) = std::env::var(SERVER) {
        return serve(&server);
    }
    let flags = Flags::parse();
    // A client's socket may be closed later than the next one is opened.
    raise_descriptor_limit()?;
    let cores = CoreAssignment::choose()?;
    if cores.servers == cores.clients {
        return Err("this needs two cores: one for the server and one for its load".into());
    }
    let mut progress = |step: &str| eprint!("\r\x1b[K{step}");
    let mut runner = Runner::new(&cores, &mut progress);
    let testbed = flags.network.contains(&Network::Veth).then(|| Testbed::new(1)).transpose()?;
    for &network in &flags.network {
        let testbed = testbed.as_ref().filter(|_| network == Network::Veth);
        for &workers in &flags.workers {
            let servers = SHAPES.iter().enumerate();
            let servers = servers
                .map(|(shape, _)| Server::start(shape, workers, &cores, testbed))
                .collect::<Result<Vec<_>, _>>()?;
            for &clients in &flags.clients {
                for &connections in &flags.connections {
                    let name = load_name(network, workers, clients, connections);
                    let limit = Duration::from_secs_f64(f64::from(flags.rounds) * 12.0 * flags.turn);
                    let plan =
                        LoadPlan::new(name, LoadKind::Closed, connections.into(), flags.rounds.into(), limit);
                    let core = (workers == 1).then(|| cores.clients[0]);
                    runner.measure(plan, &SHAPES.map(str::to_owned), |shape| {
                        let server = &servers[shape];
                        let turn = || {
                            // Of this thread alone, which the runner makes for the turn.
                            if let Some(core) = core {
                                Cpus::one(core).pin(None)?;
                            }
                            measure(server, clients, connections, flags.turn).map_err(io::Error::other)
                        };
                        Ok(match testbed {
                            Some(testbed) => testbed.client.run(turn)?,
                            None => std::thread::scope(|scope| scope.spawn(turn).join())
                                .map_err(|_| "the load has panicked")??,
                        })
                    })?;
                }
            }
        }
    }
    eprint!("\r\x1b[K");
    print(&runner.finish(&REFERENCES));
    Ok(())
}

fn load_name(network: Network, workers: u8, clients: Clients, connections: u16) -> String {
    let network = if network == Network::Veth { "veth" } else { "loopback" };
    let workers = if workers == 1 { "one pinned worker".to_owned() } else { format!("{workers} workers") };
    let clients = if clients == Clients::Closed { "closed each time" } else { "keep-alive" };
    format!("{network}, {workers}, {clients}, {connections} connections")
}

/// The tables as the page has them.
fn print(results: &Results) {
    let text = |interval: Option<&Interval>, digits| {
        interval.map_or_else(|| "-".to_owned(), |interval| interval_text(interval, digits))
    };
    for load in &results.loads {
        let (low, high) = load.distance.unwrap_or_default();
        let class =
            if load.class == DistanceClass::Single { String::new() } else { format!(", {}", load.class) };
        println!("\n{}, {} rounds, {low:.0} to {high:.0} ns{class}\n", load.name, load.rounds);
        println!("| | requests/s | p50 µs | p99 µs | CPU µs | CPU over the better tokio |");
        println!("|---|---:|---:|---:|---:|---:|");
        for row in &load.rows {
            let figures = [Figure::Throughput, Figure::P50, Figure::P99, Figure::CpuPerRequest];
            let figures = figures.map(|figure| {
                text(row.value(figure), figure.digits().max(usize::from(figure == Figure::CpuPerRequest)))
            });
            println!(
                "| {} | {} | {} |",
                row.contender,
                figures.join(" | "),
                text(row.ratio(Figure::CpuPerRequest), 2)
            );
        }
    }
    for note in &results.notes {
        println!("\n{note}");
    }
}

/// A server's process. It ends when its standard input does.
struct Server {
    process: Child,
    address: SocketAddr,
}

impl Server {
    fn start(
        shape: usize,
        workers: u8,
        cores: &CoreAssignment,
        testbed: Option<&Testbed>,
    ) -> Result<Self, Error> {
        let address = if testbed.is_some() { lab::testbed::SERVER_ADDRESS } else { Ipv4Addr::LOCALHOST };
        let core = cores.servers[0];
        let mut command = Command::new(std::env::current_exe()?);
        command.env(SERVER, format!("{shape} {workers} {core} {address}"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let process = match testbed {
            Some(testbed) => testbed.server.run(|| command.spawn())?,
            None => command.spawn()?,
        };
        let mut server = Self { process, address: SocketAddr::from((address, 0)) };
        let output = server.process.stdout.take().ok_or("a server has no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let unreadable =
            |error| format!("a server has not written its address ({error}); its error is above");
        server.address = line.trim_end().parse().map_err(unreadable)?;
        Ok(server)
    }

    /// The CPU time that its threads have used, in nanoseconds, asked without its help.
    fn cpu_time(&self) -> Result<u64, Error> {
        let process = procfs::process::Process::new(self.process.id().cast_signed())?;
        let times = process.tasks()?.flatten().filter_map(|thread| thread.schedstat().ok());
        Ok(times.map(|times| times.sum_exec_runtime).sum())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn app() -> Router {
    let app = Router::new().route("/", get(async || BODY));
    app.layer(CompressionLayer::new()).layer(CorsLayer::permissive()).layer(TraceLayer::new_for_http())
}

fn on_tokio() -> Router {
    app().layer(tower_http::timeout::TimeoutLayer::with_status_code(TOO_LATE, LIMIT))
}

/// What a server's process does.
fn serve(server: &str) -> Result<(), Error> {
    let mut fields = server.split(' ');
    let mut field = || fields.next().ok_or("a field is missing");
    let (shape, workers): (usize, usize) = (field()?.parse()?, field()?.parse()?);
    let (core, address): (u32, Ipv4Addr) = (field()?.parse()?, field()?.parse()?);
    if workers == 1 {
        Cpus::one(core).pin(None)?;
    }
    std::thread::spawn(|| {
        // The end of the bench's process ends this one.
        let _ = io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    match shape {
        0 => tokio::runtime::Builder::new_multi_thread()
            .worker_threads(workers)
            .enable_all()
            .build()?
            .block_on(serve_on_tokio(listen(SocketAddr::from((address, 0)))?)),
        1 => {
            let first = listen(SocketAddr::from((address, 0)))?;
            let address = first.local_addr()?;
            let rest = (1..workers).map(|_| bind(address)).collect::<io::Result<Vec<_>>>()?;
            let mut threads = Vec::new();
            for listener in [first].into_iter().chain(rest) {
                let run = move || {
                    tokio::runtime::Builder::new_current_thread()
                        .enable_all()
                        .build()?
                        .block_on(serve_on_tokio(listener))
                };
                threads.push(std::thread::spawn(run));
            }
            for thread in threads {
                thread.join().map_err(|_| "a thread has panicked")??;
            }
            Ok(())
        }
        _ => {
            let driver = if shape == 2 { runtime::DriverKind::Uring } else { runtime::DriverKind::Epoll };
            let builder = runtime::Builder::new().ignore_environment().workers(workers).driver(driver);
            builder.build()?.block_on(async {
                let listener = net::TcpListener::from_std(listen(SocketAddr::from((address, 0)))?)?;
                let limit = adapters::tower::TimeoutLayer::with_status_code(TOO_LATE, LIMIT);
                adapters::axum::serve(listener, app().layer(limit)).await
            })
        }
        .map_err(Into::into),
    }
}

fn bind(address: SocketAddr) -> io::Result<StdListener> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM.nonblocking(), None)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    socket.listen(4096)?;
    Ok(socket.into())
}

fn listen(address: SocketAddr) -> io::Result<StdListener> {
    let listener = bind(address)?;
    println!("{}", listener.local_addr()?);
    Ok(listener)
}

async fn serve_on_tokio(listener: StdListener) -> Result<(), Error> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    // As Lull's adapters have it. Fails only if the connection has been closed.
    let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
    Ok(axum::serve(listener, on_tokio()).await?)
}

/// The load of one turn.
struct Load {
    poll: Poll,
    address: SocketAddr,
    clients: Clients,
    connections: Vec<Connection>,
    /// How long an answer is, head and body.
    answer: usize,
    latencies: Histogram<u64>,
}

struct Connection {
    stream: TcpStream,
    begun: Instant,
    /// Bytes of the answer so far.
    received: usize,
    /// Whether the request is still to be written.
    unsent: bool,
}

fn measure(server: &Server, clients: Clients, connections: u16, seconds: f64) -> Result<Turn, Error> {
    let mut load = Load::connect(server.address, clients, connections)?;
    load.run(Duration::from_secs_f64(seconds / 5.0))?;
    load.latencies.reset();
    let (cpu, begun) = (server.cpu_time()?, Instant::now());
    load.run(Duration::from_secs_f64(seconds))?;
    let (time, cpu) = (begun.elapsed().as_secs_f64(), server.cpu_time()?.saturating_sub(cpu));
    let count = load.latencies.len() as f64;
    let at = |quantile| load.latencies.value_at_quantile(quantile) as f64 / 1e3;
    let mut turn = Turn::new([
        (Figure::Throughput, count / time),
        (Figure::CpuPerRequest, cpu as f64 / 1e3 / count),
        (Figure::P50, at(0.5)),
        (Figure::P99, at(0.99)),
    ]);
    let mut buckets: BTreeMap<u64, u64> = BTreeMap::new();
    for step in load.latencies.iter_recorded() {
        *buckets.entry(step.value_iterated_to()).or_default() += step.count_at_value();
    }
    turn.latencies = buckets.into_iter().collect();
    Ok(turn)
}

impl Load {
    fn connect(address: SocketAddr, clients: Clients, connections: u16) -> Result<Self, Error> {
        let poll = Poll::new()?;
        // One request beforehand gives the length of every response.
        let mut first = std::net::TcpStream::connect(address)?;
        first.set_read_timeout(Some(LIMIT))?;
        first.write_all(clients.request())?;
        let mut bytes = [0; 1024];
        let answer = first.read(&mut bytes)?;
        if !bytes.starts_with(b"HTTP/1.1 200 ") || !bytes[..answer].ends_with(BODY.as_bytes()) {
            let bytes = String::from_utf8_lossy(&bytes[..answer]);
            return Err(format!("a server answers something else, or in parts: {bytes:?}").into());
        }
        let latencies = Histogram::new_with_bounds(1, 60_000_000_000, 2)?;
        let mut load = Self { poll, address, clients, connections: Vec::new(), answer, latencies };
        for index in 0..connections.into() {
            let connection = load.open(index)?;
            load.connections.push(connection);
        }
        Ok(load)
    }

    fn open(&self, index: usize) -> io::Result<Connection> {
        let begun = Instant::now();
        let mut stream = TcpStream::connect(self.address)?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut stream, Token(index), interest)?;
        Ok(Connection { stream, begun, received: 0, unsent: true })
    }

    fn run(&mut self, time: Duration) -> Result<(), Error> {
        let end = Instant::now() + time;
        let mut events = Events::with_capacity(1024);
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            match self.poll.poll(&mut events, Some(left)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                result => result?,
            }
            for event in &events {
                self.advance(event.token().0)?;
            }
        }
        Ok(())
    }

    fn advance(&mut self, index: usize) -> Result<(), Error> {
        let closes = self.clients == Clients::Closed;
        let mut buffer = [0; 1024];
        loop {
            let connection = &mut self.connections[index];
            if connection.unsent {
                let request = self.clients.request();
                match connection.stream.write(request) {
                    Ok(written) if written == request.len() => connection.unsent = false,
                    Ok(_) => return Err("a request was written in part".into()),
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => {
                        return Ok(());
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            match connection.stream.read(&mut buffer) {
                Ok(0) if closes && connection.received == self.answer => {
                    let latency = connection.begun.elapsed();
                    self.latencies.record(latency.as_nanos() as u64)?;
                    self.connections[index] = self.open(index)?;
                    return Ok(());
                }
                Ok(0) => return Err("the server has closed a connection too early".into()),
                Ok(length) if connection.received + length > self.answer => {
                    return Err("an answer is longer than the first one".into());
                }
                Ok(length) => connection.received += length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            if !closes && connection.received == self.answer {
                let now = Instant::now();
                self.latencies.record((now - connection.begun).as_nanos() as u64)?;
                (connection.begun, connection.received, connection.unsent) = (now, 0, true);
            }
        }
    }
}
