//! What values of a known length cost their reader: plain reads in a loop (`read_exact`), and `read_exact_owned`, which is woken when
//! the last byte is there.
//!
//! `cargo bench -p lull-net --bench arriving`. A client on one core sends values over loopback in pieces of 16 KiB, at the pace of a
//! link of 10 Gbit/s, and waits for an answer to each; a worker on another core reads them. Polls are those of the reading future. CPU
//! time is the worker thread's, also in the kernel. The two ways take turns on the same connection.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::{AsyncReadExt, AsyncWriteExt};
use net::TcpListener;
use runtime::{Builder, Cpus, DriverKind};
use rustix::time::{ClockId, clock_gettime};

/// A client's writes, in bytes.
const PIECE: usize = 16 << 10;
const PIECE_TIME: Duration = Duration::from_nanos(13_107);
const ROUNDS: usize = 11;
/// Bytes of each way in a round, but one value at least.
const ROUND: usize = 16 << 20;

fn main() -> io::Result<()> {
    let mask = rustix::thread::sched_getaffinity(None)?;
    let cores: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&core| mask.is_set(core)).collect();
    let [client, .., server] = cores[..] else {
        println!("skipped: this needs two cores");
        return Ok(());
    };
    println!("medians of {ROUNDS} rounds; ratio of CPU times: least, median, largest");
    println!(
        "{:8} {:>9} {:>26} {:>30}",
        "", "value", "polls a MiB: plain, owned", "CPU µs a MiB: plain, ratio"
    );
    for driver in [DriverKind::Epoll, DriverKind::Uring] {
        for value in [4 << 10, 64 << 10, 1 << 20, 16 << 20] {
            let (mut plain, owned) = measure(driver, value, client, server)?;
            let mut ratios: Vec<f64> =
                plain.iter().zip(&owned).map(|(plain, owned)| owned.cpu / plain.cpu).collect();
            ratios.sort_by(f64::total_cmp);
            let polls = [&plain, &owned].map(|costs| median(costs.iter().map(|cost| cost.polls)));
            let [least, .., largest] = ratios[..] else { continue };
            println!(
                "{:8} {:>5} KiB {:>13.1} {:>12.1} {:>11.0} {:>6.2} {:>5.2} {:>5.2}",
                driver.to_string(),
                value >> 10,
                polls[0],
                polls[1],
                median(plain.drain(..).map(|cost| cost.cpu)),
                least,
                ratios[ratios.len() / 2],
                largest,
            );
        }
    }
    Ok(())
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// What a MiB has cost.
#[derive(Clone, Copy)]
struct Cost {
    polls: f64,
    /// In microseconds.
    cpu: f64,
}

/// The costs of plain and of owned reads, by round.
fn measure(
    driver: DriverKind,
    value: usize,
    client: usize,
    server: usize,
) -> io::Result<(Vec<Cost>, Vec<Cost>)> {
    let values = (ROUND / value).max(1);
    let builder =
        Builder::new().ignore_environment().workers(1).cores(Cpus::one(server as u32)).driver(driver);
    let mut runtime = builder.build().map_err(io::Error::other)?;
    runtime.block_on(async move {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let sending = runtime::spawn_blocking(move || -> io::Result<()> {
            Cpus::one(client as u32).pin(None)?;
            let mut stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            // The warm-up is a round.
            for _ in 0..2 * (ROUNDS + 1) * values {
                send(&mut stream, value)?;
            }
            Ok(())
        });
        let (mut stream, _) = listener.accept().await?;
        let mut costs = [Vec::new(), Vec::new()];
        let mut buffer = vec![0; value];
        for round in 0..=ROUNDS {
            for (owned, costs) in costs.iter_mut().enumerate() {
                let (begun, mut polls) = (cpu_time(), 0);
                for _ in 0..values {
                    if owned == 1 {
                        let reading = stream.read_exact_owned(std::mem::take(&mut buffer));
                        buffer = counted(reading, &mut polls).await?;
                    } else {
                        counted(stream.read_exact(&mut buffer), &mut polls).await?;
                    }
                    stream.write_all(b".").await?;
                    stream.flush().await?;
                }
                let mebibytes = (values * value) as f64 / f64::from(1 << 20);
                let cpu = (cpu_time() - begun).as_nanos() as f64 / 1e3 / mebibytes;
                if round > 0 {
                    costs.push(Cost { polls: polls as f64 / mebibytes, cpu });
                }
            }
        }
        sending.await.map_err(io::Error::other)??;
        let [plain, owned] = costs;
        Ok((plain, owned))
    })
}

async fn counted<F: Future>(reading: F, polls: &mut usize) -> F::Output {
    let mut reading = pin!(reading);
    std::future::poll_fn(|context| {
        *polls += 1;
        reading.as_mut().poll(context)
    })
    .await
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Sends a value, and waits for the answer.
fn send(stream: &mut TcpStream, value: usize) -> io::Result<()> {
    let piece = [7; PIECE];
    let begun = Instant::now();
    let mut left = value;
    let mut sent = 0;
    while left > 0 {
        while begun.elapsed() < PIECE_TIME * sent {
            std::hint::spin_loop();
        }
        let length = left.min(PIECE);
        stream.write_all(&piece[..length])?;
        left -= length;
        sent += 1;
    }
    stream.read_exact(&mut [0])
}
