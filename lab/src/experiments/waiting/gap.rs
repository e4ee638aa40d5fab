//! What passes between an answer and the next message.

use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};

/// What passes between an answer and the next message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gap {
    /// The same each time.
    Fixed(Duration),
    /// 1, 10, 50, 100 or 1000 µs, in an order without a pattern.
    Mixed,
}

const MIX: [u64; 5] = [1, 10, 50, 100, 1_000];

impl Gap {
    /// The gaps, one after the other. A mix is the same in every turn.
    pub(super) fn times(self) -> impl FnMut() -> Duration {
        // Xorshift, of any seed but 0.
        let mut state = 0x9e37_79b9_u32;
        move || match self {
            Gap::Fixed(gap) => gap,
            Gap::Mixed => {
                state ^= state << 13;
                state ^= state >> 17;
                state ^= state << 5;
                Duration::from_micros(MIX[state as usize % MIX.len()])
            }
        }
    }
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Gap::Fixed(gap) => write!(f, "{} µs", gap.as_micros()),
            Gap::Mixed => f.write_str("mixed"),
        }
    }
}

impl Serialize for Gap {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_has_all_its_gaps_about_as_often_and_a_fixed_gap_is_always_the_same() {
        let mut next = Gap::Mixed.times();
        let gaps: Vec<u64> = (0..10_000).map(|_| next().as_micros() as u64).collect();
        for gap in MIX {
            let count = gaps.iter().filter(|it| **it == gap).count();
            assert!((1_800..2_200).contains(&count), "{gap} µs: {count} of 10,000");
        }
        let mut next = Gap::Fixed(Duration::from_micros(10)).times();
        assert!((0..10).all(|_| next() == Duration::from_micros(10)));
    }
}
