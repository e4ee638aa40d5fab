//! The load: closed loop, the same for every server.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_util::{AsyncBufReadExt, AsyncWriteExt};
use hdrhistogram::Histogram;
use net::TcpStream;
use policies::counters::thread_cpu_time;
use runtime::{Builder, DriverKind};
use serde::{Deserialize, Serialize};

use super::{Shape, raise_descriptor_limit};
use policies::Cpus;

/// What load there is to be.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EchoLoad {
    /// The server.
    pub server: SocketAddr,
    /// The core of the load's thread.
    pub core: u32,
    /// Requests and answers.
    pub shape: Shape,
    /// Connections.
    pub connections: usize,
    /// Seconds before measuring.
    pub warm_up: f64,
    /// Seconds of measuring; with 0 the connections are opened, and idle.
    pub duration: f64,
}

/// What a load saw.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EchoSeen {
    /// Answers in the window.
    pub answers: u64,
    /// Seconds of the window.
    pub seconds: f64,
    /// Latency, 99th percentile, µs.
    pub p99_us: f64,
    /// How busy the load's thread was, 0 to 1.
    pub busy: f64,
}

/// Latencies are told apart to 0.1 %, up to a minute.
const LONGEST: u64 = 60_000_000_000;

struct Shared {
    measuring: Cell<bool>,
    stop: Cell<bool>,
    answers: Cell<u64>,
    latencies: RefCell<Histogram<u64>>,
}

/// Makes the load. `begin` is called when the window begins, or the idle connections are open.
pub fn load(order: &EchoLoad, mut begin: impl FnMut() -> io::Result<()>) -> io::Result<EchoSeen> {
    raise_descriptor_limit()?;
    let builder = Builder::new().ignore_environment().workers(1).cores(Cpus::one(order.core));
    let mut runtime = builder.driver(DriverKind::Auto).build().map_err(io::Error::other)?;
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    runtime.block_on(async {
        let shared = Rc::new(Shared {
            measuring: Cell::new(false),
            stop: Cell::new(false),
            answers: Cell::new(0),
            latencies: RefCell::new(Histogram::new_with_bounds(1, LONGEST, 3).map_err(io::Error::other)?),
        });
        let mut streams = Vec::with_capacity(order.connections);
        for _ in 0..order.connections {
            let stream = TcpStream::connect(order.server).await?;
            stream.set_nodelay(true)?;
            streams.push(stream);
        }
        if order.duration == 0.0 {
            // The server may still be accepting.
            runtime::sleep(Duration::from_millis(300)).await;
            begin()?;
            std::future::pending::<()>().await;
        }
        let tasks: Vec<_> = streams
            .into_iter()
            .map(|stream| runtime::spawn(exchange(stream, order.shape, Rc::clone(&shared))))
            .collect();
        runtime::sleep(Duration::from_secs_f64(order.warm_up)).await;
        begin()?;
        let (begun, cpu) = (Instant::now(), thread_cpu_time(thread)?);
        shared.measuring.set(true);
        runtime::sleep(Duration::from_secs_f64(order.duration)).await;
        shared.measuring.set(false);
        let (seconds, cpu) = (begun.elapsed().as_secs_f64(), thread_cpu_time(thread)? - cpu);
        shared.stop.set(true);
        for task in tasks {
            task.await.map_err(|error| io::Error::other(error.to_string()))??;
        }
        let p99_us = shared.latencies.borrow().value_at_quantile(0.99) as f64 / 1e3;
        let answers = shared.answers.get();
        Ok(EchoSeen { answers, seconds, p99_us, busy: cpu.as_secs_f64() / seconds })
    })
}

async fn exchange(mut stream: TcpStream, shape: Shape, shared: Rc<Shared>) -> io::Result<()> {
    let requests = vec![b'r'; shape.request * shape.depth];
    while !shared.stop.get() {
        let sent = Instant::now();
        stream.write_all(&requests).await?;
        let mut left = shape.reply * shape.depth;
        while left > 0 {
            let length = stream.fill_buf().await?.len();
            if length == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed a connection"));
            }
            left =
                left.checked_sub(length).ok_or_else(|| io::Error::other("more came than was asked for"))?;
            stream.consume_unpin(length);
        }
        if shared.measuring.get() {
            shared.answers.set(shared.answers.get() + shape.depth as u64);
            let nanos = u64::try_from(sent.elapsed().as_nanos()).unwrap_or(u64::MAX);
            shared.latencies.borrow_mut().saturating_record(nanos);
        }
    }
    Ok(())
}
