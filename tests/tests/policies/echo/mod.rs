//! An echo service on the server's side of the testbed, and clients of it.

pub mod server;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{AsyncReadExt, AsyncWriteExt};
use lab::testbed::{SERVER_ADDRESS, SERVER_INTERFACE, Testbed};
use net::{TcpListener, TcpStream};
use policies::counters::{Delta, Snapshot};
use policies::host;
use runtime::Runtime;
use runtime::io::{AsyncFd, Direction, SourceKind};

/// Serves within a runtime: echoes each request after computing for `work`.
pub fn serve(work: Duration) -> (SocketAddr, net::Serving) {
    let listener = TcpListener::bind((SERVER_ADDRESS, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let serving = listener.serve(move |mut stream: TcpStream| async move {
        let mut buffer = [0; 1024];
        stream.set_nodelay(true).unwrap();
        while let Ok(length @ 1..) = stream.read(&mut buffer).await {
            let begun = Instant::now();
            while begun.elapsed() < work {}
            if stream.write_all(&buffer[..length]).await.is_err() {
                break;
            }
        }
    });
    (address, serving.unwrap())
}

/// Echoes on the server's side while `client` runs on the other side and `beside` on the server's
/// worker.
pub fn echo_with<T: Send + 'static>(
    testbed: &Arc<Testbed>,
    mut runtime: Runtime,
    beside: impl Future<Output = ()> + 'static,
    client: impl FnOnce(SocketAddr) -> T + Send + 'static,
) -> (T, Delta, net::Alignment) {
    let testbed = Arc::clone(testbed);
    runtime.block_on(async move {
        let (address, serving) = serve(Duration::ZERO);
        let interface = host::interface(SERVER_INTERFACE).unwrap();
        let before = Snapshot::take(&interface).unwrap();
        let beside = runtime::spawn(beside);
        let (done, finished) = std::os::unix::net::UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || {
            let result = testbed.client.run(|| Ok(client(address))).unwrap();
            drop(done);
            result
        });
        finished.set_nonblocking(true).unwrap();
        AsyncFd::new(finished, SourceKind::Other).unwrap().ready(Direction::Read).await;
        beside.abort();
        let delta = Snapshot::take(&interface).unwrap().since(&before);
        (thread.join().unwrap(), delta, serving.alignment())
    })
}

/// Closed-loop requests of one connection each, at least one on each, from plain blocking threads.
pub fn hammer(address: SocketAddr, connections: usize, time: Duration) -> u64 {
    let connected: Vec<_> = (0..connections).map(|_| connect(address)).collect();
    let end = Instant::now() + time;
    let threads: Vec<_> = connected
        .into_iter()
        .map(|mut stream| {
            // Threads of a namespace's thread are in that namespace.
            std::thread::spawn(move || {
                let mut count = 0;
                let mut buffer = [b'.'; 256];
                // A thread that begins late may have no time left.
                while count == 0 || Instant::now() < end {
                    stream.write_all(&buffer).unwrap();
                    stream.read_exact(&mut buffer).unwrap();
                    count += 1;
                }
                count
            })
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).sum()
}

fn connect(address: SocketAddr) -> std::net::TcpStream {
    let stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Round trips on one connection, in ascending order.
#[derive(Debug)]
pub struct RoundTrips(Vec<Duration>);

impl RoundTrips {
    /// Measures one after the other with pauses, for a time. Leaves the first out: it waits for the
    /// connection to be accepted.
    pub fn measure(address: SocketAddr, pause: Duration, time: Duration) -> Self {
        let mut stream = connect(address);
        let mut trips = Vec::new();
        let end = Instant::now() + time;
        let mut buffer = [0; 4];
        while Instant::now() < end {
            let start = Instant::now();
            stream.write_all(b"ping").unwrap();
            stream.read_exact(&mut buffer).unwrap();
            trips.push(start.elapsed());
            std::thread::sleep(pause);
        }
        trips.remove(0);
        trips.sort_unstable();
        Self(trips)
    }

    pub fn median(&self) -> Duration {
        self.0[self.0.len() / 2]
    }

    /// The share of round trips that took longer than `limit`, 0 to 1.
    pub fn share_above(&self, limit: Duration) -> f64 {
        let above = self.0.iter().filter(|trip| **trip > limit).count();
        above as f64 / self.0.len() as f64
    }
}
