//! Which concurrent cache the store is built on: `cargo bench -p servers`.
//!
//! Each candidate runs the same accesses (Zipf 0.99 over a million keys, 90 % reads, values of 200
//! bytes, a limit of 64 MB) in interleaved rounds; medians, with the extremes, and the hit ratio.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};

const KEYS: u64 = 1_000_000;
const LIMIT: u64 = 64 << 20;
const ROUNDS: usize = 5;
const TIME: Duration = Duration::from_millis(800);

trait Candidate: Sync {
    fn get(&self, key: &[u8]) -> bool;
    fn set(&self, key: &[u8], value: Arc<[u8]>);
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
    fn get(&self, key: &[u8]) -> bool {
        self.0.get(key).is_some()
    }

    fn set(&self, key: &[u8], value: Arc<[u8]>) {
        self.0.insert(key.into(), value);
    }
}

struct Moka(moka::sync::Cache<Box<[u8]>, Arc<[u8]>>);

impl Candidate for Moka {
    fn get(&self, key: &[u8]) -> bool {
        self.0.get(key).is_some()
    }

    fn set(&self, key: &[u8], value: Arc<[u8]>) {
        self.0.insert(key.into(), value);
    }
}

/// Operations a second of all threads together, and the hit ratio.
fn run(candidate: &dyn Candidate, threads: u64, seed: u64) -> (f64, f64) {
    let value: Arc<[u8]> = vec![0; 200].into();
    let totals = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|thread| {
                let value = Arc::clone(&value);
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(seed * 1000 + thread);
                    let zipf = Zipf::new(KEYS as f64, 0.99).expect("a valid exponent");
                    let (mut done, mut gets, mut hits) = (0u64, 0u64, 0u64);
                    let start = Instant::now();
                    while start.elapsed() < TIME {
                        for _ in 0..256 {
                            let key = format!("{:030}", zipf.sample(&mut random) as u64);
                            if random.random::<f64>() < 0.9 {
                                gets += 1;
                                if candidate.get(key.as_bytes()) {
                                    hits += 1;
                                } else {
                                    candidate.set(key.as_bytes(), Arc::clone(&value));
                                }
                            } else {
                                candidate.set(key.as_bytes(), Arc::clone(&value));
                            }
                        }
                        done += 256;
                    }
                    (done, gets, hits)
                })
            })
            .collect();
        handles.into_iter().map(|handle| handle.join().expect("a bench thread")).collect::<Vec<_>>()
    });
    let done: u64 = totals.iter().map(|total| total.0).sum();
    let gets: u64 = totals.iter().map(|total| total.1).sum();
    let hits: u64 = totals.iter().map(|total| total.2).sum();
    (done as f64 / TIME.as_secs_f64(), hits as f64 / gets as f64)
}

fn main() {
    let quick = Quick(quick_cache::sync::Cache::with_weighter(200_000, LIMIT, Bytes));
    let moka = Moka(
        moka::sync::Cache::<Box<[u8]>, Arc<[u8]>>::builder()
            .weigher(|key, value| (key.len() + value.len() + 150) as u32)
            .max_capacity(LIMIT)
            .build(),
    );
    let candidates: [(&str, &dyn Candidate); 2] = [("quick_cache", &quick), ("moka", &moka)];
    for threads in [1, 2] {
        let mut rates = vec![Vec::new(); candidates.len()];
        let mut ratio = vec![0.0; candidates.len()];
        for round in 0..ROUNDS {
            for (index, (_, candidate)) in candidates.iter().enumerate() {
                let (rate, hits) = run(*candidate, threads, round as u64);
                rates[index].push(rate);
                ratio[index] = hits;
            }
        }
        for (index, (name, _)) in candidates.iter().enumerate() {
            rates[index].sort_by(f64::total_cmp);
            println!(
                "{name:<12} {threads} threads  {:>6.2} M operations/s [{:.2}, {:.2}]  hit ratio {:.3}",
                rates[index][ROUNDS / 2] / 1e6,
                rates[index][0] / 1e6,
                rates[index][ROUNDS - 1] / 1e6,
                ratio[index]
            );
        }
    }
}
