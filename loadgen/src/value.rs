//! What values are made of: in a run that verifies, each carries its key and a checksum.

/// Appends a value that nobody verifies.
pub(crate) fn fill(size: usize, byte: u8, out: &mut Vec<u8>) {
    out.resize(out.len() + size, byte);
}

/// The value that a key has when it is so many bytes long: a checksum of key and length, the key, and the
/// checksum's digits over and over; cut off where it is shorter. So a value is wrong if it is another
/// key's, of another length, or damaged anywhere.
#[derive(Debug, Clone, Default)]
pub(crate) struct Expected {
    head: Vec<u8>,
    at: usize,
    wrong: bool,
}

const DIGITS: usize = 8;

impl Expected {
    /// Begins with another value, in the same memory.
    pub(crate) fn begin(&mut self, key: &[u8], length: usize) {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(key);
        hasher.update(&(length as u64).to_le_bytes());
        let sum = hasher.finalize();
        self.head.clear();
        const HEX: &[u8; 16] = b"0123456789abcdef";
        self.head.extend((0..DIGITS).map(|digit| HEX[(sum >> (4 * digit)) as usize & 15]));
        self.head.extend_from_slice(key);
        (self.at, self.wrong) = (0, false);
    }

    /// The bytes from a position on, as far as they can be given in one piece.
    fn from(&self, at: usize) -> &[u8] {
        match at.checked_sub(self.head.len()) {
            None => &self.head[at..],
            Some(after) => &self.head[after % DIGITS..DIGITS],
        }
    }

    /// Appends so many bytes.
    pub(crate) fn write(&self, length: usize, out: &mut Vec<u8>) {
        let end = out.len() + length;
        let mut at = 0;
        while out.len() < end {
            let piece = self.from(at);
            let part = piece.len().min(end - out.len());
            out.extend_from_slice(&piece[..part]);
            at += part;
        }
    }

    /// Compares the next bytes of what came.
    pub(crate) fn compare(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let piece = self.from(self.at);
            let part = piece.len().min(bytes.len());
            self.wrong |= piece[..part] != bytes[..part];
            self.at += part;
            bytes = &bytes[part..];
        }
    }

    pub(crate) fn is_wrong(&self) -> bool {
        self.wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(key: &[u8], length: usize) -> Expected {
        let mut expected = Expected::default();
        expected.begin(key, length);
        expected
    }

    fn value(key: &[u8], length: usize) -> Vec<u8> {
        let mut out = Vec::new();
        expected(key, length).write(length, &mut out);
        out
    }

    fn is_wrong(key: &[u8], length: usize, bytes: &[u8], cut: usize) -> bool {
        let mut expected = expected(key, length);
        bytes.chunks(cut).for_each(|part| expected.compare(part));
        expected.is_wrong()
    }

    #[test]
    fn a_value_is_right_however_it_is_cut_and_wrong_with_any_byte_changed() {
        for length in [0, 1, 5, 13, 14, 40, 1000] {
            let right = value(b"key-7", length);
            assert_eq!(right.len(), length);
            for cut in [1, 3, 8, 1000] {
                assert!(!is_wrong(b"key-7", length, &right, cut));
            }
            for position in 0..length {
                let mut damaged = right.clone();
                damaged[position] ^= 1;
                assert!(is_wrong(b"key-7", length, &damaged, 7), "byte {position} of {length}");
            }
        }
    }

    #[test]
    fn another_keys_value_and_another_length_are_wrong() {
        assert!(is_wrong(b"key-8", 40, &value(b"key-7", 40), 9));
        assert!(is_wrong(b"key-7", 40, &value(b"key-7", 41)[..40], 9));
        // Also those that are shorter than a key.
        assert!(is_wrong(b"0000000000008", 4, &value(b"0000000000007", 4), 9));
        assert!(is_wrong(b"0000000000007", 4, &value(b"0000000000007", 5)[..4], 9));
    }
}
