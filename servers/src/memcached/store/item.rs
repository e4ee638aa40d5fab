//! Items: their layout in a segment (header, key, value), and their values as they enter and leave
//! the store.
//!
//! Items are padded to a multiple of [`ALIGN`] bytes. Fields are in native byte order, as items
//! never leave the process.

use std::sync::Arc;

use super::memory::LargeValue;

/// The state bits of an item. The lowest two count accesses, saturating at 3, as S3-FIFO needs
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ItemBits(u8);

impl ItemBits {
    /// A client has fetched the item since it was stored.
    pub const FETCHED: Self = Self(1 << 2);
    /// A client has marked the value as stale.
    pub const STALE: Self = Self(1 << 3);
    /// A client holds the token to recache the item.
    pub const TOKEN_SENT: Self = Self(1 << 4);
    /// The client sent the key in base64.
    pub const KEY_BINARY: Self = Self(1 << 5);
    /// The value is a large value; the item holds its number.
    pub(super) const LARGE: Self = Self(1 << 6);
    /// The item was deleted, replaced or moved; its bytes are not reused yet.
    pub(super) const DEAD: Self = Self(1 << 7);

    const ACCESS_COUNT: u8 = 3;

    /// Whether any bit of `other` is set.
    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Sets the bits of `other`.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[must_use]
    pub fn with_if(self, other: Self, set: bool) -> Self {
        if set { self.with(other) } else { self }
    }

    /// Clears the bits of `other`.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Accesses since the item was stored or last moved: 0 to 3.
    pub(super) fn access_count(self) -> u8 {
        self.0 & Self::ACCESS_COUNT
    }

    pub(super) fn with_access_count(self, count: u8) -> Self {
        Self(self.0 & !Self::ACCESS_COUNT | count.min(Self::ACCESS_COUNT))
    }
}

/// Bytes of the header, which precedes the key.
pub const HEADER: usize = 26;
/// Items start at multiples of this.
pub const ALIGN: usize = 4;
/// An item with a large value stores the value's number instead: this many bytes.
const LARGE_VALUE_NUMBER: usize = 4;

const CAS: usize = 0;
const FLAGS: usize = 8;
const EXPIRY: usize = 12;
const ACCESSED: usize = 16;
const LENGTH: usize = 20;
const KEY_LENGTH: usize = 24;
const BITS: usize = 25;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemHeader {
    /// The CAS unique: changes whenever the item changes.
    pub cas: u64,
    pub flags: u32,
    /// The second of the store's clock at which the item expires; 0 is never.
    pub expiry: u32,
    pub accessed: u32,
    pub length: u32,
    pub key_length: u8,
    pub bits: ItemBits,
}

impl ItemHeader {
    /// Bytes of the item in its segment, with padding.
    pub fn size(&self) -> usize {
        item_size(self.key_length.into(), inline_length(self.length as usize, self.bits))
    }

    /// Whether the item has expired at second `now`.
    pub fn has_expired(&self, now: u32) -> bool {
        self.expiry != 0 && self.expiry <= now
    }

    /// Bytes outside the segment: those of a large value.
    pub(super) fn external_bytes(&self) -> u64 {
        if self.bits.intersects(ItemBits::LARGE) { self.length.into() } else { 0 }
    }

    pub(super) fn write(&self, item: &mut [u8]) {
        item[CAS..FLAGS].copy_from_slice(&self.cas.to_ne_bytes());
        item[FLAGS..EXPIRY].copy_from_slice(&self.flags.to_ne_bytes());
        item[EXPIRY..ACCESSED].copy_from_slice(&self.expiry.to_ne_bytes());
        item[ACCESSED..LENGTH].copy_from_slice(&self.accessed.to_ne_bytes());
        item[LENGTH..KEY_LENGTH].copy_from_slice(&self.length.to_ne_bytes());
        item[KEY_LENGTH] = self.key_length;
        item[BITS] = self.bits.0;
    }
}

/// Bytes of an item with `inline` bytes after its key, with padding.
pub fn item_size(key: usize, inline: usize) -> usize {
    (HEADER + key + inline).next_multiple_of(ALIGN)
}

/// Bytes after the key.
pub fn inline_length(length: usize, bits: ItemBits) -> usize {
    if bits.intersects(ItemBits::LARGE) { LARGE_VALUE_NUMBER } else { length }
}

fn read_u32(item: &[u8], at: usize) -> u32 {
    // Every item has a complete header.
    u32::from_ne_bytes(item[at..at + 4].try_into().unwrap_or_default())
}

pub fn header(item: &[u8]) -> ItemHeader {
    let item = &item[..HEADER];
    ItemHeader {
        cas: u64::from_ne_bytes(item[CAS..FLAGS].try_into().unwrap_or_default()),
        flags: read_u32(item, FLAGS),
        expiry: read_u32(item, EXPIRY),
        accessed: read_u32(item, ACCESSED),
        length: read_u32(item, LENGTH),
        key_length: item[KEY_LENGTH],
        bits: ItemBits(item[BITS]),
    }
}

pub fn key(item: &[u8]) -> &[u8] {
    let end = HEADER + usize::from(item[KEY_LENGTH]);
    &item[HEADER..end]
}

pub fn bits(item: &[u8]) -> ItemBits {
    ItemBits(item[BITS])
}

pub fn set_bits(item: &mut [u8], bits: ItemBits) {
    item[BITS] = bits.0;
}

/// Changes the header of an item.
pub fn update(item: &mut [u8], change: impl FnOnce(&mut ItemHeader)) {
    let mut header = header(item);
    change(&mut header);
    header.write(item);
}

pub fn set_accessed(item: &mut [u8], now: u32) {
    item[ACCESSED..LENGTH].copy_from_slice(&now.to_ne_bytes());
}

/// The bytes after the key: the value, or a large value's number.
pub fn inline_bytes<'a>(item: &'a [u8], header: &ItemHeader) -> &'a [u8] {
    let start = HEADER + usize::from(header.key_length);
    &item[start..start + inline_length(header.length as usize, header.bits)]
}

pub fn large_value_number(item: &[u8], header: &ItemHeader) -> usize {
    u32::from_ne_bytes(inline_bytes(item, header).try_into().unwrap_or_default()) as usize
}

#[derive(Debug, Clone, Copy)]
pub enum StoredValue<'a> {
    /// In the item's segment: valid while the lock is held.
    Inline(&'a [u8]),
    /// In its own pages: a clone of the `Arc` outlives the lock.
    Large(&'a Arc<LargeValue>),
}

impl StoredValue<'_> {
    pub fn bytes(&self) -> &[u8] {
        match self {
            StoredValue::Inline(bytes) => bytes,
            StoredValue::Large(large) => large.bytes(),
        }
    }
}

#[derive(Debug)]
pub struct NewItem<'a> {
    pub flags: u32,
    /// The second of the store's clock at which the item expires; 0 is never.
    pub expiry: u32,
    pub cas: u64,
    /// The item's state bits. The store maintains the private ones.
    pub bits: ItemBits,
    pub value: NewValue<'a>,
}

#[derive(Debug)]
pub enum NewValue<'a> {
    Slices(&'a [u8], &'a [u8]),
    Large(LargeValue),
}

impl<'a> From<&'a [u8]> for NewValue<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        NewValue::Slices(bytes, &[])
    }
}

impl NewValue<'_> {
    pub fn length(&self) -> usize {
        match self {
            NewValue::Slices(first, second) => first.len() + second.len(),
            NewValue::Large(large) => large.bytes().len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_reads_back_as_written() {
        let header = ItemHeader {
            cas: u64::MAX - 1,
            flags: 7,
            expiry: 8,
            accessed: 9,
            length: 5,
            key_length: 3,
            bits: ItemBits::FETCHED,
        };
        let mut item = vec![0; header.size()];
        header.write(&mut item);
        item[HEADER..HEADER + 8].copy_from_slice(b"keyvalue");
        assert_eq!(super::header(&item), header);
        assert_eq!((key(&item), inline_bytes(&item, &header)), (&b"key"[..], &b"value"[..]));
        assert_eq!(header.size(), 36);
        update(&mut item, |header| (header.cas, header.expiry) = (1, 2));
        set_accessed(&mut item, 3);
        set_bits(&mut item, ItemBits::STALE);
        let expected = ItemHeader { cas: 1, expiry: 2, accessed: 3, bits: ItemBits::STALE, ..header };
        assert_eq!(super::header(&item), expected);
    }
}
