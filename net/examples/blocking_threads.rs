//! Three servers of a handler that may block, and what each serves and costs: a thread for each
//! connection on the standard library's sockets; a worker that owns the sockets, and a closure of
//! `spawn_blocking` for each request; and for comparison tasks that call the handler, which then
//! must not block. Each also with `SCHED_BATCH`.
//!
//! ```sh
//! cargo run --release -p lull-net --example blocking_threads -- 1000 7 1
//! ```
//!
//! The arguments are the numbers of connections, rounds and seconds; without them it is a short
//! run. Each server is a process on the last core, and the clients are on the first. It needs `chrt`
//! (util-linux). `RUNTIME_DRIVER=epoll` sets the driver of servers and clients.

use std::cell::Cell;
use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_util::{AsyncReadExt, AsyncWriteExt};
use net::{TcpListener, TcpStream};
use runtime::policy::Cpus;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit};

type Failure = Box<dyn Error + Send + Sync>;

const REQUEST: usize = 40;
const RESPONSE: usize = 200;
/// What the task of a connection does with a request, or that there is none; the most threads of the
/// pool; and whether the server's threads are `SCHED_BATCH`.
const SERVERS: [(&str, &str, bool); 7] = [
    ("threads", "0", false),
    ("threads", "0", true),
    ("pool", "1", false),
    ("pool", "1", true),
    ("pool", "64", true),
    ("tasks", "0", false),
    ("tasks", "0", true),
];
/// Of each of the server's threads, in bytes.
const STACK: usize = 256 << 10;
const WARM_UP: Duration = Duration::from_millis(300);

/// What each server runs for a request. It may block.
fn handle(request: [u8; REQUEST]) -> [u8; RESPONSE] {
    std::array::from_fn(|index| request[index % REQUEST])
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    match arguments[..] {
        ["serve", server, most, core] => {
            Cpus::one(core.parse()?).pin(None)?;
            serve(server, most.parse()?)
        }
        [connections, rounds, seconds] => {
            let numbers: [u32; 3] = [connections.parse()?, rounds.parse()?, seconds.parse()?];
            if numbers.contains(&0) {
                return Err("the numbers of connections, rounds and seconds are at least 1".into());
            }
            compare(numbers[0], numbers[1] as usize, Duration::from_secs(numbers[2].into()))
        }
        [] => compare(20, 1, Duration::from_millis(100)),
        _ => Err("arguments: CONNECTIONS ROUNDS SECONDS, or none".into()),
    }
}

/// Serves until its parent ends. Writes its address. `most`: threads for `spawn_blocking`.
fn serve(server: &str, most: usize) -> Result<(), Failure> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if server == "threads" {
        return plain_threads();
    }
    let in_pool = server == "pool";
    let builder = runtime::Builder::new().workers(1).max_blocking_threads(most).thread_stack_size(STACK);
    builder.build()?.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        println!("{}", listener.local_addr()?);
        let _serving = listener.serve(move |stream: TcpStream| async move {
            // Fails if the client breaks the connection, which ends it anyway.
            let _ = connection(stream, in_pool).await;
        })?;
        std::future::pending().await
    })
}

/// The task of a connection, on the worker.
async fn connection(mut stream: TcpStream, in_pool: bool) -> Result<(), Failure> {
    stream.set_nodelay(true)?;
    let mut request = [0; REQUEST];
    loop {
        stream.read_exact(&mut request).await?;
        let response =
            if in_pool { runtime::spawn_blocking(move || handle(request)).await? } else { handle(request) };
        stream.write_all(&response).await?;
    }
}

fn plain_threads() -> Result<(), Failure> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    loop {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        std::thread::Builder::new().stack_size(STACK).spawn(move || {
            let mut request = [0; REQUEST];
            while stream.read_exact(&mut request).is_ok() && stream.write_all(&handle(request)).is_ok() {}
        })?;
    }
}

/// Requests a second; and of the server's threads, for each request: CPU time in microseconds, and how
/// often one has gone to sleep.
type Measured = [f64; 3];

fn compare(connections: u32, rounds: usize, time: Duration) -> Result<(), Failure> {
    let cores = Cpus::allowed()?;
    let (first, last) = (cores.iter().next().unwrap_or(0), cores.iter().last().unwrap_or(0));
    if first == last {
        println!("One core for servers and clients: what is measured is their sharing of it.");
    }
    // Servers are started from this thread, and move to their own core.
    Cpus::one(first).pin(None)?;
    let runtime = runtime::Builder::new().workers(1).build()?;
    let mut measured: [Vec<Measured>; SERVERS.len()] = Default::default();
    for round in 0..rounds {
        for server in 0..SERVERS.len() {
            let server = (server + round) % SERVERS.len();
            measured[server].push(runtime.block_on(measure(SERVERS[server], last, connections, time))?);
        }
    }
    println!(
        "{connections} connections, {rounds} rounds of {} s: medians [least, greatest]",
        time.as_secs_f64()
    );
    let header = ["requests/s", "CPU us/request", "CPU ratio", "sleeps/request"];
    println!("{:17} {:>22} {:>21} {:>18} {:>18}", "", header[0], header[1], header[2], header[3]);
    for ((server, most, batch), results) in SERVERS.iter().zip(&measured) {
        let server = match *server {
            "pool" => format!("pool of {most}"),
            other => other.to_owned(),
        };
        let server = server + if *batch { ", batch" } else { "" };
        let figure = |index: usize, digits| median(results.iter().map(|it| it[index]), digits);
        let (rates, times, sleeps) = (figure(0, 0), figure(1, 2), figure(2, 2));
        let ratios = median(results.iter().zip(&measured[0]).map(|(it, plain)| it[1] / plain[1]), 2);
        println!("{server:17} {rates:>22} {times:>21} {ratios:>18} {sleeps:>18}");
    }
    Ok(())
}

fn median(values: impl Iterator<Item = f64>, digits: usize) -> String {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let (middle, last) = (values[values.len() / 2], values[values.len() - 1]);
    format!("{middle:.digits$} [{:.digits$}, {last:.digits$}]", values[0])
}

/// A server's process, which is killed when this is dropped.
struct Server(Child);

impl Server {
    fn start((server, most, batch): (&str, &str, bool), core: u32) -> Result<(Self, SocketAddr), Failure> {
        let mut command = Command::new("chrt");
        command.arg(if batch { "--batch" } else { "--other" }).arg("0").arg(std::env::current_exe()?);
        let child = command.args(["serve", server, most, &core.to_string()]).stdout(Stdio::piped()).spawn();
        let child = child.map_err(|error| format!("chrt (util-linux) can't be started: {error}"))?;
        let mut server = Self(child);
        let mut line = String::new();
        BufReader::new(server.0.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        Ok((server, line.trim().parse()?))
    }

    /// Of all of its threads: CPU time in microseconds, and how often they have gone to sleep.
    fn used(&self) -> Result<(f64, f64), Failure> {
        let mut used = (0.0, 0.0);
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.0.id()))? {
            let folder = thread?.path();
            let times = std::fs::read_to_string(folder.join("schedstat"))?;
            used.0 += times.split(' ').next().ok_or("no CPU time")?.parse::<f64>()? / 1e3;
            let status = std::fs::read_to_string(folder.join("status"))?;
            let sleeps = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            used.1 += sleeps.ok_or("no count of switches")?.trim().parse::<f64>()?;
        }
        Ok(used)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn measure(
    server: (&str, &str, bool),
    core: u32,
    connections: u32,
    time: Duration,
) -> Result<Measured, Failure> {
    let (server, address) = Server::start(server, core)?;
    let served = Rc::new(Cell::new(0u64));
    let mut clients = runtime::task::JoinSet::new();
    for number in 0..connections {
        let stream = TcpStream::connect(address).await?;
        clients.spawn(client(stream, number as u8, Rc::clone(&served)));
    }
    runtime::sleep(WARM_UP).await;
    let (started, requests, before) = (Instant::now(), served.get(), server.used()?);
    runtime::sleep(time).await;
    let requests = (served.get() - requests) as f64;
    let (seconds, after) = (started.elapsed().as_secs_f64(), server.used()?);
    match clients.try_join_next() {
        Some(ended) => Err(format!("a client has ended: {ended:?}").into()),
        None => Ok([requests / seconds, (after.0 - before.0) / requests, (after.1 - before.1) / requests]),
    }
}

/// Sends the next request when the response to the one before is there.
async fn client(mut stream: TcpStream, byte: u8, served: Rc<Cell<u64>>) -> Result<(), Failure> {
    stream.set_nodelay(true)?;
    let request = [byte; REQUEST];
    let mut response = [0; RESPONSE];
    loop {
        stream.write_all(&request).await?;
        stream.read_exact(&mut response).await?;
        if response != handle(request) {
            return Err("a wrong response".into());
        }
        served.set(served.get() + 1);
    }
}
