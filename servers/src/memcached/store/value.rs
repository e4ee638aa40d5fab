//! Values as they enter and leave the store.

use std::sync::Arc;

use super::item_layout::ItemBits;
use super::large_value::LargeValue;

/// A stored value.
#[derive(Debug, Clone, Copy)]
pub enum StoredValue<'a> {
    /// In the item's segment: valid while the lock is held.
    Inline(&'a [u8]),
    /// In its own pages: a clone of the `Arc` outlives the lock.
    Large(&'a Arc<LargeValue>),
}

impl StoredValue<'_> {
    /// The value's bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            StoredValue::Inline(bytes) => bytes,
            StoredValue::Large(large) => large.bytes(),
        }
    }
}

/// An item to be stored, without its key.
#[derive(Debug)]
pub struct NewItem<'a> {
    /// The client's flags.
    pub flags: u32,
    /// The second of the store's clock at which the item expires; 0 is never.
    pub expiry: u32,
    /// The item's CAS unique.
    pub cas: u64,
    /// The item's state bits. The store maintains the private ones.
    pub bits: ItemBits,
    /// The value.
    pub value: NewValue<'a>,
}

/// A value to be stored.
#[derive(Debug)]
pub enum NewValue<'a> {
    /// Two slices that are concatenated and copied.
    Slices(&'a [u8], &'a [u8]),
    /// A large value that the store takes over.
    Large(LargeValue),
}

impl<'a> From<&'a [u8]> for NewValue<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        NewValue::Slices(bytes, &[])
    }
}

impl NewValue<'_> {
    pub(super) fn length(&self) -> usize {
        match self {
            NewValue::Slices(first, second) => first.len() + second.len(),
            NewValue::Large(large) => large.bytes().len(),
        }
    }
}
