//! Counts by the prefix of the key, for `stats detail`.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Prefixes that are counted; others are not, as in memcached.
const MAX_PREFIXES: usize = 1 << 16;
/// Bytes of lines that are written while other connections can't count.
const PART: usize = 64 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyEvent {
    Get { hit: bool },
    Set,
    Delete,
}

#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    gets: u64,
    hits: u64,
    sets: u64,
    deletes: u64,
}

/// The counts of all prefixes, while they are enabled.
#[derive(Debug)]
pub struct PrefixCounts {
    enabled: AtomicBool,
    delimiter: u8,
    /// In order, so that a list of them can be continued.
    counts: Mutex<BTreeMap<Box<[u8]>, Counts>>,
}

impl PrefixCounts {
    pub fn new(enabled: bool, delimiter: u8) -> Self {
        Self { enabled: AtomicBool::new(enabled), delimiter, counts: Mutex::default() }
    }

    pub fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Relaxed)
    }

    pub fn enable(&self, enabled: bool) {
        self.enabled.store(enabled, Ordering::Relaxed);
    }

    pub fn delimiter(&self) -> u8 {
        self.delimiter
    }

    pub fn count(&self, key: &[u8], event: KeyEvent) {
        if !self.is_enabled() {
            return;
        }
        let Some(end) = memchr::memchr(self.delimiter, key) else { return };
        let prefix = &key[..end];
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if !counts.contains_key(prefix) {
            if counts.len() >= MAX_PREFIXES {
                return;
            }
            counts.insert(prefix.into(), Counts::default());
        }
        let Some(counts) = counts.get_mut(prefix) else { return };
        match event {
            KeyEvent::Get { hit } => {
                counts.gets += 1;
                counts.hits += u64::from(hit);
            }
            KeyEvent::Set => counts.sets += 1,
            KeyEvent::Delete => counts.deletes += 1,
        }
    }

    pub fn reset(&self) {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Writes some 64 KiB of the reply to `stats detail dump`, without the last line: the prefixes after one, in order.
    /// Returns the last one that was written, and `None` if it was the last of all.
    pub fn write_part(&self, after: Option<&[u8]>, out: &mut Vec<u8>) -> Option<Box<[u8]>> {
        let end = out.len() + PART;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        for (prefix, counts) in counts.range::<[u8], _>((from, Bound::Unbounded)) {
            let Counts { gets, hits, sets, deletes } = *counts;
            out.extend_from_slice(b"PREFIX ");
            out.extend_from_slice(prefix);
            out.extend_from_slice(format!(" get {gets} hit {hits} set {sets} del {deletes}\r\n").as_bytes());
            if out.len() >= end {
                return Some(prefix.clone());
            }
        }
        None
    }

    #[cfg(test)]
    fn write(&self, out: &mut Vec<u8>) {
        let mut last = None;
        loop {
            last = self.write_part(last.as_deref(), out);
            if last.is_none() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_with_a_prefix_are_counted_while_that_is_enabled() {
        let counts = PrefixCounts::new(false, b':');
        counts.count(b"a:1", KeyEvent::Set);
        counts.enable(true);
        for event in
            [KeyEvent::Set, KeyEvent::Get { hit: true }, KeyEvent::Get { hit: false }, KeyEvent::Delete]
        {
            counts.count(b"a:1", event);
            counts.count(b"none", event);
        }
        let written = || {
            let mut text = Vec::new();
            counts.write(&mut text);
            String::from_utf8(text).unwrap()
        };
        assert_eq!(written(), "PREFIX a get 2 hit 1 set 1 del 1\r\n");
        for number in 0..MAX_PREFIXES + 10 {
            counts.count(format!("{number}:").as_bytes(), KeyEvent::Set);
        }
        assert_eq!(written().lines().count(), MAX_PREFIXES);
        counts.reset();
        assert_eq!(written(), "");
    }
}
