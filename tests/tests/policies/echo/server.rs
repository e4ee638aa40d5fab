//! An echo server on a thread, which a test can ask and stop, and connections to it.

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_util::{AsyncReadExt, AsyncWriteExt};
use lab::testbed::Testbed;
use net::{TcpListener, TcpStream};
use policies::Cpus;
use policies::host::scheduler;
use runtime::io::{AsyncFd, Direction, SourceKind};
use runtime::{Builder, WorkerReport};
use tests::testbed::preempt_other_programs;

/// What a client sends, and what the server responds.
#[derive(Clone, Copy)]
pub struct Exchange {
    pub request: &'static [u8],
    pub response: &'static [u8],
}

pub const ECHO: Exchange = Exchange { request: &[b'.'; 64], response: &[b'.'; 64] };
/// A response that takes longer is lost.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server with one worker, real-time. Dropping it drops its runtime.
pub struct EchoServer {
    pub address: SocketAddr,
    control: UnixStream,
    reports: Receiver<WorkerReport>,
    thread: Option<JoinHandle<()>>,
}

impl EchoServer {
    /// Starts one in the calling thread's network namespace. It computes for `work` with each
    /// request.
    pub fn start(builder: Builder, address: Ipv4Addr, work: Duration) -> Self {
        let (control, asked) = UnixStream::pair().unwrap();
        asked.set_nonblocking(true).unwrap();
        let loops = loops_within(work);
        let (started, starts) = mpsc::channel();
        let (send_report, reports) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            // The supervisor must not inherit that, as it would from the client's thread.
            scheduler::set_fifo_priority(rustix::thread::gettid(), 0).unwrap();
            let mut runtime = builder.build().unwrap();
            preempt_other_programs();
            runtime.block_on(async move {
                let listener = TcpListener::bind((address, 0)).unwrap();
                started.send(listener.local_addr().unwrap()).unwrap();
                let _serving = listener
                    .serve(move |mut stream: TcpStream| async move {
                        let mut buffer = [0; 1024];
                        stream.set_nodelay(true).unwrap();
                        while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                            compute(loops);
                            if stream.write_all(&buffer[..length]).await.is_err() {
                                break;
                            }
                        }
                    })
                    .unwrap();
                let asked = AsyncFd::new(asked, SourceKind::Other).unwrap();
                let mut byte = [0];
                while let Ok(1) = asked.io(Direction::Read, |mut stream| stream.read(&mut byte)).await {
                    send_report.send(runtime::reports().remove(0)).unwrap();
                }
            });
        });
        Self { address: starts.recv().unwrap(), control, reports, thread: Some(thread) }
    }

    /// What is in effect on the worker.
    pub fn report(&mut self) -> WorkerReport {
        self.control.write_all(b"?").unwrap();
        self.reports.recv_timeout(PATIENCE).unwrap()
    }
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        // Ends the loop that answers with reports.
        let _ = self.control.shutdown(std::net::Shutdown::Both);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking(), "the server panicked");
    }
}

/// A fixed number of loops, so that an interrupt on top of them takes time of the core.
fn compute(loops: u32) {
    for step in 0..loops {
        black_box(step);
    }
}

/// How many loops of [`compute`] take a time on this machine.
fn loops_within(time: Duration) -> u32 {
    const LOOPS: u32 = 20_000;
    let measure = || {
        let start = Instant::now();
        compute(LOOPS);
        start.elapsed()
    };
    // The shortest was not interrupted.
    let shortest = (0..9).map(|_| measure()).min().unwrap();
    (f64::from(LOOPS) * time.as_secs_f64() / shortest.as_secs_f64()) as u32
}

/// Moves the calling thread to the client's core, and makes it real-time. Threads that it starts
/// inherit that.
pub fn preempt_on_client_core() {
    Cpus::one(1).pin(None).unwrap();
    preempt_other_programs();
}

/// A connection that sends one request after the other.
pub struct Connection {
    stream: std::net::TcpStream,
    exchange: Exchange,
}

impl Connection {
    /// Connects in the calling thread's network namespace.
    pub fn open(address: SocketAddr, exchange: Exchange) -> Self {
        let stream = std::net::TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut connection = Self { stream, exchange };
        // Waits for the connection to be accepted.
        connection.request();
        connection
    }

    /// Connects to an echo server on the client's side of a testbed. The socket can be used on
    /// both.
    pub fn open_on(testbed: &Testbed, address: SocketAddr) -> Self {
        testbed.client.run(|| Ok(Self::open(address, ECHO))).unwrap()
    }

    /// Sends a request, and returns the time to its response.
    ///
    /// # Panics
    /// If the response is lost.
    pub fn request(&mut self) -> Duration {
        let start = Instant::now();
        self.stream.write_all(self.exchange.request).unwrap();
        let mut buffer = [0; 256];
        let response = &mut buffer[..self.exchange.response.len()];
        self.stream.read_exact(response).unwrap();
        assert_eq!(response, self.exchange.response);
        start.elapsed()
    }

    /// Sends a request after each pause, for a time. Returns the round trips in ascending order.
    pub fn probe(&mut self, pause: Duration, time: Duration) -> Vec<Duration> {
        let end = Instant::now() + time;
        let mut trips = Vec::new();
        while Instant::now() < end {
            std::thread::sleep(pause);
            trips.push(self.request());
        }
        trips.sort_unstable();
        trips
    }
}

/// The value below which `share` of the sorted values are.
pub fn quantile(sorted: &[Duration], share: f64) -> Duration {
    sorted[((sorted.len() as f64 * share) as usize).min(sorted.len() - 1)]
}

/// A closed loop that can be switched on and off. Its threads are on core 1, and real-time.
pub struct Load {
    switch: Arc<(Mutex<Switch>, Condvar)>,
    in_flight: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<u64>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Switch {
    Off,
    On,
    End,
}

impl Load {
    /// Connects from the client's side, and stays off.
    pub fn open(testbed: &Testbed, address: SocketAddr, connections: usize, exchange: Exchange) -> Self {
        // Threads of a namespace's thread are in that namespace.
        testbed.client.run(|| Ok(Self::open_here(address, connections, exchange))).unwrap()
    }

    /// Connects from the calling thread's namespace, and stays off.
    pub fn open_here(address: SocketAddr, connections: usize, exchange: Exchange) -> Self {
        let switch = Arc::new((Mutex::new(Switch::Off), Condvar::new()));
        let in_flight = Arc::new(AtomicUsize::new(0));
        let spawn = || {
            let (switch, in_flight) = (Arc::clone(&switch), Arc::clone(&in_flight));
            std::thread::spawn(move || {
                preempt_on_client_core();
                run(&switch, &in_flight, &mut Connection::open(address, exchange))
            })
        };
        let threads = (0..connections).map(|_| spawn()).collect();
        Self { switch, in_flight, threads }
    }

    pub fn on(&self) {
        self.set(Switch::On);
    }

    /// Requests that were sent are still answered.
    pub fn off(&self) {
        self.set(Switch::Off);
    }

    /// Requests without a response yet. Once it is 0 after [`off`](Self::off), it stays.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    fn set(&self, position: Switch) {
        *self.switch.0.lock().unwrap() = position;
        self.switch.1.notify_all();
    }

    /// Ends the load, and returns the number of its requests.
    ///
    /// # Panics
    /// If one was lost.
    pub fn end(mut self) -> u64 {
        self.set(Switch::End);
        self.threads.drain(..).map(|thread| thread.join().expect("no request is lost")).sum()
    }
}

/// Before the server is dropped, if a test fails.
impl Drop for Load {
    fn drop(&mut self) {
        self.set(Switch::End);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

fn run(switch: &(Mutex<Switch>, Condvar), in_flight: &AtomicUsize, connection: &mut Connection) -> u64 {
    let mut requests = 0;
    loop {
        let position = switch.1.wait_while(switch.0.lock().unwrap(), |position| *position == Switch::Off);
        let position = position.unwrap();
        if *position == Switch::End {
            return requests;
        }
        // Under the lock: whoever switches off sees it.
        in_flight.fetch_add(1, Ordering::Relaxed);
        drop(position);
        connection.request();
        in_flight.fetch_sub(1, Ordering::Relaxed);
        requests += 1;
    }
}
