//! Items: their layout in a segment (header, key, value), and their values as they enter and leave
//! the store.
//!
//! Items are padded to a multiple of [`ALIGN`] bytes. Fields are in native byte order, as items
//! never leave the process.

use std::sync::Arc;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::memory::LargeValue;

/// The state bits of an item. The lowest two count accesses, saturating at 3, as S3-FIFO needs
/// them.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(transparent)]
pub struct ItemBits(u8);

bitflags::bitflags! {
    impl ItemBits: u8 {
        const ACCESS_COUNT = 3;
        /// A client has fetched the item since it was stored.
        const FETCHED = 1 << 2;
        /// A client has marked the value as stale.
        const STALE = 1 << 3;
        /// A client holds the token to recache the item.
        const TOKEN_SENT = 1 << 4;
        /// The client sent the key in base64.
        const KEY_BINARY = 1 << 5;
        /// The value is a large value; the item holds its number.
        const LARGE = 1 << 6;
        /// The item was deleted, replaced or moved; its bytes are not reused yet.
        const DEAD = 1 << 7;
    }
}

impl ItemBits {
    /// Accesses since the item was stored or last moved: 0 to 3.
    pub(super) fn access_count(self) -> u8 {
        (self & Self::ACCESS_COUNT).0
    }

    #[must_use]
    pub(super) fn with_access_count(self, count: u8) -> Self {
        (self - Self::ACCESS_COUNT) | Self(count.min(Self::ACCESS_COUNT.0))
    }
}

/// Bytes of the header, which precedes the key.
pub const HEADER: usize = size_of::<ItemHeader>();
/// Items start at multiples of this.
pub const ALIGN: usize = 4;

/// An item's header, as it lies in the segment.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C, packed)]
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
        (HEADER + usize::from(self.key_length) + self.inline_length()).next_multiple_of(ALIGN)
    }

    /// Bytes after the key: those of the value, or of a large value's number.
    fn inline_length(&self) -> usize {
        if self.bits.contains(ItemBits::LARGE) { size_of::<u32>() } else { self.length as usize }
    }

    pub fn has_expired(&self, now: u32) -> bool {
        self.expiry != 0 && self.expiry <= now
    }

    /// Bytes outside the segment: those of a large value.
    pub(super) fn external_bytes(&self) -> u64 {
        if self.bits.contains(ItemBits::LARGE) { self.length.into() } else { 0 }
    }
}

/// The header of an item. Every item has a complete one.
pub fn header(item: &[u8]) -> ItemHeader {
    ItemHeader::read_from_bytes(&item[..HEADER]).unwrap_or_default()
}

pub fn update(item: &mut [u8], change: impl FnOnce(&mut ItemHeader)) {
    if let Ok(header) = ItemHeader::mut_from_bytes(&mut item[..HEADER]) {
        change(header);
    }
}

pub fn key(item: &[u8]) -> &[u8] {
    &item[HEADER..HEADER + usize::from(header(item).key_length)]
}

/// The bytes after the key: the value, or a large value's number.
pub fn inline_bytes<'a>(item: &'a [u8], header: &ItemHeader) -> &'a [u8] {
    let start = HEADER + usize::from(header.key_length);
    &item[start..start + header.inline_length()]
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
        update(&mut item, |written| *written = header);
        item[HEADER..HEADER + 8].copy_from_slice(b"keyvalue");
        assert_eq!(super::header(&item), header);
        assert_eq!((key(&item), inline_bytes(&item, &header)), (&b"key"[..], &b"value"[..]));
        assert_eq!(header.size(), 36);
        update(&mut item, |header| (header.cas, header.bits) = (1, ItemBits::STALE));
        assert_eq!(super::header(&item), ItemHeader { cas: 1, bits: ItemBits::STALE, ..header });
    }
}
