//! What clients may send of requests before somebody reads it.

use std::sync::atomic::{AtomicUsize, Ordering};

/// What every connection has: HTTP/2 lets each client send as much before it knows anything of the server (RFC 9113, section 6.9.2).
const LEAST: u32 = 65_535;
/// What all connections have together beside that.
static SHARED: Shared = Shared { taken: AtomicUsize::new(0), max: 256 << 20 };
/// A connection takes at most this part of what is left, so that there is some for those who come later.
const PART: usize = 256;

#[derive(Debug)]
struct Shared {
    taken: AtomicUsize,
    max: usize,
}

/// How many bytes of requests the client of a connection may send before somebody reads them, on HTTP/2 and HTTP/3: the flow-control
/// window. What exceeds 65,535 bytes is taken, until this is dropped, of 256 MiB that all connections of the process share. A
/// connection gets less where little is left.
#[derive(Debug)]
pub struct RequestWindow {
    bytes: u32,
    shared: &'static Shared,
}

impl RequestWindow {
    /// Takes a window of up to `most` bytes.
    pub fn take(most: u32) -> Self {
        Self::take_of(&SHARED, most)
    }

    fn take_of(shared: &'static Shared, most: u32) -> Self {
        let left = shared.max.saturating_sub(shared.taken.load(Ordering::Relaxed));
        let part = u32::try_from(left / PART).unwrap_or(u32::MAX);
        let more = most.saturating_sub(LEAST).min(part);
        // Workers that do this at the same time take a little more than is there: no more than that part each.
        shared.taken.fetch_add(more as usize, Ordering::Relaxed);
        Self { bytes: LEAST + more, shared }
    }

    /// The flow-control window in bytes: 65,535 at least.
    pub fn bytes(&self) -> u32 {
        self.bytes
    }
}

impl Drop for RequestWindow {
    fn drop(&mut self) {
        self.shared.taken.fetch_sub((self.bytes - LEAST) as usize, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_share_what_exceeds_the_least_and_give_it_back() {
        const MOST: u32 = 384 << 10;
        let shared: &'static Shared =
            Box::leak(Box::new(Shared { taken: AtomicUsize::new(0), max: 256 << 20 }));
        let windows: Vec<_> = (0..10_000).map(|_| RequestWindow::take_of(shared, MOST)).collect();
        assert_eq!([0, 500].map(|number: usize| windows[number].bytes()), [MOST; 2]);
        assert!(windows[2000].bytes() > LEAST, "later ones have some, too");
        let sum = windows.iter().map(|window| u64::from(window.bytes() - LEAST)).sum::<u64>();
        assert!((250 << 20..=256 << 20).contains(&sum), "{sum}");
        drop(windows);
        assert_eq!(shared.taken.load(Ordering::Relaxed), 0);
        assert_eq!(RequestWindow::take_of(shared, 1).bytes(), LEAST);
    }
}
