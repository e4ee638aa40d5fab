//! How long it takes from a client's send to the first instruction of the thread that reads, over loopback: blocking threads as
//! they are, and those of the dispatcher, with 1, 100 and 10,000 of them, of which one at a time is asked. They are fewer if the
//! limit of descriptors is below 20,200.
//!
//! `cargo bench -p lull-net --bench wake_latency`. The client is on one core, the server's threads on the same or on another.
//! The time includes the client's `send(2)`, in which loopback delivers the packet.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use dispatcher::{BlockingStream, Placement};
use rand::RngExt;
use runtime::{Builder, Cpus};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const REQUESTS: usize = 20_000;
/// Of which so many come before it.
const WARM_UP: usize = 2_000;
const STACK: usize = 256 << 10;

#[derive(Clone, Copy)]
enum Server {
    Plain,
    Dispatcher(Placement),
}

fn main() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    let mask = rustix::thread::sched_getaffinity(None)?;
    let cores: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&core| mask.is_set(core)).collect();
    let [client, .., server] = cores[..] else {
        println!("skipped: this needs two cores");
        return Ok(());
    };
    println!(
        "from the client's send to the thread, µs; client on core {client}; {REQUESTS} requests, one at a time"
    );
    println!("{:34} {:>8} {:>8} {:>8} {:>8} {:>8}", "", "threads", "p50", "p90", "p99", "p99.9");
    for threads in [1, 100, 10_000] {
        // Both ends of a connection are in this process.
        let most = limit.maximum.map_or(threads, |maximum| (maximum.saturating_sub(200) / 2) as usize);
        let threads = threads.min(most);
        for (name, kind, core) in [
            ("plain, client's core", Server::Plain, client),
            ("plain, other core", Server::Plain, server),
            ("dispatcher, worker's core", Server::Dispatcher(Placement::SameCore), server),
            ("dispatcher, another core", Server::Dispatcher(Placement::OtherCores), server),
        ] {
            let mut latencies = measure(kind, core, client, threads)?;
            latencies.sort_unstable();
            let at = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize] as f64 / 1e3;
            let [p50, p90, p99, p999] = [0.5, 0.9, 0.99, 0.999].map(at);
            println!("{name:34} {threads:8} {p50:8.1} {p90:8.1} {p99:8.1} {p999:8.1}");
        }
    }
    Ok(())
}

/// Nanoseconds since some time in the past, the same for all threads.
fn now(begun: Instant) -> u64 {
    begun.elapsed().as_nanos() as u64
}

/// Answers each time with how long ago it was.
fn answer(mut stream: impl Read + Write, begun: Instant) -> io::Result<()> {
    let mut sent = [0; 8];
    loop {
        stream.read_exact(&mut sent)?;
        let latency = now(begun) - u64::from_ne_bytes(sent);
        stream.write_all(&latency.to_ne_bytes())?;
    }
}

fn pin(core: usize) -> io::Result<()> {
    Cpus::one(core as u32).pin(None)
}

fn measure(server: Server, core: usize, client: usize, threads: usize) -> io::Result<Vec<u64>> {
    let begun = Instant::now();
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let asking = move || ask(address, client, threads, begun);
    if let Server::Dispatcher(placement) = server {
        // The threads' other cores are those that this thread may use.
        let builder = Builder::new().ignore_environment().workers(1).cores(Cpus::one(core as u32));
        let mut runtime = builder.build().map_err(io::Error::other)?;
        return runtime.block_on(async move {
            let dispatcher = dispatcher::Builder::new().placement(placement).stack_size(STACK).build();
            let serving = net::TcpListener::from_std(listener)?.serve(move |stream: net::TcpStream| {
                let running = dispatcher.run(stream, move |stream: BlockingStream| {
                    let _ = stream.set_nodelay(true);
                    drop(answer(stream, begun));
                });
                async move { drop(running.await) }
            })?;
            let latencies = runtime::spawn_blocking(asking).await.map_err(io::Error::other)?;
            serving.shutdown(Duration::from_secs(10)).await;
            latencies
        });
    }
    std::thread::scope(|scope| {
        let asking = scope.spawn(asking);
        let mut answering = Vec::new();
        for _ in 0..threads {
            let (stream, _) = listener.accept()?;
            stream.set_nodelay(true)?;
            let thread = std::thread::Builder::new().stack_size(STACK);
            answering.push(thread.spawn_scoped(scope, move || {
                pin(core)?;
                answer(stream, begun)
            })?);
        }
        asking.join().unwrap_or_else(|_| Err(io::Error::other("the client has panicked")))
    })
}

/// Asks one connection after the other, chosen at random.
fn ask(address: SocketAddr, core: usize, connections: usize, begun: Instant) -> io::Result<Vec<u64>> {
    pin(core)?;
    let mut streams = Vec::new();
    for _ in 0..connections {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        streams.push(stream);
    }
    let mut latencies = Vec::with_capacity(REQUESTS);
    let mut random = rand::rng();
    for request in 0..WARM_UP + REQUESTS {
        let stream = &mut streams[random.random_range(0..connections)];
        stream.write_all(&now(begun).to_ne_bytes())?;
        let mut latency = [0; 8];
        stream.read_exact(&mut latency)?;
        if request >= WARM_UP {
            latencies.push(u64::from_ne_bytes(latency));
        }
    }
    Ok(latencies)
}
