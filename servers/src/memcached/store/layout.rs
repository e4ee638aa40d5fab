//! How an item lies in its segment: a header, the key, the value.
//!
//! Multiples of four bytes, in the machine's own byte order: nothing of it leaves the process.

use super::Bits;

/// Bytes before the key.
pub const HEADER: usize = 26;
/// Items begin at multiples of this.
pub const ALIGN: usize = 4;
/// What is stored in place of a large value: its number.
pub const LARGE_STUB: usize = 4;

const CAS: usize = 0;
const FLAGS: usize = 8;
const EXPIRY: usize = 12;
const ACCESSED: usize = 16;
const LENGTH: usize = 20;
const KEY: usize = 24;
const BITS: usize = 25;

/// What an item's header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Changes with every change of the item.
    pub cas: u64,
    /// What the client gave with it.
    pub flags: u32,
    /// The second from which on it is gone; 0 is never.
    pub expiry: u32,
    /// The second of the last access.
    pub accessed: u32,
    /// Bytes of the value.
    pub length: u32,
    /// Bytes of the key.
    pub key: u8,
    /// The rest.
    pub bits: Bits,
}

impl Header {
    /// Bytes that the item takes in its segment.
    pub fn size(&self) -> usize {
        size(self.key.into(), stored_length(self.length as usize, self.bits))
    }

    /// Whether its time is up.
    pub fn has_expired(&self, now: u32) -> bool {
        self.expiry != 0 && self.expiry <= now
    }

    /// Bytes that a large value takes outside of its segment.
    pub(super) fn outside(&self) -> u64 {
        if self.bits.has(Bits::LARGE) { self.length.into() } else { 0 }
    }

    pub(super) fn write(&self, item: &mut [u8]) {
        item[CAS..FLAGS].copy_from_slice(&self.cas.to_ne_bytes());
        item[FLAGS..EXPIRY].copy_from_slice(&self.flags.to_ne_bytes());
        item[EXPIRY..ACCESSED].copy_from_slice(&self.expiry.to_ne_bytes());
        item[ACCESSED..LENGTH].copy_from_slice(&self.accessed.to_ne_bytes());
        item[LENGTH..KEY].copy_from_slice(&self.length.to_ne_bytes());
        item[KEY] = self.key;
        item[BITS] = self.bits.0;
    }
}

/// Bytes of an item with a key of `key` bytes and `stored` bytes behind it.
pub fn size(key: usize, stored: usize) -> usize {
    (HEADER + key + stored).next_multiple_of(ALIGN)
}

/// Bytes behind the key.
pub fn stored_length(length: usize, bits: Bits) -> usize {
    if bits.has(Bits::LARGE) { LARGE_STUB } else { length }
}

fn word(item: &[u8], at: usize) -> u32 {
    // Every item has a whole header.
    u32::from_ne_bytes(item[at..at + 4].try_into().unwrap_or_default())
}

pub fn header(item: &[u8]) -> Header {
    let item = &item[..HEADER];
    Header {
        cas: u64::from_ne_bytes(item[CAS..FLAGS].try_into().unwrap_or_default()),
        flags: word(item, FLAGS),
        expiry: word(item, EXPIRY),
        accessed: word(item, ACCESSED),
        length: word(item, LENGTH),
        key: item[KEY],
        bits: Bits(item[BITS]),
    }
}

pub fn key(item: &[u8]) -> &[u8] {
    let end = HEADER + usize::from(item[KEY]);
    &item[HEADER..end]
}

pub fn bits(item: &[u8]) -> Bits {
    Bits(item[BITS])
}

pub fn set_bits(item: &mut [u8], bits: Bits) {
    item[BITS] = bits.0;
}

pub fn set_cas(item: &mut [u8], cas: u64) {
    item[CAS..FLAGS].copy_from_slice(&cas.to_ne_bytes());
}

pub fn set_expiry(item: &mut [u8], expiry: u32) {
    item[EXPIRY..ACCESSED].copy_from_slice(&expiry.to_ne_bytes());
}

pub fn set_accessed(item: &mut [u8], now: u32) {
    item[ACCESSED..LENGTH].copy_from_slice(&now.to_ne_bytes());
}

/// The bytes behind the key: the value, or a large value's number.
pub fn stored<'a>(item: &'a [u8], header: &Header) -> &'a [u8] {
    let start = HEADER + usize::from(header.key);
    &item[start..start + stored_length(header.length as usize, header.bits)]
}

/// The number of a large value.
pub fn large_number(item: &[u8], header: &Header) -> usize {
    u32::from_ne_bytes(stored(item, header).try_into().unwrap_or_default()) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_reads_as_it_was_written() {
        let header = Header {
            cas: u64::MAX - 1,
            flags: 7,
            expiry: 8,
            accessed: 9,
            length: 5,
            key: 3,
            bits: Bits::FETCHED,
        };
        let mut item = vec![0; header.size()];
        header.write(&mut item);
        item[HEADER..HEADER + 8].copy_from_slice(b"keyvalue");
        assert_eq!(super::header(&item), header);
        assert_eq!((key(&item), stored(&item, &header)), (&b"key"[..], &b"value"[..]));
        assert_eq!(header.size(), 36);
        set_cas(&mut item, 1);
        set_expiry(&mut item, 2);
        set_accessed(&mut item, 3);
        set_bits(&mut item, Bits::STALE);
        let expected = Header { cas: 1, expiry: 2, accessed: 3, bits: Bits::STALE, ..header };
        assert_eq!(super::header(&item), expected);
    }
}
