//! Which keys were put out lately: one that comes back soon is worth keeping longer.

/// Fingerprints of keys, each at the one place that its hash names; a newer one takes an older one's.
#[derive(Debug, Default)]
pub struct Ghosts {
    prints: Box<[u16]>,
}

impl Ghosts {
    /// For about so many keys; forgets those that are known.
    pub fn with_room_for(keys: usize) -> Self {
        Self { prints: vec![0; keys.next_power_of_two()].into() }
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.prints)
    }

    fn place(&self, hash: u64) -> (usize, u16) {
        // 0 is an empty place.
        ((hash as usize) & (self.prints.len() - 1), (hash >> 40) as u16 | 1)
    }

    pub fn add(&mut self, hash: u64) {
        if !self.prints.is_empty() {
            let (place, print) = self.place(hash);
            self.prints[place] = print;
        }
    }

    /// Whether the key was put out lately; it is not, any more.
    pub fn take(&mut self, hash: u64) -> bool {
        if self.prints.is_empty() {
            return false;
        }
        let (place, print) = self.place(hash);
        let known = self.prints[place] == print;
        if known {
            self.prints[place] = 0;
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_was_put_out_is_known_once() {
        let mut ghosts = Ghosts::with_room_for(100);
        assert_eq!(ghosts.bytes(), 256);
        let hash = 0x1234_5678_9abc_def0;
        assert!(!ghosts.take(hash));
        ghosts.add(hash);
        assert!(!ghosts.take(hash ^ 1 << 50));
        assert!(ghosts.take(hash));
        assert!(!ghosts.take(hash));
        let mut none = Ghosts::default();
        none.add(hash);
        assert!(!none.take(hash));
    }
}
