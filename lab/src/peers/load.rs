//! The load of an echo server: a closed loop, the same for every server.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_util::{AsyncBufReadExt, AsyncWriteExt};
use hdrhistogram::Histogram;
use net::TcpStream;
use policies::Cpus;
use policies::thread_time::thread_cpu_time;
use runtime::{Builder, DriverKind};
use serde::{Deserialize, Serialize};

use super::descriptor_limit;
use super::request_shape::RequestShape;
use super::service::{ANSWERS_WITHIN, PeerService};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EchoLoadSpec {
    pub server: SocketAddr,
    pub core: u32,
    pub service: PeerService,
    pub shape: RequestShape,
    pub connections: usize,
    pub warm_up: f64,
    /// Seconds of measurement. With 0 the connections are opened and stay idle.
    pub duration: f64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EchoMeasurement {
    pub replies: u64,
    pub seconds: f64,
    /// 99th percentile of the latency, µs.
    pub p99_us: f64,
    /// CPU time of the load's thread over elapsed time, 0 to 1.
    pub busy: f64,
}

/// The histogram's range in nanoseconds, one minute; its resolution is 0.1 %.
const LONGEST_LATENCY: u64 = 60_000_000_000;

/// What the connections' tasks share.
struct LoadState {
    measuring: Cell<bool>,
    stop: Cell<bool>,
    replies: Cell<u64>,
    latencies: RefCell<Histogram<u64>>,
}

/// Generates the load. Calls `begin` when the measurement begins, or when the idle connections are open; with a
/// duration of 0 it never returns.
pub fn load(spec: &EchoLoadSpec, mut begin: impl FnMut() -> io::Result<()>) -> io::Result<EchoMeasurement> {
    descriptor_limit::raise()?;
    let builder = Builder::new().ignore_environment().workers(1).cores(Cpus::one(spec.core));
    let mut runtime = builder.driver(DriverKind::Auto).build().map_err(io::Error::other)?;
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    runtime.block_on(async {
        let state = Rc::new(LoadState {
            measuring: Cell::new(false),
            stop: Cell::new(false),
            replies: Cell::new(0),
            latencies: RefCell::new(
                Histogram::new_with_bounds(1, LONGEST_LATENCY, 3).map_err(io::Error::other)?,
            ),
        });
        let mut streams = Vec::with_capacity(spec.connections);
        for _ in 0..spec.connections {
            let stream = TcpStream::connect(spec.server).await?;
            stream.set_nodelay(true)?;
            streams.push(stream);
        }
        if spec.duration == 0.0 {
            // Leaves the server time to accept them.
            runtime::sleep(Duration::from_millis(300)).await;
            begin()?;
            std::future::pending::<()>().await;
        }
        let tasks: Vec<_> = streams
            .into_iter()
            .map(|stream| runtime::spawn(exchange(stream, spec.service, spec.shape, Rc::clone(&state))))
            .collect();
        runtime::sleep(Duration::from_secs_f64(spec.warm_up)).await;
        begin()?;
        let (begun, cpu) = (Instant::now(), thread_cpu_time(thread)?);
        state.measuring.set(true);
        runtime::sleep(Duration::from_secs_f64(spec.duration)).await;
        state.measuring.set(false);
        let (seconds, cpu) = (begun.elapsed().as_secs_f64(), thread_cpu_time(thread)? - cpu);
        state.stop.set(true);
        for task in tasks {
            let ended = runtime::timeout(ANSWERS_WITHIN, task).await.map_err(|_| no_answer())?;
            ended.map_err(|error| io::Error::other(error.to_string()))??;
        }
        let p99_us = state.latencies.borrow().value_at_quantile(0.99) as f64 / 1e3;
        let replies = state.replies.get();
        Ok(EchoMeasurement { replies, seconds, p99_us, busy: cpu.as_secs_f64() / seconds })
    })
}

fn no_answer() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the server has not answered within 5 s")
}

/// Sends requests and awaits their replies until the load stops.
async fn exchange(
    mut stream: TcpStream,
    service: PeerService,
    shape: RequestShape,
    state: Rc<LoadState>,
) -> io::Result<()> {
    let requests = service.request(shape).repeat(shape.depth);
    while !state.stop.get() {
        let sent = Instant::now();
        stream.write_all(&requests).await?;
        let mut left = shape.reply * shape.depth;
        while left > 0 {
            let length = stream.fill_buf().await?.len();
            if length == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed a connection"));
            }
            let too_much = || io::Error::other("the server sent more than it was asked for");
            left = left.checked_sub(length).ok_or_else(too_much)?;
            stream.consume_unpin(length);
        }
        if state.measuring.get() {
            state.replies.set(state.replies.get() + shape.depth as u64);
            let nanos = u64::try_from(sent.elapsed().as_nanos()).unwrap_or(u64::MAX);
            state.latencies.borrow_mut().saturating_record(nanos);
        }
    }
    Ok(())
}
