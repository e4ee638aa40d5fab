//! Contents of values: constant, or verifiable by key and checksum.

/// Appends a value that is not verified.
pub(crate) fn fill(size: usize, byte: u8, out: &mut Vec<u8>) {
    out.resize(out.len() + size, byte);
}

/// The value that a key has at a given length: a checksum of key and length, the key, and the
/// checksum's digits repeated, truncated to the length. A value that belongs to another key, has
/// another length or is damaged at any byte doesn't match.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExpectedValue {
    head: Vec<u8>,
    position: usize,
    /// Whether what was compared differs.
    pub(crate) mismatch: bool,
}

const DIGITS: usize = 8;

impl ExpectedValue {
    /// Starts another value, reusing the memory.
    pub(crate) fn begin(&mut self, key: &[u8], length: usize) {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(key);
        hasher.update(&(length as u64).to_le_bytes());
        let sum = hasher.finalize();
        self.head.clear();
        const HEX: &[u8; 16] = b"0123456789abcdef";
        self.head.extend((0..DIGITS).map(|digit| HEX[(sum >> (4 * digit)) as usize & 15]));
        self.head.extend_from_slice(key);
        (self.position, self.mismatch) = (0, false);
    }

    /// The bytes from a position on, as far as they are contiguous in memory.
    fn contiguous(&self, position: usize) -> &[u8] {
        match position.checked_sub(self.head.len()) {
            None => &self.head[position..],
            Some(after) => &self.head[after % DIGITS..DIGITS],
        }
    }

    /// Appends the first `length` bytes.
    pub(crate) fn write(&self, length: usize, out: &mut Vec<u8>) {
        let end = out.len() + length;
        let mut position = 0;
        while out.len() < end {
            let bytes = self.contiguous(position);
            let part = bytes.len().min(end - out.len());
            out.extend_from_slice(&bytes[..part]);
            position += part;
        }
    }

    /// Compares the next bytes that were received.
    pub(crate) fn compare(&mut self, mut received: &[u8]) {
        while !received.is_empty() {
            let bytes = self.contiguous(self.position);
            let part = bytes.len().min(received.len());
            self.mismatch |= bytes[..part] != received[..part];
            self.position += part;
            received = &received[part..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(key: &[u8], length: usize) -> ExpectedValue {
        let mut expected = ExpectedValue::default();
        expected.begin(key, length);
        expected
    }

    fn value(key: &[u8], length: usize) -> Vec<u8> {
        let mut out = Vec::new();
        expected(key, length).write(length, &mut out);
        out
    }

    fn is_wrong(key: &[u8], length: usize, bytes: &[u8], chunk_size: usize) -> bool {
        let mut expected = expected(key, length);
        bytes.chunks(chunk_size).for_each(|part| expected.compare(part));
        expected.mismatch
    }

    #[test]
    fn a_value_matches_in_chunks_of_any_size_and_fails_with_any_byte_changed() {
        for length in [0, 1, 5, 13, 14, 40, 1000] {
            let right = value(b"key-7", length);
            assert_eq!(right.len(), length);
            for chunk_size in [1, 3, 8, 1000] {
                assert!(!is_wrong(b"key-7", length, &right, chunk_size));
            }
            for position in 0..length {
                let mut damaged = right.clone();
                damaged[position] ^= 1;
                assert!(is_wrong(b"key-7", length, &damaged, 7), "byte {position} of {length}");
            }
        }
    }

    #[test]
    fn the_value_of_another_key_or_another_length_does_not_match() {
        assert!(is_wrong(b"key-8", 40, &value(b"key-7", 40), 9));
        assert!(is_wrong(b"key-7", 40, &value(b"key-7", 41)[..40], 9));
        // Also values that are shorter than a key.
        assert!(is_wrong(b"0000000000008", 4, &value(b"0000000000007", 4), 9));
        assert!(is_wrong(b"0000000000007", 4, &value(b"0000000000007", 5)[..4], 9));
    }
}
