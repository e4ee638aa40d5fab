//! Storing the records that are asked for later.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures_util::{AsyncReadExt, AsyncWriteExt};

use crate::address::Address;
use crate::answers::{Answer, Sink};
use crate::config::{Config, Protocol};
use crate::decoder::Decoder;
use crate::error::Error;
use crate::requests::Requests;
use crate::run::LOOK;
use crate::transport::{Connector, Wire};

/// Records that are under way at once on a connection: neither side has to hold much, however many there
/// are in all.
const BATCH: u64 = 64;

/// Stores every record of the workload once, on each server.
///
/// # Errors
/// Where a server can't be reached, or refuses a record.
pub async fn load_records(config: &Config) -> Result<(), Error> {
    load_records_with(config, &AtomicBool::new(false), |_| {}).await
}

/// Likewise, until `stop` is set; tells ten times a second how many are stored by now.
///
/// # Errors
/// As [`load_records`].
pub async fn load_records_with(
    config: &Config,
    stop: &AtomicBool,
    mut progress: impl FnMut(u64),
) -> Result<(), Error> {
    config.check()?;
    let ended = Arc::new(AtomicBool::new(false));
    let stored = Arc::new(AtomicU64::new(0));
    let workers = runtime::workers();
    for server in &config.servers {
        let mut handles = Vec::new();
        for worker in 0..workers {
            let (config, server) = (config.clone(), server.clone());
            let (stored, ended) = (Arc::clone(&stored), Arc::clone(&ended));
            handles.push(runtime::spawn_on(worker, move || async move {
                let wire = Connector::to_load(&config)?.connect(&server).await?;
                store_share(&config, wire, worker, &stored, &ended).await
            }));
        }
        let mut refused = 0;
        for mut handle in handles {
            refused += loop {
                match runtime::timeout(LOOK, &mut handle).await {
                    Ok(result) => break result??,
                    Err(_) => {
                        progress(stored.load(Ordering::Relaxed));
                        ended.fetch_or(stop.load(Ordering::Relaxed), Ordering::Relaxed);
                    }
                }
            };
        }
        not_refused(server, refused, config.workload.records)?;
    }
    Ok(())
}

fn not_refused(server: &Address, refused: u64, records: u64) -> Result<(), Error> {
    if refused == 0 { Ok(()) } else { Err(Error::NotStored { server: server.clone(), refused, records }) }
}

/// Stores a worker's share of the records, and returns how many were refused.
async fn store_share(
    config: &Config,
    mut stream: Wire,
    worker: usize,
    stored: &AtomicU64,
    ended: &AtomicBool,
) -> Result<u64, Error> {
    let workers = runtime::workers() as u64;
    let share =
        |worker: u64| (u128::from(config.workload.records) * u128::from(worker) / u128::from(workers)) as u64;
    let (first, end) = (share(worker as u64), share(worker as u64 + 1));
    let seed = config.seed.wrapping_add(worker as u64);
    let binary = config.protocol == Protocol::Binary;
    let mut requests = Requests::new(&config.workload, binary, seed, worker as u64, workers);
    let (mut out, mut buffer) = (Vec::new(), vec![0; 16 << 10]);
    let mut answers = Decoder::new(binary);
    let mut counted = Stored::default();
    let mut next = first;
    while next < end && !ended.load(Ordering::Relaxed) {
        let batch_end = (next + BATCH).min(end);
        for record in next..batch_end {
            requests.set(record, &mut out);
            counted.asked += 1;
            if requests.has_counters() {
                requests.set_counter(record, &mut out);
                counted.asked += 1;
            }
        }
        stream.write_all(&out).await.map_err(Error::Connection)?;
        stream.flush().await.map_err(Error::Connection)?;
        out.clear();
        while counted.asked > 0 {
            let read = runtime::timeout(LOOK, stream.read(&mut buffer)).await;
            let Ok(read) = read else {
                // A server that has stopped answering doesn't keep an interrupt from being heard.
                if ended.load(Ordering::Relaxed) {
                    return Ok(counted.refused);
                }
                continue;
            };
            let length = read.map_err(Error::Connection)?;
            if length == 0 {
                return Err(Error::Connection(io::ErrorKind::UnexpectedEof.into()));
            }
            answers.feed(&buffer[..length], &mut counted)?;
        }
        stored.fetch_add(batch_end - next, Ordering::Relaxed);
        next = batch_end;
    }
    Ok(counted.refused)
}

#[derive(Default)]
struct Stored {
    asked: u64,
    refused: u64,
}

impl Sink for Stored {
    fn answer(&mut self, answer: Answer) -> Result<(), Error> {
        let left = self.asked.checked_sub(1);
        let unasked = || Error::Protocol("an answer came that nothing was asked for".to_owned());
        self.asked = left.ok_or_else(unasked)?;
        self.refused += u64::from(answer != Answer::Done);
        Ok(())
    }
}
