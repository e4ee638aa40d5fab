//! Changes to items: storing under a condition and arithmetic, for all protocols.

use std::sync::Arc;

use super::numbers;
use super::store::{ItemBits, LockedEntry, NewItem, NewValue, Store, StoredValue};

/// When a storage command stores its item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Condition {
    #[default]
    Always,
    /// `add`: if the key is absent.
    Absent,
    /// `replace`: if the key is present.
    Present,
    Append,
    Prepend,
    /// `cas`: if the item's CAS unique is the expected one.
    CasMatches,
}

/// A storage command without its key and its value.
#[derive(Debug, Clone, Copy, Default)]
pub struct StoreRequest {
    pub condition: Condition,
    pub flags: u32,
    /// In seconds of the store's clock; 0 is never.
    pub expiry: u32,
    /// The CAS unique that the present item must have; 0 matches any.
    pub expected_cas: u64,
    /// The item's new CAS unique, if the client chooses it.
    pub new_cas: Option<u64>,
    /// Whether a value with an older CAS unique than the present item's is stored and marked stale.
    pub accepts_stale: bool,
    /// Whether `append` and `prepend` create an item that is absent.
    pub vivify: bool,
    pub bits: ItemBits,
    /// Bytes of the value.
    pub length: usize,
}

/// `length` is that of the stored value. `Exists`: the CAS unique is not the expected one.
/// `BadDataBlock`: the data block did not end with its terminator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreOutcome {
    Stored { cas: u64, length: usize },
    NotStored,
    Exists,
    NotFound,
    OutOfMemory,
    BadDataBlock,
    TooLarge,
}

pub fn store_item(
    store: &Store,
    key: &[u8],
    request: &StoreRequest,
    value: NewValue<'_>,
    now: u32,
) -> StoreOutcome {
    let mut entry = store.lock(key, now);
    let StoreRequest { condition, flags, mut expiry, mut bits, .. } = *request;
    // As in memcached: without CAS uniques `cas` never stores in place of an item, and others
    // ignore the number.
    let expected_cas = if store.cas { request.expected_cas } else { 0 };
    match (condition, entry.header()) {
        (Condition::Always, _) | (Condition::Absent, None) | (Condition::Present, Some(_)) => {}
        (Condition::Append | Condition::Prepend, None) if request.vivify => {}
        (Condition::CasMatches, Some(old)) if expected_cas == old.cas && expected_cas != 0 => {}
        (Condition::CasMatches, Some(old))
            if request.accepts_stale && expected_cas != 0 && expected_cas < old.cas =>
        {
            // The value is outdated already, so the expiry and the recache token stay.
            expiry = old.expiry;
            bits |= ItemBits::STALE | (old.bits & ItemBits::TOKEN_SENT);
        }
        (Condition::Append | Condition::Prepend, Some(old))
            if expected_cas == 0 || expected_cas == old.cas =>
        {
            return concatenate(store, &mut entry, key.len(), request, &value);
        }
        (Condition::CasMatches, None) => return StoreOutcome::NotFound,
        (Condition::Absent, Some(_)) => {
            entry.record_access();
            return StoreOutcome::NotStored;
        }
        (_, None) => return StoreOutcome::NotStored,
        (_, Some(_)) => return StoreOutcome::Exists,
    }
    let (cas, length) = (new_cas(store, request.new_cas), value.length());
    match entry.put(NewItem { flags, expiry, cas, bits, value }) {
        Ok(()) => StoreOutcome::Stored { cas, length },
        Err(_) => StoreOutcome::OutOfMemory,
    }
}

/// Appends the received value, which is one slice, to the present one, or prepends it.
fn concatenate(
    store: &Store,
    entry: &mut LockedEntry<'_>,
    key_length: usize,
    request: &StoreRequest,
    received: &NewValue<'_>,
) -> StoreOutcome {
    let Some((old, value)) = entry.value() else { return StoreOutcome::NotStored };
    let received = match received {
        NewValue::Slices(bytes, _) => *bytes,
        NewValue::Large(large) => large.bytes(),
    };
    let length = value.bytes().len() + received.len();
    if !store.fits(key_length, old.flags, length) {
        return StoreOutcome::NotStored;
    }
    // Making room for the new item may move the present one, so its value is copied first.
    let (shared, copied);
    let present = match value {
        StoredValue::Large(large) => {
            shared = Arc::clone(large);
            shared.bytes()
        }
        StoredValue::Inline(bytes) => {
            copied = bytes.to_vec();
            &copied[..]
        }
    };
    let value = match request.condition {
        Condition::Prepend => NewValue::Slices(received, present),
        _ => NewValue::Slices(present, received),
    };
    let (cas, bits) = (new_cas(store, request.new_cas), old.bits & ItemBits::KEY_BINARY);
    match entry.put(NewItem { flags: old.flags, expiry: old.expiry, cas, bits, value }) {
        Ok(()) => StoreOutcome::Stored { cas, length },
        // As memcached, which does not distinguish it from a missing item.
        Err(_) => StoreOutcome::NotStored,
    }
}

/// `Exists`: the CAS unique is not the expected one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeltaOutcome {
    Changed { value: u64, cas: u64 },
    Created { value: u64, cas: u64 },
    NotFound,
    NotANumber,
    Exists,
    OutOfMemory,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Delta {
    pub amount: u64,
    /// Whether the amount is added; otherwise it is subtracted.
    pub increments: bool,
    pub expected_cas: u64,
    pub new_cas: Option<u64>,
    /// The number and the expiry of an item that is created if the key is absent.
    pub vivify: Option<(u64, u32)>,
    pub bits: ItemBits,
}

/// Changes a number that is stored as text. Increments wrap around, decrements stop at 0.
pub fn apply_delta(store: &Store, entry: &mut LockedEntry<'_>, delta: Delta) -> DeltaOutcome {
    let mut digits = itoa::Buffer::new();
    let Some((old, value)) = entry.value() else {
        let Some((initial, expiry)) = delta.vivify else { return DeltaOutcome::NotFound };
        let (cas, bits) = (new_cas(store, delta.new_cas), delta.bits);
        let value = NewValue::from(digits.format(initial).as_bytes());
        return match entry.put(NewItem { flags: 0, expiry, cas, bits, value }) {
            Ok(()) => DeltaOutcome::Created { value: initial, cas },
            Err(_) => DeltaOutcome::OutOfMemory,
        };
    };
    if delta.expected_cas != 0 && delta.expected_cas != old.cas && old.length != 0 {
        return DeltaOutcome::Exists;
    }
    let StoredValue::Inline(bytes) = value else { return DeltaOutcome::NotANumber };
    let Some(number) = numbers::unsigned(bytes) else { return DeltaOutcome::NotANumber };
    let number = match delta.increments {
        true => number.wrapping_add(delta.amount),
        false => number.saturating_sub(delta.amount),
    };
    let text = digits.format(number).as_bytes();
    // A number that became shorter is padded with spaces to its old length.
    let padding = vec![b' '; (old.length as usize).saturating_sub(text.len())];
    let cas = new_cas(store, delta.new_cas);
    // As in memcached, where a longer number makes a new item: one that nobody has fetched, and
    // that is not stale.
    let is_longer = text.len() > old.length as usize;
    let bits = if is_longer { old.bits & ItemBits::KEY_BINARY } else { old.bits };
    let value = NewValue::Slices(text, &padding);
    match entry.put(NewItem { flags: old.flags, expiry: old.expiry, cas, bits, value }) {
        Ok(()) => DeltaOutcome::Changed { value: number, cas },
        Err(_) => DeltaOutcome::OutOfMemory,
    }
}

/// The CAS unique of a changed item: the client's, or the next one.
pub fn new_cas(store: &Store, given: Option<u64>) -> u64 {
    given.filter(|_| store.cas).unwrap_or_else(|| store.next_cas())
}

#[cfg(test)]
mod tests {
    use super::super::config::Config;
    use super::*;

    const NOW: u32 = 100;

    fn empty() -> Store {
        Store::new(&Config { memory: 8 << 20, ..Config::default() }, 1)
    }

    fn request(condition: Condition, expected_cas: u64, length: usize) -> StoreRequest {
        StoreRequest { condition, flags: 1, expected_cas, length, ..StoreRequest::default() }
    }

    fn put_value(store: &Store, condition: Condition, expected_cas: u64, data: &[u8]) -> StoreOutcome {
        store_item(store, b"k", &request(condition, expected_cas, data.len()), data.into(), NOW)
    }

    fn value(store: &Store) -> Option<Vec<u8>> {
        store.lock(b"k", NOW).value().map(|(_, value)| value.bytes().to_vec())
    }

    #[test]
    fn a_storage_command_stores_only_if_its_condition_holds() {
        let store = empty();
        let put = |condition, expected_cas, data: &[u8]| put_value(&store, condition, expected_cas, data);
        let (append, prepend) = (Condition::Append, Condition::Prepend);
        assert_eq!(put(Condition::Present, 0, b"x"), StoreOutcome::NotStored);
        assert_eq!(put(append, 0, b"x"), StoreOutcome::NotStored);
        assert_eq!(put(Condition::CasMatches, 1, b"x"), StoreOutcome::NotFound);
        assert!(matches!(put(Condition::Absent, 0, b"b"), StoreOutcome::Stored { .. }));
        assert_eq!(put(Condition::Absent, 0, b"x"), StoreOutcome::NotStored);
        assert!(matches!(put(append, 0, b"c"), StoreOutcome::Stored { length: 2, .. }));
        let StoreOutcome::Stored { cas, .. } = put(prepend, 0, b"a") else { panic!() };
        assert_eq!(value(&store).unwrap(), b"abc");
        assert_eq!(put(Condition::CasMatches, cas + 1, b"x"), StoreOutcome::Exists);
        assert_eq!(put(append, cas + 1, b"x"), StoreOutcome::Exists);
        assert!(matches!(put(Condition::CasMatches, cas, b"new"), StoreOutcome::Stored { .. }));
        assert_eq!(put(Condition::CasMatches, cas, b"x"), StoreOutcome::Exists);
        assert_eq!(put(Condition::CasMatches, 0, b"x"), StoreOutcome::Exists);
    }

    #[test]
    fn append_is_refused_at_the_largest_item_size() {
        let store = empty();
        put_value(&store, Condition::Always, 0, b"");
        let mut length = 0;
        while put_value(&store, Condition::Append, 0, &[7; 60_000]) != StoreOutcome::NotStored {
            length += 60_000;
        }
        assert_eq!(length, 17 * 60_000);
        assert_eq!(value(&store).unwrap(), vec![7; length]);
        assert!(store.usage().memory <= store.limit());
    }

    #[test]
    fn an_outdated_cas_stores_a_stale_value_if_the_client_accepts_that() {
        let store = empty();
        let StoreOutcome::Stored { cas, .. } = put_value(&store, Condition::Always, 0, b"a") else {
            panic!()
        };
        put_value(&store, Condition::Always, 0, b"b");
        let stale = StoreRequest { accepts_stale: true, ..request(Condition::CasMatches, cas, 1) };
        assert!(matches!(
            store_item(&store, b"k", &stale, b"c"[..].into(), NOW),
            StoreOutcome::Stored { .. }
        ));
        let entry = store.lock(b"k", NOW);
        let (header, value) = entry.value().unwrap();
        assert!(header.bits.contains(ItemBits::STALE) && value.bytes() == b"c");
    }
}
