//! Random numbers for tests, which a seed repeats.

use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        // Neighbouring seeds begin with unlike numbers, and none with 0.
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            random.below(2);
        }
        random
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % limit
    }

    /// One of `choices`, each equally likely.
    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

/// The seeds of the sequences to run, which it prints: `LULL_SEQUENCES` of them or `default`, from
/// `LULL_SEED` or the time on.
pub fn seeds(default: u64) -> Range<u64> {
    let number = |variable: &str| -> Option<u64> {
        std::env::var(variable).ok().map(|text| text.parse().expect(variable))
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64);
    let first = number("LULL_SEED").unwrap_or(now % 1_000_000_000);
    let count = number("LULL_SEQUENCES").unwrap_or(default);
    println!("{count} sequences from LULL_SEED={first} on");
    first..first + count
}
