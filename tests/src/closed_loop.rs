//! Clients on the testbed's client side: each sends one request after the other.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lab::testbed::Testbed;
use policies::Cpus;

use crate::memcached::read_some;
use crate::testbed::preempt_on_client_core;

/// What a client sends, and how a response ends.
#[derive(Debug, Clone, Copy)]
pub struct Exchange {
    pub request: &'static [u8],
    pub end: &'static [u8],
}

/// Servers of `lab` reply with this letter whatever comes.
pub const ECHO: Exchange = Exchange { request: &[b'a'; 64], end: &[b'a'; 64] };
/// A response that takes longer is lost.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    exchange: Exchange,
}

impl Connection {
    /// Connects in the calling thread's network namespace.
    pub fn open(address: SocketAddr, exchange: Exchange) -> Self {
        let stream = TcpStream::connect(address).unwrap();
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
        let (mut buffer, mut length) = ([0; 1024], 0);
        while !buffer[..length].ends_with(self.exchange.end) {
            let read = read_some(&mut self.stream, &mut buffer[length..]).unwrap();
            assert!(read > 0, "closed after {:?}", String::from_utf8_lossy(&buffer[..length]));
            length += read;
        }
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

/// A closed loop on each connection that can be switched on and off. Its threads are on core 1.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Vec<Duration>>>,
}

#[derive(Debug)]
struct Shared {
    switch: Mutex<Switch>,
    switched: Condvar,
    in_flight: AtomicUsize,
    requests: AtomicU64,
    /// Clients that have had a response.
    served: AtomicUsize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Switch {
    Off,
    On,
    End,
}

impl Load {
    /// Connects real-time clients from the client's side, and stays off.
    pub fn open(testbed: &Testbed, address: SocketAddr, connections: usize, exchange: Exchange) -> Self {
        // Threads of a namespace's thread are in that namespace.
        testbed.client.run(|| Ok(Self::open_here(address, connections, exchange))).unwrap()
    }

    /// Connects real-time clients from the calling thread's namespace, and stays off.
    pub fn open_here(address: SocketAddr, connections: usize, exchange: Exchange) -> Self {
        Self::spawn(connections, Duration::ZERO, Switch::Off, move || {
            preempt_on_client_core();
            Connection::open(address, exchange)
        })
    }

    /// Connects clients from the client's side, and is on. Each pauses after each response.
    pub fn start(
        testbed: &Testbed,
        address: SocketAddr,
        connections: usize,
        exchange: Exchange,
        pause: Duration,
    ) -> Self {
        let connect = move || {
            Cpus::one(1).pin(None).unwrap();
            Connection::open(address, exchange)
        };
        testbed.client.run(|| Ok(Self::spawn(connections, pause, Switch::On, connect))).unwrap()
    }

    /// Connects clients from the calling thread's namespace and on its cores, and is on.
    pub fn start_here(address: SocketAddr, connections: usize) -> Self {
        Self::spawn(connections, Duration::ZERO, Switch::On, move || Connection::open(address, ECHO))
    }

    fn spawn(
        connections: usize,
        pause: Duration,
        switch: Switch,
        connect: impl Fn() -> Connection + Send + Clone + 'static,
    ) -> Self {
        let shared = Arc::new(Shared {
            switch: Mutex::new(switch),
            switched: Condvar::new(),
            // Each client connects with a request.
            in_flight: AtomicUsize::new(connections),
            requests: AtomicU64::new(0),
            served: AtomicUsize::new(0),
        });
        let client = |_| {
            let (shared, connect) = (Arc::clone(&shared), connect.clone());
            std::thread::spawn(move || {
                let mut connection = connect();
                shared.in_flight.fetch_sub(1, Ordering::Relaxed);
                shared.served.fetch_add(1, Ordering::Relaxed);
                shared.run(&mut connection, pause)
            })
        };
        let threads = (0..connections).map(client).collect();
        Self { shared, threads }
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
        self.shared.in_flight.load(Ordering::Relaxed)
    }

    /// The requests so far.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// Whether each client has had a response.
    pub fn serves_all(&self) -> bool {
        self.shared.served.load(Ordering::Relaxed) == self.threads.len()
    }

    fn set(&self, position: Switch) {
        *self.shared.switch.lock().unwrap() = position;
        self.shared.switched.notify_all();
    }

    /// Ends the load, and returns the number of its requests.
    ///
    /// # Panics
    /// If one was lost.
    pub fn end(self) -> u64 {
        self.end_with_times().len() as u64
    }

    /// As [`end`](Self::end), but returns how long each request took.
    pub fn end_with_times(mut self) -> Vec<Duration> {
        self.set(Switch::End);
        self.threads.drain(..).flat_map(|thread| thread.join().expect("no request is lost")).collect()
    }
}

/// Before the server is dropped, if a test fails. Requests may be lost.
impl Drop for Load {
    fn drop(&mut self) {
        self.set(Switch::End);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

impl Shared {
    fn run(&self, connection: &mut Connection, pause: Duration) -> Vec<Duration> {
        let mut times = Vec::new();
        loop {
            let is_off = |position: &mut Switch| *position == Switch::Off;
            let position = self.switched.wait_while(self.switch.lock().unwrap(), is_off).unwrap();
            if *position == Switch::End {
                return times;
            }
            // Under the lock: whoever switches off sees it.
            self.in_flight.fetch_add(1, Ordering::Relaxed);
            drop(position);
            times.push(connection.request());
            self.in_flight.fetch_sub(1, Ordering::Relaxed);
            self.requests.fetch_add(1, Ordering::Relaxed);
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
        }
    }
}
