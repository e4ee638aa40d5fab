//! The keyed hash of item keys.

use std::hash::{BuildHasher, Hasher};

use foldhash::quality::{FixedState, RandomState};

/// Hashes keys with a seed that is random per store, so clients cannot construct colliding keys.
#[derive(Debug, Clone)]
pub struct KeyHasher(FixedState);

impl KeyHasher {
    pub fn with_random_seed() -> Self {
        Self(FixedState::with_seed(RandomState::default().hash_one(0u8)))
    }

    pub fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.0.build_hasher();
        hasher.write(key);
        hasher.finish()
    }
}
