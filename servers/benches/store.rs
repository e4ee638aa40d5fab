//! The store beside caches from the registry: `cargo bench -p lull-servers`.
//!
//! Each candidate runs the same accesses (Zipf 0.99 over a million keys of 30 bytes, values of 200 bytes, a
//! limit of 64 MB) in interleaved rounds; medians, with the extremes. Two loads: reads with writes, where a
//! miss is followed by a write, and reads alone. Then the hit ratio at several sizes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};
use servers::memcached::{Bits, Limits, New, Store};

const KEYS: u64 = 1_000_000;
const LIMIT: u64 = 64 << 20;
const ROUNDS: usize = 5;
const TIME: Duration = Duration::from_millis(800);

trait Candidate: Sync {
    /// Copies the value out, as an answer needs it.
    fn get(&self, key: &[u8], out: &mut Vec<u8>) -> bool;
    fn set(&self, key: &[u8], value: &[u8]);
}

#[derive(Clone)]
struct Bytes;

impl quick_cache::Weighter<Box<[u8]>, Arc<[u8]>> for Bytes {
    fn weight(&self, key: &Box<[u8]>, value: &Arc<[u8]>) -> u64 {
        (key.len() + value.len() + 150) as u64
    }
}

struct Quick(quick_cache::sync::Cache<Box<[u8]>, Arc<[u8]>, Bytes>);

impl Candidate for Quick {
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

struct Ours(Store);

impl Candidate for Ours {
    fn get(&self, key: &[u8], out: &mut Vec<u8>) -> bool {
        let mut slot = self.0.lock(key, 1);
        slot.touch();
        slot.value().map(|(_, value)| out.extend_from_slice(value.bytes())).is_some()
    }

    fn set(&self, key: &[u8], value: &[u8]) {
        let new =
            New { flags: 0, expiry: 0, cas: self.0.next_cas(), bits: Bits::default(), value: value.into() };
        // Only a value of half the memory is refused.
        let _ = self.0.lock(key, 1).put(new);
    }
}

fn candidates(limit: u64) -> Vec<(&'static str, Box<dyn Candidate>)> {
    let quick = quick_cache::sync::Cache::with_weighter((limit / 300) as usize, limit, Bytes);
    let moka = moka::sync::Cache::<Box<[u8]>, Arc<[u8]>>::builder()
        .weigher(|key, value| (key.len() + value.len() + 150) as u32)
        .max_capacity(limit)
        .build();
    let ours = Store::new(Limits { memory: limit, item: 1 << 20, evict: true, workers: 2 });
    vec![
        ("store", Box::new(Ours(ours))),
        ("quick_cache", Box::new(Quick(quick))),
        ("moka", Box::new(Moka(moka))),
    ]
}

/// Operations a second of all threads together, and the hit ratio.
fn run(candidate: &dyn Candidate, threads: u64, seed: u64, reads: f64, keys: &[Vec<u8>]) -> (f64, f64) {
    let value = [7; 200];
    let totals = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(seed * 1000 + thread);
                    let zipf = Zipf::new(KEYS as f64, 0.99).expect("a valid exponent");
                    // Drawn before, or the drawing would be measured.
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
                    // The first fills the cache.
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
    // One per cent to a half of what all items would take.
    for share in [1, 5, 10, 25, 50] {
        let limit = KEYS * 290 * share / 100;
        for (name, candidate) in candidates(limit) {
            let ratio = hit_ratio(&*candidate, &keys);
            println!("hit ratio at {share:>2} % of the data  {name:<12} {ratio:.4}");
        }
    }
}
