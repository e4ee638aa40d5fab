//! What is checked at intervals, while no request is in flight.

use std::time::{Duration, Instant};

use super::MEMORY_MIB;
use super::client::{Client, KEYS};
use crate::memcached::Memcached;

/// Memory beside the store's: buffers of connections, and what the allocator keeps. In KiB.
const OTHER_MEMORY_KIB: u64 = 16 << 10;
/// Descriptors that may be open for a moment: those of the checks' own connections, and of connections that have just
/// been closed.
const OTHER_DESCRIPTORS: u64 = 8;
/// Closed connections, and items that have expired, are to be gone after this time.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Baseline {
    resident_kib: u64,
    descriptors: u64,
    connections: u64,
}

impl Baseline {
    /// With `connections` open ones.
    pub fn of(server: &Memcached, connections: u64) -> Self {
        Self { resident_kib: server.resident_kib(), descriptors: server.descriptors(), connections }
    }
}

pub fn check(server: &Memcached, baseline: &Baseline, client: &mut Client) -> Result<String, String> {
    let errors = server.standard_error();
    if errors.contains("panicked") {
        return Err(format!("the server has panicked:\n{errors}"));
    }
    let most = baseline.resident_kib + MEMORY_MIB * 1024 * 105 / 100 + OTHER_MEMORY_KIB;
    let resident = server.resident_kib();
    if resident > most {
        return Err(format!("{resident} KiB are resident, and {most} KiB are allowed"));
    }
    let bytes = server.stat("bytes");
    if bytes > MEMORY_MIB << 20 {
        return Err(format!("the store has {bytes} bytes, and its limit is {MEMORY_MIB} MiB"));
    }
    let most = baseline.descriptors + OTHER_DESCRIPTORS;
    let descriptors = until(|| server.descriptors(), |open| *open <= most)
        .map_err(|open| format!("{open} descriptors are open, and {most} are allowed"))?;
    // One more asks.
    let most = baseline.connections + 1;
    until(|| server.stat("curr_connections"), |open| *open <= most)
        .map_err(|open| format!("{open} connections are counted, and {most} are open"))?;
    // Expired items are counted until their memory is freed, and are not listed.
    let listed = until(|| (dumped(server), server.stat("curr_items")), |(dumped, items)| dumped == items)
        .map_err(|(dumped, items)| format!("{dumped} keys are listed, and curr_items is {items}"))?
        .0;
    let (evictions, lost) = (server.stat("evictions"), client.model.lost);
    if lost > evictions {
        return Err(format!("{lost} values were lost, and {evictions} evicted"));
    }
    let (operations, hits) = (client.operations, client.model.hits);
    // In the first thousands of operations few of the keys have a value, in the first hundreds almost none.
    if operations > KEYS && hits * 40 < operations {
        return Err(format!("only {hits} of {operations} operations have found a value"));
    }
    let (flushes, reconnects) = (client.flushes, client.reconnects);
    Ok(format!(
        "operations {operations}, hits {hits}, evictions {evictions}, lost {lost}, flushes {flushes}, \
         reconnects {reconnects}, items {listed}, bytes {bytes}, resident {resident} KiB, descriptors {descriptors}"
    ))
}

fn dumped(server: &Memcached) -> u64 {
    let list = server.talk(b"lru_crawler metadump all\r\n");
    list.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"key=")).count() as u64
}

/// Waits until a figure holds. Returns it, or the last one that did not.
fn until<T>(figure: impl Fn() -> T, holds: impl Fn(&T) -> bool) -> Result<T, T> {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let now = figure();
        if holds(&now) {
            return Ok(now);
        }
        if Instant::now() > give_up {
            return Err(now);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
