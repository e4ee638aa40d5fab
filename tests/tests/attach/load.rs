//! Closed-loop clients of a server, on the testbed's other side.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lab::testbed::Testbed;
use policies::Cpus;
use tests::memcached::read_some;

/// What a client sends, and how a response ends.
#[derive(Debug, Clone, Copy)]
pub struct Exchange {
    pub request: &'static [u8],
    pub end: &'static [u8],
}

/// A response that takes longer is lost.
const PATIENCE: Duration = Duration::from_secs(60);

/// Clients that run until they are stopped.
pub struct Load {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    /// Clients that have had a response.
    served: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<Vec<Duration>>>,
}

impl Load {
    pub fn start(testbed: &Testbed, address: SocketAddr, exchange: Exchange, connections: usize) -> Self {
        Self::start_paced(testbed, address, exchange, connections, Duration::ZERO)
    }

    /// Each client pauses after each response.
    pub fn start_paced(
        testbed: &Testbed,
        address: SocketAddr,
        exchange: Exchange,
        connections: usize,
        pause: Duration,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (count, served) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicUsize::new(0)));
        let connect = || {
            Cpus::one(1).pin(None)?;
            let streams = (0..connections).map(|_| open(address));
            // Threads of a namespace's thread are in that namespace, and on its core.
            Ok(streams
                .map(|stream| {
                    let (stop, count, served) = (Arc::clone(&stop), Arc::clone(&count), Arc::clone(&served));
                    let on_response = move |is_first: bool| {
                        count.fetch_add(1, Ordering::Relaxed);
                        served.fetch_add(usize::from(is_first), Ordering::Relaxed);
                    };
                    std::thread::spawn(move || exchange_until(stream, exchange, pause, &stop, on_response))
                })
                .collect())
        };
        let threads = testbed.client.run(connect).unwrap();
        Self { stop, count, served, threads }
    }

    /// The requests so far.
    pub fn requests(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether each client has had a response.
    pub fn serves_all(&self) -> bool {
        self.served.load(Ordering::Relaxed) == self.threads.len()
    }

    /// Ends the load. Returns how long each request took.
    ///
    /// # Panics
    /// If a request was lost.
    pub fn end(self) -> Vec<Duration> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().flat_map(|thread| thread.join().expect("no request is lost")).collect()
    }
}

impl Load {
    /// Ends the load, in which the server may close connections.
    pub fn end_with_closed_connections(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

fn open(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn exchange_until(
    mut stream: TcpStream,
    exchange: Exchange,
    pause: Duration,
    stop: &AtomicBool,
    on_response: impl Fn(bool),
) -> Vec<Duration> {
    let mut times = Vec::new();
    let mut buffer = [0; 4096];
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        stream.write_all(exchange.request).unwrap();
        let mut length = 0;
        while !buffer[..length].ends_with(exchange.end) {
            let read = read_some(&mut stream, &mut buffer[length..]).unwrap();
            assert!(read > 0, "closed after {:?}", String::from_utf8_lossy(&buffer[..length]));
            length += read;
        }
        on_response(times.is_empty());
        times.push(start.elapsed());
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }
    times
}
