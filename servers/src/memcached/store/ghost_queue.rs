//! The ghost queue of S3-FIFO: keys that were evicted recently.

/// Fingerprints of recently evicted keys. Each key's hash selects one position; a newer fingerprint
/// replaces an older one there, so the queue is approximate and needs no order.
#[derive(Debug, Default)]
pub struct GhostQueue {
    fingerprints: Box<[u16]>,
}

impl GhostQueue {
    /// An empty queue for at least `keys` keys.
    pub fn with_capacity(keys: usize) -> Self {
        Self { fingerprints: vec![0; keys.next_power_of_two()].into() }
    }

    pub fn size(&self) -> usize {
        size_of_val(&*self.fingerprints)
    }

    fn position(&self, hash: u64) -> (usize, u16) {
        // Fingerprint 0 marks an empty position.
        ((hash as usize) & (self.fingerprints.len() - 1), (hash >> 40) as u16 | 1)
    }

    pub fn insert(&mut self, hash: u64) {
        if !self.fingerprints.is_empty() {
            let (position, fingerprint) = self.position(hash);
            self.fingerprints[position] = fingerprint;
        }
    }

    pub fn remove(&mut self, hash: u64) -> bool {
        if self.fingerprints.is_empty() {
            return false;
        }
        let (position, fingerprint) = self.position(hash);
        let found = self.fingerprints[position] == fingerprint;
        if found {
            self.fingerprints[position] = 0;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_evicted_key_is_found_exactly_once() {
        let mut ghosts = GhostQueue::with_capacity(100);
        assert_eq!(ghosts.size(), 256);
        let hash = 0x1234_5678_9abc_def0;
        assert!(!ghosts.remove(hash));
        ghosts.insert(hash);
        assert!(!ghosts.remove(hash ^ 1 << 50));
        assert!(ghosts.remove(hash));
        assert!(!ghosts.remove(hash));
        let mut empty = GhostQueue::default();
        empty.insert(hash);
        assert!(!empty.remove(hash));
    }
}
