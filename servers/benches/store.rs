//! Compares the store with other caches: `cargo bench -p lull-servers`.
//!
//! Each candidate runs the same accesses (Zipf 0.99 over a million keys of 30 bytes, values of 200 bytes, a
//! limit of 64 MB) in interleaved rounds. Prints medians with minimum and maximum. There are two loads: reads
//! with writes, where a miss is followed by a write, and reads alone. Then follows the hit ratio at several
//! sizes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};
use servers::memcached::{ItemBits, NewItem, Store, StoreConfig};

const KEYS: u64 = 1_000_000;
const LIMIT: u64 = 64 << 20;
const ROUNDS: usize = 5;
const TIME: Duration = Duration::from_millis(800);

trait Candidate: Sync {
    /// Copies the value to `out`, as a reply would. Returns whether it was found.
    fn get(&self, key: &[u8], out: &mut Vec<u8>) -> bool;
    fn set(&self, key: &[u8], value: &[u8]);
}

#[derive(Clone)]
struct ByteWeighter;

impl quick_cache::Weighter<Box<[u8]>, Arc<[u8]>> for ByteWeighter {
    fn weight(&self, key: &Box<[u8]>, value: &Arc<[u8]>) -> u64 {
        (key.len() + value.len() + 150) as u64
    }
}

struct QuickCache(quick_cache::sync::Cache<Box<[u8]>, Arc<[u8]>, ByteWeighter>);

impl Candidate for QuickCache {
    fn get(&self, key: &[u8], out: &mut Vec<u8>) -> bool {
        self.0.get(key).map(|value| out.extend_from_slice(&value)).is_some()
    }

    fn set(&self, key: &[u8], value: &[u8]) {
        self.0.insert(key.into(), value.into());
    }
}

struct Moka(moka::sync::Cache<Box<[u8]>, Arc<[u8]>>);

impl Candidate for Moka {
    fn get(&self, key: &[u8], out: &mut Vec<u8>) -> bool {
        self.0.get(key).map(|value| out.extend_from_slice(&value)).is_some()
    }

    fn set(&self, key: &[u8], value: &[u8]) {
        self.0.insert(key.into(), value.into());
    }
}

struct LullStore(Store);

impl Candidate for LullStore {
    fn get(&self, key: &[u8], out: &mut Vec<u8>) -> bool {
        let mut entry = self.0.lock(key, 1);
        entry.record_fetch();
        entry.value().map(|(_, value)| out.extend_from_slice(value.bytes())).is_some()
    }

    fn set(&self, key: &[u8], value: &[u8]) {
        let new = NewItem {
            flags: 0,
            expiry: 0,
            cas: self.0.next_cas(),
            bits: ItemBits::default(),
            value: value.into(),
        };
        // Fails only for a value above half of the limit.
        let _ = self.0.lock(key, 1).put(new);
    }
}

fn candidates(limit: u64) -> Vec<(&'static str, Box<dyn Candidate>)> {
    let quick = quick_cache::sync::Cache::with_weighter((limit / 300) as usize, limit, ByteWeighter);
    let moka = moka::sync::Cache::<Box<[u8]>, Arc<[u8]>>::builder()
        .weigher(|key, value| (key.len() + value.len() + 150) as u32)
        .max_capacity(limit)
        .build();
    let store =
        Store::new(StoreConfig { memory: limit, max_item: 1 << 20, evict: true, cas: true, workers: 2 });
    vec![
        ("store", Box::new(LullStore(store))),
        ("quick_cache", Box::new(QuickCache(quick))),
        ("moka", Box::new(Moka(moka))),
    ]
}

/// Returns the operations per second of all threads together, and the hit ratio.
fn run(candidate: &dyn Candidate, threads: u64, seed: u64, reads: f64, keys: &[Vec<u8>]) -> (f64, f64) {
    let value = [7; 200];
    let totals = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(seed * 1000 + thread);
                    let zipf = Zipf::new(KEYS as f64, 0.99).expect("a valid exponent");
                    // Drawn in advance, so that drawing is not measured.
                    let draws: Vec<(u32, bool)> = (0..200_000)
                        .map(|_| (zipf.sample(&mut random) as u32 - 1, random.random::<f64>() < reads))
                        .collect();
                    let (mut done, mut gets, mut hits) = (0u64, 0u64, 0u64);
                    let mut out = Vec::with_capacity(1 << 20);
                    let start = Instant::now();
                    while start.elapsed() < TIME {
                        for (key, read) in &draws {
                            let key = &keys[*key as usize];
                            out.clear();
                            gets += u64::from(*read);
                            if *read && candidate.get(key, &mut out) {
                                hits += 1;
                            } else {
                                candidate.set(key, &value);
                            }
                        }
                        done += draws.len() as u64;
                    }
                    (done as f64 / start.elapsed().as_secs_f64(), gets, hits)
                })
            })
            .collect();
        handles.into_iter().map(|handle| handle.join().expect("a bench thread")).collect::<Vec<_>>()
    });
    let gets: u64 = totals.iter().map(|total| total.1).sum();
    let hits: u64 = totals.iter().map(|total| total.2).sum();
    (totals.iter().map(|total| total.0).sum(), hits as f64 / gets.max(1) as f64)
}

fn hit_ratio(candidate: &dyn Candidate, keys: &[Vec<u8>]) -> f64 {
    let mut random = StdRng::seed_from_u64(7);
    let zipf = Zipf::new(KEYS as f64, 0.99).expect("a valid exponent");
    let (mut hits, mut out) = (0u64, Vec::new());
    const COUNTED: u64 = 4_000_000;
    for access in 0..2 * COUNTED {
        let key = &keys[zipf.sample(&mut random) as usize - 1];
        out.clear();
        if candidate.get(key, &mut out) {
            hits += u64::from(access >= COUNTED);
        } else {
            candidate.set(key, &[7; 200]);
        }
    }
    hits as f64 / COUNTED as f64
}

fn main() {
    let keys: Vec<Vec<u8>> = (1..=KEYS).map(|key| format!("{key:030}").into_bytes()).collect();
    for (load, reads) in [("reads and writes", 0.9), ("reads", 1.0)] {
        for threads in [1, 2] {
            let candidates = candidates(LIMIT);
            let mut rates = vec![Vec::new(); candidates.len()];
            for round in 0..=ROUNDS {
                for (index, (_, candidate)) in candidates.iter().enumerate() {
                    let (rate, _) = run(&**candidate, threads, 1 + round as u64 % 2, reads, &keys);
                    // The first round fills the cache.
                    if round > 0 {
                        rates[index].push(rate / 1e6);
                    }
                }
            }
            for (rates, (name, _)) in rates.iter_mut().zip(&candidates) {
                rates.sort_by(f64::total_cmp);
                println!(
                    "{load:<17} {threads} threads  {name:<12} {:>6.2} M operations/s [{:.2}, {:.2}]",
                    rates[ROUNDS / 2],
                    rates[0],
                    rates[ROUNDS - 1]
                );
            }
        }
    }
    // Limits from 1 % to 50 % of the memory that all items would take.
    for share in [1, 5, 10, 25, 50] {
        let limit = KEYS * 290 * share / 100;
        for (name, candidate) in candidates(limit) {
            let ratio = hit_ratio(&*candidate, &keys);
            println!("hit ratio at {share:>2} % of the data  {name:<12} {ratio:.4}");
        }
    }
}
