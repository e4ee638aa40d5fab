use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::memory::footprint;
use super::*;

const NOW: u32 = 100;

fn store(memory: u64) -> Store {
    Store::new(&Config { memory, ..Config::default() }, 2)
}

fn put(store: &Store, key: &[u8], value: &[u8], expiry: u32) -> Result<(), OutOfMemory> {
    let new =
        NewItem { flags: 0, expiry, cas: store.next_cas(), bits: ItemBits::default(), value: value.into() };
    store.lock(key, NOW).put(new)
}

fn get(store: &Store, key: &[u8], now: u32) -> Option<Vec<u8>> {
    let mut entry = store.lock(key, now);
    entry.record_fetch();
    entry.value().map(|(_, value)| value.bytes().to_vec())
}

fn value_of(key: u32, version: u32, size: usize) -> Vec<u8> {
    let mut value = vec![(key ^ version) as u8; size];
    let head = [key.to_le_bytes(), version.to_le_bytes()].concat();
    let length = size.min(8);
    value[..length].copy_from_slice(&head[..length]);
    value
}

#[test]
fn an_item_expires_at_its_second() {
    let store = store(8 << 20);
    put(&store, b"k", b"v", NOW + 1).unwrap();
    assert!(get(&store, b"k", NOW).is_some());
    assert!(get(&store, b"k", NOW + 1).is_none());
    assert_eq!(store.usage().items, 0);
    assert_eq!(store.usage().counters.found_expired, 1);
}

#[test]
fn a_flush_removes_existing_items_and_keeps_later_ones() {
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

/// Runs random operations against the store and a `HashMap`, and compares every hit.
#[test]
fn a_hit_returns_the_last_stored_value_while_items_are_evicted() {
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
            assert!(
                store.shards.memory.used.load() <= store.limit() + 4096 * 64,
                "{} bytes",
                store.shards.memory.used.load()
            );
        }
        let usage = store.usage();
        assert!(hits > 2000 && usage.counters.evictions > 0, "{hits} {usage:?}");
        // A walk visits exactly the stored items.
        let (mut seen, mut from) = (0, Some(WalkPosition::default()));
        while let Some(here) = from {
            from = store.walk(here, NOW, |_, _| {
                seen += 1;
                ControlFlow::Continue(())
            });
        }
        assert_eq!(seen, usage.items);
    }
}

#[test]
fn memory_is_reused_when_item_sizes_change() {
    let store = store(32 << 20);
    for round in 0..6u32 {
        let size = [100, 3000, 10, 60_000, 500, 1][round as usize];
        for index in 0..(64 << 20) / (size + 60) {
            put(&store, format!("key-{round}-{index}").as_bytes(), &vec![7; size as usize], 0).unwrap();
        }
        let usage = store.usage();
        assert!(usage.memory <= store.limit(), "{usage:?}");
        // Items of this round take most of the memory, whatever their size.
        let (kept, whole) = (usage.bytes as f64, store.limit() as f64);
        assert!(kept + usage.tables as f64 > 0.8 * whole, "size {size}: {usage:?}");
    }
}

#[test]
fn replaced_items_are_reclaimed_before_live_ones_are_evicted() {
    let store = store(16 << 20);
    let count = (8 << 20) / 300;
    for round in 0..20u32 {
        for index in 0..count {
            // Another size in each round, so that no item is overwritten in place.
            let size = 200 + (round as usize % 4) * 10;
            put(&store, format!("key-{index}").as_bytes(), &vec![round as u8; size], 0).unwrap();
        }
    }
    let usage = store.usage();
    assert_eq!((usage.items, usage.counters.evictions), (count, 0), "{usage:?}");
}

#[test]
fn maintenance_releases_the_memory_of_expired_items() {
    let store = store(64 << 20);
    for index in 0..100_000u32 {
        let expiry = store.clock.now() + if index % 10 == 0 { 0 } else { 1 };
        let expiry = if index % 10 == 0 { 0 } else { expiry };
        put(&store, format!("key-{index}").as_bytes(), &[1; 200], expiry).unwrap();
    }
    let before = store.usage();
    std::thread::sleep(Duration::from_millis(2100));
    let give_up = std::time::Instant::now() + Duration::from_secs(60);
    while store.usage().items > 10_000 && std::time::Instant::now() < give_up {
        store.maintain(Duration::from_millis(5));
    }
    let after = store.usage();
    assert_eq!(after.items, 10_000, "{after:?}");
    assert!(after.memory - after.tables < (before.memory - before.tables) / 3, "{before:?} {after:?}");
    assert_eq!(after.counters.evictions, 0);
}

#[test]
fn frequently_fetched_items_survive_eviction() {
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
fn without_evictions_a_full_store_refuses_items_until_others_are_deleted() {
    let store = Store::new(&Config { memory: 4 << 20, evict: false, ..Config::default() }, 1);
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
    assert_eq!(store.usage().counters.evictions, 0);
}

#[test]
fn a_value_above_half_of_the_limit_is_out_of_memory() {
    let store = Store::new(&Config { memory: 8 << 20, max_item: 16 << 20, ..Config::default() }, 1);
    assert_eq!(put(&store, b"k", &vec![0; 5 << 20], 0), Err(OutOfMemory));
    assert_eq!(store.shards.allocate_large_value(5 << 20, NOW).err(), Some(OutOfMemory));
    assert!(put(&store, b"k", &vec![0; 3 << 20], 0).is_ok());
    // What rounding adds does not count: memcached accepts the value.
    let store = Store::new(&Config { memory: 70 << 20, max_item: 35 << 20, ..Config::default() }, 1);
    assert!(put(&store, b"k", &vec![0; 35_700_000], 0).is_ok());
    assert!(store.shards.allocate_large_value(30_000_000, NOW).is_ok());
}

#[test]
fn buffers_count_against_the_limit_beyond_a_small_share_and_up_to_half() {
    let limit: u64 = 32 << 20;
    let store = store(limit);
    for key in 0..400_000u32 {
        put(&store, &key.to_le_bytes(), &[7; 100], 0).unwrap();
    }
    let (full, evictions) = (store.usage().memory, store.usage().counters.evictions);
    assert!(full > limit * 9 / 10);
    // One in 32 is free.
    let free = store.shards.reserve_buffer(1 << 20, NOW).unwrap();
    assert_eq!((store.usage().memory, store.usage().counters.evictions), (full, evictions));
    let counted: Vec<_> = (0..40).map_while(|_| store.shards.reserve_buffer(1 << 20, NOW).ok()).collect();
    assert_eq!(counted.len(), 16);
    assert!(store.usage().memory <= limit && store.usage().counters.evictions > evictions);
    // What is refused leaves no trace.
    assert_eq!(store.shards.memory.unstored.load(), 16 << 20);
    let before = store.usage().memory;
    drop((free, counted));
    assert_eq!((store.usage().memory, store.shards.memory.unstored.load()), (before - (16 << 20), 0));
    assert!(store.shards.reserve_buffer(1 << 20, NOW).is_ok());
}

#[test]
fn large_and_small_values_evict_each_other() {
    let store = store(32 << 20);
    for index in 0..200_000 {
        put(&store, format!("small-{index}").as_bytes(), &[1; 200], 0).unwrap();
    }
    for index in 0..100 {
        put(&store, format!("large-{index}").as_bytes(), &vec![2; 900_000], 0).unwrap();
        assert!(store.shards.memory.used.load() <= store.limit());
    }
    assert!(store.shards.memory.large.load() > 12 << 20, "{}", store.shards.memory.large.load());
    for index in 0..400_000 {
        put(&store, format!("again-{index}").as_bytes(), &[1; 200], 0).unwrap();
    }
    assert!(store.shards.memory.large.load() < 8 << 20, "{}", store.shards.memory.large.load());
    assert!(store.shards.memory.used.load() <= store.limit());
}

#[test]
fn a_large_value_takes_the_memory_of_one_of_its_size_that_was_dropped() {
    let store = store(128 << 20);
    let (larger, smaller) = (917_504, 507_904);
    // While a value is received the one that it replaces is stored.
    for (size, spare) in [(900_000, 0), (900_000, larger), (500_000, 2 * larger), (905_000, larger + smaller)]
    {
        put(&store, b"k", &vec![size as u8; size], 0).unwrap();
        assert_eq!(get(&store, b"k", NOW).unwrap(), vec![size as u8; size]);
        assert_eq!(store.shards.memory.spare_bytes(), spare, "{size}");
        assert_eq!(store.shards.memory.large.load(), footprint(size), "spare memory counts as used");
    }
}

#[test]
fn spare_memory_of_large_values_is_at_most_a_32nd_of_the_limit() {
    let store = store(128 << 20);
    for index in 0..20u32 {
        put(&store, &index.to_le_bytes(), &vec![1; 900_000], 0).unwrap();
    }
    store.flush(None);
    let spare = store.shards.memory.spare_bytes();
    assert!((3 << 20..=4 << 20).contains(&spare), "{spare}");
    // A value above the bound unmaps none of them, and a lowered limit does.
    put(&store, b"k", &vec![1; 5 << 20], 0).unwrap();
    store.lock(b"k", NOW).remove();
    assert_eq!(store.shards.memory.spare_bytes(), spare);
    store.set_limit(64 << 20);
    store.maintain(Duration::from_millis(1));
    let spare = store.shards.memory.spare_bytes();
    assert!((1 << 20..=2 << 20).contains(&spare), "{spare}");
}

#[test]
fn maintenance_enforces_a_lowered_limit() {
    let store = store(64 << 20);
    for index in 0..200_000 {
        put(&store, format!("key-{index}").as_bytes(), &[1; 200], 0).unwrap();
    }
    assert!(store.set_limit(16 << 20) && !store.set_limit(1 << 20));
    for _ in 0..100 {
        store.maintain(Duration::from_millis(5));
    }
    assert!(store.shards.memory.used.load() <= 16 << 20, "{}", store.shards.memory.used.load());
}

#[test]
fn concurrent_threads_never_read_torn_values() {
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
    assert!(store.usage().memory <= store.limit());
}

/// Whatever a segment holds and however large the index is: a `set` in a full store works on some
/// items more than its own, under its shard's lock.
#[test]
fn a_set_works_on_a_bounded_number_of_items() {
    for (memory, evict, rounds) in
        [(8 << 20, true, 500_000), (32 << 20, true, 900_000), (8 << 20, false, 150_000)]
    {
        let store = Store::new(&Config { memory, evict, ..Config::default() }, 1);
        let mut random = StdRng::seed_from_u64(memory);
        let (mut before, mut most, mut refused) = (0, 0, 0);
        for round in 0..rounds {
            let key = random.random_range(0..1_000_000u32).to_le_bytes();
            let expiry = if round % 3 == 0 { NOW + 1 } else { 0 };
            refused += u32::from(put(&store, &key, &vec![1; random.random_range(0..40)], expiry).is_err());
            if round % 4 == 0 {
                get(&store, &random.random_range(0..1_000_000u32).to_le_bytes(), NOW);
            }
            let worked_on = |StoreCounters { evictions, moved, crawled, .. }| evictions + moved + crawled;
            let worked: u64 = store.shards.each().map(|shard| worked_on(shard.counters)).sum();
            most = most.max(worked - before);
            before = worked;
        }
        let largest_part = store.shards.each().map(|shard| shard.index.largest_part()).max().unwrap();
        assert!(before > 100_000 || !evict, "{memory}: only {before} items were worked on");
        // Of 64 times the largest item, 32 bytes each.
        assert!(most <= 150, "{memory}: one set has worked on {most} items");
        assert!(largest_part <= 1 << 13, "{memory}: {largest_part} entries of one table");
        assert_eq!(refused > 0, !evict, "{refused} sets were refused");
    }
}

/// Panics while a shard is locked, after `damage` was done to it.
fn panic_in_shard(store: &Store, index: usize, damage: impl FnOnce(&mut super::shard::Shard)) {
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        damage(&mut store.shards.lock(index));
        let mut shard = store.shards.lock(index);
        shard.generation += 1;
        panic!("while the shard is locked");
    }));
    assert!(panicked.is_err());
}

#[test]
fn a_panic_under_a_shards_lock_empties_that_shard_and_the_store_goes_on() {
    let store = store(16 << 20);
    for key in 0..10_000_u32 {
        put(&store, &key.to_le_bytes(), &value_of(key, 0, 400), NOW + 10).unwrap();
    }
    put(&store, b"large", &[1; 500_000], 0).unwrap();
    let shards = store.shards.len();
    assert!(shards > 1);
    for index in 0..shards {
        let before = store.usage().items;
        // The items' locations lead nowhere.
        panic_in_shard(&store, index, |shard| {
            let first = shard.log.segments().map(|(index, _)| index).next().unwrap();
            shard.log.close(first);
            shard.log.free(first);
        });
        let after = store.usage().items;
        assert!(after < before && (index + 1 == shards || after > 0), "{before} items, then {after}");
    }
    assert_eq!((store.usage().items, store.usage().bytes), (0, 0));
    assert_eq!(store.shards.memory.used.load(), 0, "its memory is not lost");
    for second in 0..20 {
        store.maintain(Duration::from_millis(2));
        put(&store, b"new", b"value", NOW + second + 1).unwrap();
        assert_eq!(get(&store, b"new", NOW + second).unwrap(), b"value");
        assert!(get(&store, b"new", NOW + second + 1).is_none());
    }
}

#[test]
fn a_walk_takes_short_steps_and_visits_each_item_once_also_from_where_it_was_stopped() {
    let store = Store::new(&Config { memory: 256 << 20, ..Config::default() }, 1);
    let keys = 100_000_u32;
    for key in 0..keys {
        put(&store, &key.to_le_bytes(), b"v", 0).unwrap();
    }
    for stop_after in [1, 7, 10_000] {
        let (mut seen, mut from) = (HashSet::new(), Some(WalkPosition::default()));
        while let Some(here) = from.filter(|_| stop_after > 1 || seen.len() < 5000) {
            let mut step = 0;
            from = store.walk(here, NOW, |key, _| {
                assert!(seen.insert(key.to_vec()), "an item was visited twice");
                step += 1;
                if step == stop_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            assert!(step <= stop_after.min(1000), "{step} items under one lock");
        }
        assert_eq!(seen.len() as u32, if stop_after > 1 { keys } else { 5000 });
    }
}

#[test]
fn a_walk_goes_on_where_its_segment_was_freed_and_its_number_used_again() {
    let store = store(4 << 20);
    let fill = |round: u32, size: usize| {
        for key in 0..(5 << 20) / (size + 40) {
            put(&store, format!("{round}-{key}").as_bytes(), &vec![round as u8; size], 0).unwrap();
        }
    };
    fill(0, 77);
    let mut from = Some(WalkPosition::default());
    for round in 1..12 {
        let Some(here) = from else { break };
        from = store.walk(here, NOW, |key, header| {
            assert!(key.iter().all(u8::is_ascii_graphic) && header.length < 1000, "no item is there");
            // In the middle of a segment.
            ControlFlow::Break(())
        });
        fill(round, [77, 120, 500, 33][round as usize % 4]);
    }
}
