//! o(b): the CPU time of the kernel's path for requests with replies of b bytes.
//!
//! Two threads, one on the server's core and one on the client's, exchange messages over TCP on
//! loopback and do nothing else. The client sends a request on each connection before it reads the
//! replies, so neither thread sleeps between two requests while there is work, as a loaded server
//! doesn't.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use policies::Cpus;
use policies::thread_time::this_thread_cpu_time;

use crate::cores::CoreAssignment;

pub(super) const REQUEST: usize = 64;
pub(super) const SIZES: [usize; 7] = [64, 512, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Connections, each with a request in flight.
const CONNECTIONS: usize = 16;
/// Passes over all connections that are not measured.
const WARM_UP: usize = 2;
const PATIENCE: Duration = Duration::from_secs(5);
/// The first byte of a request that is one of the last pass, after which the server stops.
const LAST: u8 = 1;

fn set_up(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

#[derive(Debug)]
pub(super) struct Clients(Vec<TcpStream>);

impl Clients {
    pub(super) fn connect(server: SocketAddr) -> io::Result<Self> {
        (0..CONNECTIONS).map(|_| set_up(TcpStream::connect(server)?)).collect::<io::Result<_>>().map(Self)
    }

    /// Sends this request, and reads replies of `reply` bytes, for `duration`, on a core. The last
    /// pass sends `last`. Returns the number of requests.
    pub(super) fn load(
        &mut self,
        core: u32,
        [request, last]: [&[u8]; 2],
        reply: usize,
        duration: Duration,
    ) -> io::Result<u64> {
        let streams = &mut self.0;
        let on_core = || {
            Cpus::one(core).pin(None)?;
            load(streams, [request, last], &mut vec![0; reply], duration)
        };
        // A new thread: the caller keeps its affinity.
        thread::scope(|scope| scope.spawn(on_core).join()).unwrap_or_else(|_| Err(panicked()))
    }
}

fn panicked() -> io::Error {
    io::Error::other("a thread of the exchange panicked")
}

#[derive(Debug)]
pub(super) struct Connections {
    server: Vec<TcpStream>,
    clients: Clients,
    cores: CoreAssignment,
}

impl Connections {
    pub(super) fn open(cores: CoreAssignment) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let clients = Clients::connect(listener.local_addr()?)?;
        let server = (0..CONNECTIONS).map(|_| set_up(listener.accept()?.0)).collect::<io::Result<_>>()?;
        Ok(Self { server, clients, cores })
    }

    /// Exchanges requests and replies of `bytes` for about `duration`. Returns the CPU time in µs
    /// and the system calls of the server's thread per request.
    pub(super) fn measure(&mut self, bytes: usize, duration: Duration) -> io::Result<[f64; 2]> {
        let Self { cores, server, clients } = self;
        let (server, client) = thread::scope(|scope| {
            let server = scope.spawn(|| {
                Cpus::one(cores.server).pin(None)?;
                serve(server, bytes)
            });
            let (request, mut last) = ([0; REQUEST], [0; REQUEST]);
            last[0] = LAST;
            let client = clients.load(cores.client, [&request, &last], bytes, duration);
            (server.join().unwrap_or_else(|_| Err(panicked())), client)
        });
        // A server whose client failed has only seen a timeout.
        client?;
        server
    }
}

/// Answers the connections in turns until the last pass.
fn serve(streams: &mut [TcpStream], bytes: usize) -> io::Result<[f64; 2]> {
    let (mut request, mut reply) = ([0; REQUEST], vec![b'a'; bytes]);
    let (mut calls, mut requests, mut begun) = (0, 0, this_thread_cpu_time());
    for pass in 0.. {
        if pass == WARM_UP {
            (calls, requests, begun) = (0, 0, this_thread_cpu_time());
        }
        for stream in &mut *streams {
            calls += transfer(&mut request, |part| stream.read(part))?;
            calls += transfer(&mut reply, |part| stream.write(part))?;
            requests += 1;
        }
        if request[0] == LAST {
            break;
        }
    }
    let cpu_us = (this_thread_cpu_time() - begun).as_secs_f64() * 1e6;
    Ok([cpu_us, f64::from(calls)].map(|sum| sum / f64::from(requests)))
}

/// Sends a request on each connection, then reads all replies, for `duration`, and at least once
/// after the warm-up.
fn load(
    streams: &mut [TcpStream],
    [request, last]: [&[u8]; 2],
    reply: &mut [u8],
    duration: Duration,
) -> io::Result<u64> {
    let (mut requests, mut begun) = (0, Instant::now());
    for pass in 0.. {
        if pass == WARM_UP {
            begun = Instant::now();
        }
        let is_last = pass >= WARM_UP && begun.elapsed() >= duration;
        for stream in &mut *streams {
            stream.write_all(if is_last { last } else { request })?;
        }
        for stream in &mut *streams {
            stream.read_exact(reply)?;
        }
        requests += streams.len() as u64;
        if is_last {
            break;
        }
    }
    Ok(requests)
}

/// Reads or writes all of a buffer. Returns the number of system calls.
fn transfer(mut buffer: &mut [u8], mut call: impl FnMut(&mut [u8]) -> io::Result<usize>) -> io::Result<u32> {
    let mut calls = 0;
    while !buffer.is_empty() {
        calls += 1;
        match call(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => buffer = &mut buffer[length..],
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
            let [cpu_us, calls] = connections.measure(bytes, Duration::from_millis(20)).unwrap();
            assert!(cpu_us > 0.0 && calls >= 2.0, "{cpu_us} µs, {calls}");
            assert!(bytes > 64 || calls == 2.0, "{calls}");
        }
    }

    #[test]
    fn a_client_that_has_gone_is_an_error_and_no_hang() {
        let mut connections = Connections::open(CoreAssignment::choose().unwrap()).unwrap();
        connections.clients.0.iter().for_each(|it| it.shutdown(std::net::Shutdown::Both).unwrap());
        assert!(connections.measure(64, Duration::from_millis(5)).is_err());
    }
}
