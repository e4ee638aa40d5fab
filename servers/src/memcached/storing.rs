//! Storing an item under a condition, the same for all protocols.

use super::store::{Bits, Data, Large, New, OutOfMemory, Slot, Store, Value};

/// When an item is stored, and what of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// `set`
    Always,
    /// `add`
    Absent,
    /// `replace`
    Present,
    /// `append`, which may also make an item.
    Append {
        /// Whether it does.
        vivify: bool,
    },
    /// `prepend`, likewise.
    Prepend {
        /// Whether it does.
        vivify: bool,
    },
    /// `cas`
    Unchanged,
}

/// An item on its way in, but for its value.
#[derive(Debug, Clone, Copy)]
pub struct Incoming<B> {
    pub condition: Condition,
    pub key: B,
    pub flags: u32,
    /// In the store's seconds.
    pub expiry: u32,
    /// The number that the present item must have; 0 is any.
    pub compare: u64,
    /// The number that the client wants it to have.
    pub number: Option<u64>,
    /// Whether a value that is older than the present one is stored, as stale.
    pub accepts_stale: bool,
    pub bits: Bits,
    /// Bytes of the value.
    pub length: usize,
}

impl<B: AsRef<[u8]>> Incoming<B> {
    /// With a key of its own.
    pub fn to_owned(&self) -> Incoming<Box<[u8]>> {
        Incoming {
            condition: self.condition,
            key: self.key.as_ref().into(),
            flags: self.flags,
            expiry: self.expiry,
            compare: self.compare,
            number: self.number,
            accepts_stale: self.accepts_stale,
            bits: self.bits,
            length: self.length,
        }
    }
}

/// How storing ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    Done {
        /// The number that the item has now.
        cas: u64,
        /// Bytes of its value.
        length: usize,
    },
    /// Its condition does not hold.
    Refused,
    /// Someone else has changed it.
    Exists,
    NotFound,
    OutOfMemory,
}

/// A value that has come in.
#[derive(Debug)]
pub enum Body<'a> {
    Bytes(&'a [u8]),
    Large(Large),
}

impl Body<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Body::Bytes(bytes) => bytes,
            Body::Large(large) => large.bytes(),
        }
    }
}

/// Stores an item, if its condition holds.
pub fn store<B: AsRef<[u8]>>(store: &Store, item: &Incoming<B>, body: Body<'_>, now: u32) -> Stored {
    let mut slot = store.lock(item.key.as_ref(), now);
    let Some(old) = slot.header() else {
        let stores = match item.condition {
            Condition::Always | Condition::Absent => true,
            Condition::Append { vivify } | Condition::Prepend { vivify } => vivify,
            Condition::Unchanged => return Stored::NotFound,
            Condition::Present => false,
        };
        return if stores { put(store, &mut slot, item, body, None) } else { Stored::Refused };
    };
    let matches = item.compare == 0 || item.compare == old.cas;
    match item.condition {
        Condition::Absent => {
            slot.warm();
            Stored::Refused
        }
        Condition::Always | Condition::Present => put(store, &mut slot, item, body, None),
        Condition::Unchanged if item.compare == old.cas && item.compare != 0 => {
            put(store, &mut slot, item, body, None)
        }
        Condition::Unchanged if item.accepts_stale && item.compare != 0 && item.compare < old.cas => {
            // Newer than nothing else: its time and whether someone renews it stay.
            let mut bits = item.bits.with(Bits::STALE);
            if old.bits.has(Bits::TOKEN_SENT) {
                bits = bits.with(Bits::TOKEN_SENT);
            }
            put(store, &mut slot, item, body, Some((bits, old.expiry)))
        }
        Condition::Unchanged => Stored::Exists,
        Condition::Append { .. } | Condition::Prepend { .. } if !matches => Stored::Exists,
        Condition::Append { .. } | Condition::Prepend { .. } => join(store, &mut slot, item, &body),
    }
}

fn put<B>(
    store: &Store,
    slot: &mut Slot<'_>,
    item: &Incoming<B>,
    body: Body<'_>,
    instead: Option<(Bits, u32)>,
) -> Stored {
    let (bits, expiry) = instead.unwrap_or((item.bits, item.expiry));
    let cas = item.number.unwrap_or_else(|| store.next_cas());
    let length = body.bytes().len();
    let value = match body {
        Body::Bytes(bytes) => Data::from(bytes),
        Body::Large(large) => Data::Large(large),
    };
    match slot.put(New { flags: item.flags, expiry, cas, bits, value }) {
        Ok(()) => Stored::Done { cas, length },
        Err(OutOfMemory) => Stored::OutOfMemory,
    }
}

/// Stores the old value and the new one behind or before it.
fn join<B: AsRef<[u8]>>(store: &Store, slot: &mut Slot<'_>, item: &Incoming<B>, body: &Body<'_>) -> Stored {
    let Some((old, value)) = slot.value() else { return Stored::Refused };
    let new = body.bytes();
    let length = value.bytes().len() + new.len();
    if !store.fits(item.key.as_ref().len(), length) {
        return Stored::Refused;
    }
    // Making room for the new item may move the old one, so its value is kept apart meanwhile.
    let (shared, copied);
    let present = match value {
        Value::Large(large) => {
            shared = std::sync::Arc::clone(large);
            shared.bytes()
        }
        Value::Inline(bytes) => {
            copied = bytes.to_vec();
            &copied[..]
        }
    };
    let value = match item.condition {
        Condition::Prepend { .. } => Data::Pieces(new, present),
        _ => Data::Pieces(present, new),
    };
    let cas = item.number.unwrap_or_else(|| store.next_cas());
    let bits = Bits::default().with_if(Bits::KEY_BINARY, old.bits.has(Bits::KEY_BINARY));
    match slot.put(New { flags: old.flags, expiry: old.expiry, cas, bits, value }) {
        Ok(()) => Stored::Done { cas, length },
        // As in memcached, which does not tell it from a missing item.
        Err(OutOfMemory) => Stored::Refused,
    }
}

/// How `incr` or `decr` ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// The new value, and the item's number.
    Value(u64, u64),
    NotFound,
    NotANumber,
    /// Someone else has changed it.
    Exists,
    OutOfMemory,
}

/// What is to be counted, and how.
#[derive(Debug, Clone, Copy)]
pub struct Delta {
    pub amount: u64,
    pub up: bool,
    /// The number that the item must have; 0 is any.
    pub compare: u64,
    /// The number that the client wants it to have.
    pub number: Option<u64>,
}

/// Changes a number that is stored as text.
pub fn count(store: &Store, slot: &mut Slot<'_>, delta: Delta) -> Counted {
    let Some((old, value)) = slot.value() else { return Counted::NotFound };
    if delta.compare != 0 && delta.compare != old.cas && old.length != 0 {
        return Counted::Exists;
    }
    let Value::Inline(bytes) = value else { return Counted::NotANumber };
    let Some(number) = super::numbers::unsigned(bytes) else { return Counted::NotANumber };
    let number = match delta.up {
        true => number.wrapping_add(delta.amount),
        false => number.saturating_sub(delta.amount),
    };
    let mut digits = itoa::Buffer::new();
    let text = digits.format(number).as_bytes();
    // A number that got shorter keeps its length, filled up with spaces.
    let padding = vec![b' '; (old.length as usize).saturating_sub(text.len())];
    let cas = delta.number.unwrap_or_else(|| store.next_cas());
    let bits = old.bits;
    let new = New { flags: old.flags, expiry: old.expiry, cas, bits, value: Data::Pieces(text, &padding) };
    match slot.put(new) {
        Ok(()) => Counted::Value(number, cas),
        Err(OutOfMemory) => Counted::OutOfMemory,
    }
}

#[cfg(test)]
mod tests {
    use super::super::store::Limits;
    use super::*;

    const NOW: u32 = 100;

    fn empty() -> Store {
        Store::new(Limits { memory: 8 << 20, item: 1 << 20, evict: true, workers: 1 })
    }

    fn item(condition: Condition, compare: u64, length: usize) -> Incoming<&'static [u8]> {
        let bits = Bits::default();
        Incoming {
            condition,
            key: b"k",
            flags: 1,
            expiry: 0,
            compare,
            number: None,
            accepts_stale: false,
            bits,
            length,
        }
    }

    fn put_in(store: &Store, condition: Condition, compare: u64, data: &[u8]) -> Stored {
        super::store(store, &item(condition, compare, data.len()), Body::Bytes(data), NOW)
    }

    fn value(store: &Store) -> Option<Vec<u8>> {
        store.lock(b"k", NOW).value().map(|(_, value)| value.bytes().to_vec())
    }

    #[test]
    fn conditions_hold_or_do_not() {
        let store = empty();
        let put = |condition, compare, data: &[u8]| put_in(&store, condition, compare, data);
        let (append, prepend) = (Condition::Append { vivify: false }, Condition::Prepend { vivify: false });
        assert_eq!(put(Condition::Present, 0, b"x"), Stored::Refused);
        assert_eq!(put(append, 0, b"x"), Stored::Refused);
        assert_eq!(put(Condition::Unchanged, 1, b"x"), Stored::NotFound);
        assert!(matches!(put(Condition::Absent, 0, b"b"), Stored::Done { .. }));
        assert_eq!(put(Condition::Absent, 0, b"x"), Stored::Refused);
        assert!(matches!(put(append, 0, b"c"), Stored::Done { length: 2, .. }));
        let Stored::Done { cas, .. } = put(prepend, 0, b"a") else { panic!() };
        assert_eq!(value(&store).unwrap(), b"abc");
        assert_eq!(put(Condition::Unchanged, cas + 1, b"x"), Stored::Exists);
        assert_eq!(put(append, cas + 1, b"x"), Stored::Exists);
        assert!(matches!(put(Condition::Unchanged, cas, b"new"), Stored::Done { .. }));
        assert_eq!(put(Condition::Unchanged, cas, b"x"), Stored::Exists);
        assert_eq!(put(Condition::Unchanged, 0, b"x"), Stored::Exists);
    }

    #[test]
    fn appending_makes_an_item_where_it_is_told_to() {
        let store = empty();
        assert!(matches!(put_in(&store, Condition::Append { vivify: true }, 0, b"a"), Stored::Done { .. }));
        assert!(matches!(put_in(&store, Condition::Prepend { vivify: true }, 0, b"b"), Stored::Done { .. }));
        assert_eq!(value(&store).unwrap(), b"ba");
    }

    #[test]
    fn appending_goes_on_until_an_item_may_be_no_larger() {
        let store = empty();
        let append = Condition::Append { vivify: true };
        let mut length = 0;
        while put_in(&store, append, 0, &[7; 60_000]) != Stored::Refused {
            length += 60_000;
        }
        assert_eq!(length, 17 * 60_000);
        assert_eq!(value(&store).unwrap(), vec![7; length]);
        assert!(store.contents().memory <= store.limit());
    }

    #[test]
    fn a_stale_value_is_stored_as_such_where_that_is_asked_for() {
        let store = empty();
        let Stored::Done { cas, .. } = put_in(&store, Condition::Always, 0, b"a") else { panic!() };
        put_in(&store, Condition::Always, 0, b"b");
        let stale = Incoming { accepts_stale: true, ..item(Condition::Unchanged, cas, 1) };
        assert!(matches!(super::store(&store, &stale, Body::Bytes(b"c"), NOW), Stored::Done { .. }));
        let slot = store.lock(b"k", NOW);
        let (header, value) = slot.value().unwrap();
        assert!(header.bits.has(Bits::STALE) && value.bytes() == b"c");
    }

    #[test]
    fn a_shorter_number_keeps_its_length() {
        let store = empty();
        let delta = |amount, up| Delta { amount, up, compare: 0, number: None };
        let count = |amount, up| match super::count(&store, &mut store.lock(b"k", NOW), delta(amount, up)) {
            Counted::Value(value, _) => Ok(value),
            other => Err(other),
        };
        assert_eq!(count(1, true), Err(Counted::NotFound));
        put_in(&store, Condition::Always, 0, b"10");
        assert_eq!(count(1, false), Ok(9));
        assert_eq!(value(&store).unwrap(), b"9 ");
        assert_eq!(count(1, true), Ok(10));
        assert_eq!(count(50, false), Ok(0));
        put_in(&store, Condition::Always, 0, b"18446744073709551615");
        assert_eq!(count(2, true), Ok(1));
        put_in(&store, Condition::Always, 0, b"x");
        assert_eq!(count(1, true), Err(Counted::NotANumber));
    }
}
