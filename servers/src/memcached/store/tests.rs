use std::collections::HashMap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

const NOW: u32 = 100;

fn store(memory: u64) -> Store {
    Store::new(Limits { memory, item: 1 << 20, evict: true, workers: 2 })
}

fn put(store: &Store, key: &[u8], value: &[u8], expiry: u32) -> Result<(), OutOfMemory> {
    let new = New { flags: 0, expiry, cas: store.next_cas(), bits: Bits::default(), value: value.into() };
    store.lock(key, NOW).put(new)
}

fn get(store: &Store, key: &[u8], now: u32) -> Option<Vec<u8>> {
    let mut slot = store.lock(key, now);
    slot.touch();
    slot.value().map(|(_, value)| value.bytes().to_vec())
}

/// What a key's value is, so that a wrong one shows.
fn value_of(key: u32, version: u32, size: usize) -> Vec<u8> {
    let mut value = vec![(key ^ version) as u8; size];
    let head = [key.to_le_bytes(), version.to_le_bytes()].concat();
    let length = size.min(8);
    value[..length].copy_from_slice(&head[..length]);
    value
}

#[test]
fn an_item_expires_in_its_second() {
    let store = store(8 << 20);
    put(&store, b"k", b"v", NOW + 1).unwrap();
    assert!(get(&store, b"k", NOW).is_some());
    assert!(get(&store, b"k", NOW + 1).is_none());
    assert_eq!(store.contents().items, 0);
    assert_eq!(store.contents().counts.found_expired, 1);
}

#[test]
fn a_flush_takes_what_was_there_and_nothing_after() {
    let store = store(8 << 20);
    put(&store, b"old", b"v", 0).unwrap();
    store.flush(None);
    assert!(get(&store, b"old", NOW).is_none());
    put(&store, b"new", b"v", 0).unwrap();
    assert!(get(&store, b"new", NOW).is_some());
    store.flush(Some(NOW + 5));
    store.flush_if_due(NOW + 4);
    assert!(get(&store, b"new", NOW + 4).is_some());
    store.flush_if_due(NOW + 5);
    assert!(get(&store, b"new", NOW + 5).is_none());
    put(&store, b"later", b"v", 0).unwrap();
    store.flush_if_due(NOW + 6);
    assert!(get(&store, b"later", NOW + 6).is_some());
}

/// Random operations against a plain map: what the store has is what was stored last.
#[test]
fn what_is_read_is_what_was_stored_last_also_while_memory_is_short() {
    for (memory, largest) in [(256 << 10, 300), (8 << 20, 20_000), (16 << 20, 200_000)] {
        let store = store(memory);
        let mut random = StdRng::seed_from_u64(memory);
        let mut model: HashMap<u32, (u32, usize)> = HashMap::new();
        let (mut hits, mut version) = (0, 0);
        for _ in 0..60_000 {
            let key = random.random_range(0..5000u32);
            let name = format!("key-{key}");
            match random.random_range(0..10) {
                0..5 => {
                    version += 1;
                    let size = random.random_range(0..=largest) >> random.random_range(0..8);
                    put(&store, name.as_bytes(), &value_of(key, version, size), 0).unwrap();
                    model.insert(key, (version, size));
                }
                5 => {
                    store.lock(name.as_bytes(), NOW).remove();
                    model.remove(&key);
                }
                _ => {
                    if let Some(found) = get(&store, name.as_bytes(), NOW) {
                        let (version, size) = model[&key];
                        assert_eq!(found, value_of(key, version, size));
                        hits += 1;
                    }
                }
            }
            assert!(store.memory.used() <= store.limit() + 4096 * 64, "{} bytes", store.memory.used());
        }
        let contents = store.contents();
        assert!(hits > 2000 && contents.counts.evictions > 0, "{hits} {contents:?}");
        // What the walk sees is what there is.
        let (mut seen, mut from) = (0, Some((0, 0)));
        while let Some(here) = from {
            from = store.walk(here, NOW, |_, _| seen += 1);
        }
        assert_eq!(seen, contents.items);
    }
}

#[test]
fn sizes_that_change_leave_no_memory_behind() {
    let store = store(32 << 20);
    for round in 0..6u32 {
        let size = [100, 3000, 10, 60_000, 500, 1][round as usize];
        for index in 0..(64 << 20) / (size + 60) {
            put(&store, format!("key-{round}-{index}").as_bytes(), &vec![7; size as usize], 0).unwrap();
        }
        let contents = store.contents();
        assert!(contents.memory <= store.limit(), "{contents:?}");
        // Most of it is items of this round, whatever their size.
        let (kept, whole) = (contents.bytes as f64, store.limit() as f64);
        assert!(kept + contents.tables as f64 > 0.8 * whole, "size {size}: {contents:?}");
    }
}

#[test]
fn deleted_and_replaced_items_make_room_before_others_are_put_out() {
    let store = store(16 << 20);
    let count = (8 << 20) / 300;
    for round in 0..20u32 {
        for index in 0..count {
            // Of another size each time, so that none is written in place.
            let size = 200 + (round as usize % 4) * 10;
            put(&store, format!("key-{index}").as_bytes(), &vec![round as u8; size], 0).unwrap();
        }
    }
    let contents = store.contents();
    assert_eq!((contents.items, contents.counts.evictions), (count, 0), "{contents:?}");
}

#[test]
fn expired_items_are_given_back_without_being_asked_for() {
    let store = store(64 << 20);
    for index in 0..100_000u32 {
        let expiry = store.clock().now() + if index % 10 == 0 { 0 } else { 1 };
        let expiry = if index % 10 == 0 { 0 } else { expiry };
        put(&store, format!("key-{index}").as_bytes(), &[1; 200], expiry).unwrap();
    }
    let before = store.contents();
    std::thread::sleep(Duration::from_millis(2100));
    for _ in 0..200 {
        store.tend(Duration::from_millis(5));
    }
    let after = store.contents();
    assert_eq!(after.items, 10_000, "{after:?}");
    assert!(after.memory - after.tables < (before.memory - before.tables) / 3, "{before:?} {after:?}");
    assert_eq!(after.counts.evictions, 0);
}

#[test]
fn what_is_asked_for_often_stays_and_what_is_not_goes() {
    let store = store(4 << 20);
    for index in 0..1000 {
        put(&store, format!("hot-{index}").as_bytes(), &[1; 200], 0).unwrap();
    }
    for index in 0..200_000 {
        put(&store, format!("cold-{index}").as_bytes(), &[2; 200], 0).unwrap();
        get(&store, format!("hot-{}", index % 1000).as_bytes(), NOW);
    }
    let kept =
        (0..1000).filter(|index| get(&store, format!("hot-{index}").as_bytes(), NOW).is_some()).count();
    assert!(kept > 950, "{kept} of 1000");
}

#[test]
fn without_evictions_a_full_store_refuses_and_takes_again_when_there_is_room() {
    let store = Store::new(Limits { memory: 4 << 20, item: 1 << 20, evict: false, workers: 1 });
    let mut stored = 0u32;
    while put(&store, format!("key-{stored}").as_bytes(), &[1; 500], 0).is_ok() {
        stored += 1;
        assert!(stored < 20_000);
    }
    assert!(stored > 6000, "{stored}");
    assert!((0..stored).all(|index| get(&store, format!("key-{index}").as_bytes(), NOW).is_some()));
    for index in 0..stored / 2 {
        store.lock(format!("key-{index}").as_bytes(), NOW).remove();
    }
    assert_eq!(put(&store, b"again", &[1; 500], 0), Ok(()));
    assert_eq!(store.contents().counts.evictions, 0);
}

#[test]
fn what_can_never_be_held_is_out_of_memory() {
    let store = Store::new(Limits { memory: 8 << 20, item: 16 << 20, evict: true, workers: 1 });
    assert_eq!(put(&store, b"k", &vec![0; 5 << 20], 0), Err(OutOfMemory));
    assert_eq!(store.large(5 << 20, NOW).err(), Some(OutOfMemory));
    assert!(put(&store, b"k", &vec![0; 3 << 20], 0).is_ok());
}

#[test]
fn large_values_put_small_ones_out_and_the_other_way_round() {
    let store = store(32 << 20);
    for index in 0..200_000 {
        put(&store, format!("small-{index}").as_bytes(), &[1; 200], 0).unwrap();
    }
    for index in 0..100 {
        put(&store, format!("large-{index}").as_bytes(), &vec![2; 900_000], 0).unwrap();
        assert!(store.memory.used() <= store.limit());
    }
    assert!(store.memory.large() > 12 << 20, "{}", store.memory.large());
    for index in 0..400_000 {
        put(&store, format!("again-{index}").as_bytes(), &[1; 200], 0).unwrap();
    }
    assert!(store.memory.large() < 8 << 20, "{}", store.memory.large());
    assert!(store.memory.used() <= store.limit());
}

#[test]
fn a_lowered_limit_holds_soon() {
    let store = store(64 << 20);
    for index in 0..200_000 {
        put(&store, format!("key-{index}").as_bytes(), &[1; 200], 0).unwrap();
    }
    assert!(store.set_limit(16 << 20) && !store.set_limit(1 << 20));
    for _ in 0..100 {
        store.tend(Duration::from_millis(5));
    }
    assert!(store.memory.used() <= 16 << 20, "{}", store.memory.used());
}

#[test]
fn threads_that_use_one_store_see_whole_values() {
    let store = store(8 << 20);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let store = &store;
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(thread);
                for round in 0..30_000u32 {
                    let key = random.random_range(0..300u32);
                    let name = format!("key-{key}");
                    if random.random_range(0..3) == 0 {
                        let size =
                            if random.random_range(0..50) == 0 { 100_000 } else { 16 + round as usize % 900 };
                        let mut value = vec![round as u8; size];
                        value[..4].copy_from_slice(&key.to_le_bytes());
                        put(store, name.as_bytes(), &value, 0).unwrap();
                    } else if let Some(found) = get(store, name.as_bytes(), NOW) {
                        assert_eq!(found[..4], key.to_le_bytes());
                        assert!(found[4..].iter().all(|byte| *byte == found[4]));
                    }
                }
            });
        }
    });
    assert!(store.contents().memory <= store.limit());
}
