//! Stores the records before a run.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::{AsyncReadExt, AsyncWriteExt};

use crate::address::Address;
use crate::config::Config;
use crate::error::Error;
use crate::protocol::ResponseDecoder;
use crate::protocol::message::{Response, ResponseSink};
use crate::protocol::request_writer::RequestWriter;
use crate::run::schedule::POLL_INTERVAL;
use crate::transport::{BoxedTransport, Connector};

/// Records in flight on a connection, which bounds the buffers of both sides.
const BATCH: u64 = 64;

/// How long a server may answer nothing, or take nothing.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Stores every record of the workload once on each server.
///
/// # Errors
/// Returns an error if the configuration is invalid, a server can't be reached, answers nothing for
/// ten seconds, or refuses a record.
pub async fn load_records(config: &Config) -> Result<(), Error> {
    load_records_with(config, &AtomicBool::new(false), |_| {}).await
}

/// Stores every record of the workload once on each server, until `stop` is set. Calls `progress`
/// with the number of stored records ten times per second.
pub async fn load_records_with(
    config: &Config,
    stop: &AtomicBool,
    mut progress: impl FnMut(u64),
) -> Result<(), Error> {
    config.validate()?;
    let stopping = Arc::new(AtomicBool::new(false));
    let stored = Arc::new(AtomicU64::new(0));
    let workers = runtime::workers();
    for server in &config.servers {
        let mut handles = Vec::new();
        for worker in 0..workers {
            // Small batches would wait for acknowledgements.
            let (config, server) = (Config { nodelay: true, ..config.clone() }, server.clone());
            let (stored, stopping) = (Arc::clone(&stored), Arc::clone(&stopping));
            handles.push(runtime::spawn_on(worker, move || async move {
                let stream = Connector::new(&config)?.connect(&server).await?;
                store_share(&config, &server, stream, worker, &stored, &stopping).await
            }));
        }
        let mut refused = 0;
        for mut handle in handles {
            refused += loop {
                match runtime::timeout(POLL_INTERVAL, &mut handle).await {
                    Ok(result) => break result??,
                    Err(_) => {
                        progress(stored.load(Ordering::Relaxed));
                        stopping.fetch_or(stop.load(Ordering::Relaxed), Ordering::Relaxed);
                    }
                }
            };
        }
        if refused > 0 {
            let records = config.workload.records;
            return Err(Error::NotStored { server: server.clone(), refused, records });
        }
    }
    Ok(())
}

/// Stores a worker's share of the records, and returns how many the server refused.
async fn store_share(
    config: &Config,
    server: &Address,
    mut stream: BoxedTransport,
    worker: usize,
    stored: &AtomicU64,
    stopping: &AtomicBool,
) -> Result<u64, Error> {
    let workers = runtime::workers() as u64;
    let share_start =
        |worker: u64| (u128::from(config.workload.records) * u128::from(worker) / u128::from(workers)) as u64;
    let (first, end) = (share_start(worker as u64), share_start(worker as u64 + 1));
    let seed = config.seed.wrapping_add(worker as u64);
    let protocol = config.protocol;
    let mut requests = RequestWriter::new(&config.workload, protocol, seed, worker as u64, workers);
    let (mut out, mut buffer) = (Vec::new(), vec![0; 16 << 10]);
    let mut decoder = ResponseDecoder::new(protocol);
    let mut counter = StoreCounter::default();
    let mut next = first;
    while next < end && !stopping.load(Ordering::Relaxed) {
        let batch_end = (next + BATCH).min(end);
        for record in next..batch_end {
            requests.set(record, &mut out);
            counter.outstanding += 1;
            if requests.has_counters() {
                requests.set_counter(record, &mut out);
                counter.outstanding += 1;
            }
        }
        let no_answer = || Error::NoAnswer { server: server.clone(), time: ANSWER_TIMEOUT };
        let write = async {
            stream.write_all(&out).await?;
            stream.flush().await
        };
        let written = runtime::timeout(ANSWER_TIMEOUT, write).await.map_err(|_| no_answer())?;
        written.map_err(Error::Connection)?;
        out.clear();
        let mut answered = Instant::now();
        while counter.outstanding > 0 {
            let read = runtime::timeout(POLL_INTERVAL, stream.read(&mut buffer)).await;
            let Ok(read) = read else {
                // An interrupt must work even if the server doesn't respond.
                if stopping.load(Ordering::Relaxed) {
                    return Ok(counter.refused);
                }
                if answered.elapsed() >= ANSWER_TIMEOUT {
                    return Err(no_answer());
                }
                continue;
            };
            answered = Instant::now();
            let length = read.map_err(Error::Connection)?;
            if length == 0 {
                return Err(Error::Connection(io::ErrorKind::UnexpectedEof.into()));
            }
            decoder.feed(&buffer[..length], &mut counter)?;
        }
        stored.fetch_add(batch_end - next, Ordering::Relaxed);
        next = batch_end;
    }
    Ok(counter.refused)
}

#[derive(Default)]
struct StoreCounter {
    outstanding: u64,
    refused: u64,
}

impl ResponseSink for StoreCounter {
    fn response(&mut self, response: Response) -> Result<(), Error> {
        let left = self.outstanding.checked_sub(1);
        let unexpected = || Error::Protocol("received a response without a request".to_owned());
        self.outstanding = left.ok_or_else(unexpected)?;
        self.refused += u64::from(response != Response::Done);
        Ok(())
    }
}
