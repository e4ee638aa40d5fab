//! o(b): the CPU time of the kernel's path for requests with replies of b bytes.
//!
//! Two threads, one on the server's core and one on the client's, exchange messages over TCP on loopback and do nothing else. The
//! client sends a request on each connection before it reads the replies, so neither thread sleeps between two requests
//! while there is work, as a loaded server doesn't.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use policies::Cpus;
use policies::thread_time::this_thread_cpu_time;
use serde::Serialize;

use crate::engine::CoreAssignment;

/// Bytes of a request.
pub const REQUEST: usize = 64;
/// The lengths of replies in bytes.
pub const SIZES: [usize; 7] = [64, 512, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Connections, each with a request in flight.
const CONNECTIONS: usize = 16;
/// Passes over all connections that are not measured.
const WARM_UP: usize = 2;
/// How long a read may take before the exchange is given up.
const PATIENCE: Duration = Duration::from_secs(5);

/// One exchange at one size.
#[derive(Debug, Clone, Copy, Serialize)]
#[non_exhaustive]
pub struct PathMeasurement {
    /// Bytes of a reply.
    pub bytes: usize,
    /// Requests that the server has answered after the warm-up.
    pub requests: u64,
    /// CPU time of the server's thread per request, µs.
    pub server_us: f64,
    /// CPU time of both threads per request, µs.
    pub both_us: f64,
    /// System calls of the server's thread per request.
    pub server_calls: f64,
}

/// CPU time and system calls of one end.
#[derive(Debug, Clone, Copy, Default)]
struct EndCost {
    cpu: Duration,
    calls: u64,
    requests: u64,
}

/// The connections of an exchange: the server's ends, and the client's.
#[derive(Debug)]
pub(super) struct Connections {
    server: Vec<TcpStream>,
    client: Vec<TcpStream>,
    cores: CoreAssignment,
}

impl Connections {
    /// Connects over loopback.
    pub(super) fn open(cores: CoreAssignment) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let target = listener.local_addr()?;
        let (mut server, mut client) = (Vec::new(), Vec::new());
        for _ in 0..CONNECTIONS {
            client.push(TcpStream::connect(target)?);
            server.push(listener.accept()?.0);
        }
        for stream in server.iter().chain(&client) {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
        }
        Ok(Self { server, client, cores })
    }

    /// Exchanges requests and replies of `bytes` for about `duration`.
    pub(super) fn measure(&mut self, bytes: usize, duration: Duration) -> io::Result<PathMeasurement> {
        let (cores, server, client) = (self.cores, &mut self.server, &mut self.client);
        let (server, client) = thread::scope(|scope| {
            let server = scope.spawn(|| on_core(cores.server, || serve(server, bytes)));
            let client = scope.spawn(|| on_core(cores.client, || load(client, bytes, duration)));
            let panicked = |_| Err(io::Error::other("a thread of the exchange panicked"));
            let client = client.join().unwrap_or_else(panicked);
            (server.join().unwrap_or_else(panicked), client)
        });
        // A server whose client failed has only seen a timeout.
        let (client, server) = (client?, server?);
        let each = |cpu: Duration| cpu.as_secs_f64() * 1e6 / server.requests.max(1) as f64;
        let calls = |calls: u64| calls as f64 / server.requests.max(1) as f64;
        Ok(PathMeasurement {
            bytes,
            requests: server.requests,
            server_us: each(server.cpu),
            both_us: each(server.cpu + client.cpu),
            server_calls: calls(server.calls),
        })
    }
}

fn on_core<T>(core: u32, action: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    Cpus::one(core).pin(None)?;
    action()
}

/// The first byte of a request that is one of the last pass, after which the server stops.
const LAST: u8 = 1;

/// Answers the connections in turns until the last pass.
fn serve(streams: &mut [TcpStream], bytes: usize) -> io::Result<EndCost> {
    let (mut request, reply) = ([0; REQUEST], vec![b'a'; bytes]);
    let mut cost = EndCost::default();
    let mut begun = this_thread_cpu_time();
    for pass in 0.. {
        if pass == WARM_UP {
            (cost, begun) = (EndCost::default(), this_thread_cpu_time());
        }
        for stream in &mut *streams {
            cost.calls += read_all(stream, &mut request)?;
            cost.calls += write_all(stream, &reply)?;
            cost.requests += 1;
        }
        if request[0] == LAST {
            break;
        }
    }
    cost.cpu = this_thread_cpu_time() - begun;
    Ok(cost)
}

/// Sends a request on each connection, then reads all replies, for `duration`.
fn load(streams: &mut [TcpStream], bytes: usize, duration: Duration) -> io::Result<EndCost> {
    let (mut request, mut reply) = ([0; REQUEST], vec![0; bytes]);
    let mut cost = EndCost::default();
    let (mut begun, mut started) = (this_thread_cpu_time(), Instant::now());
    for pass in 0.. {
        if pass == WARM_UP {
            (cost, begun, started) = (EndCost::default(), this_thread_cpu_time(), Instant::now());
        }
        // At least one pass is measured.
        if pass >= WARM_UP && started.elapsed() >= duration {
            request[0] = LAST;
        }
        for stream in &mut *streams {
            cost.calls += write_all(stream, &request)?;
        }
        for stream in &mut *streams {
            cost.calls += read_all(stream, &mut reply)?;
            cost.requests += 1;
        }
        if request[0] == LAST {
            break;
        }
    }
    cost.cpu = this_thread_cpu_time() - begun;
    Ok(cost)
}

/// Fills `buffer`. Returns the number of system calls.
fn read_all(stream: &mut TcpStream, mut buffer: &mut [u8]) -> io::Result<u64> {
    let mut calls = 0;
    while !buffer.is_empty() {
        calls += 1;
        match stream.read(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => buffer = &mut buffer[length..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(calls)
}

/// Writes all of `bytes`. Returns the number of system calls.
fn write_all(stream: &mut TcpStream, mut bytes: &[u8]) -> io::Result<u64> {
    let mut calls = 0;
    while !bytes.is_empty() {
        calls += 1;
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(length) => bytes = &bytes[length..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_replies_take_one_call_to_receive_and_one_to_send_at_the_server() {
        let mut connections = Connections::open(CoreAssignment::choose().unwrap()).unwrap();
        for bytes in [64, 1 << 20] {
            let measured = connections.measure(bytes, Duration::from_millis(20)).unwrap();
            assert!(measured.requests >= CONNECTIONS as u64, "{measured:?}");
            assert!(measured.server_us > 0.0 && measured.both_us > measured.server_us, "{measured:?}");
            assert!(measured.server_calls >= 2.0, "{measured:?}");
            assert!(bytes > 64 || measured.server_calls == 2.0, "{measured:?}");
        }
    }

    #[test]
    fn a_client_that_has_gone_is_an_error_and_no_hang() {
        let mut connections = Connections::open(CoreAssignment::choose().unwrap()).unwrap();
        connections.client.iter().for_each(|it| it.shutdown(std::net::Shutdown::Both).unwrap());
        assert!(connections.measure(64, Duration::from_millis(5)).is_err());
    }
}
