//! What clients may send of requests before somebody reads it.

use super::shared_room::{SharedRoom, Taken};

/// What all connections have together, beside the least that each has.
static SHARED: SharedRoom = SharedRoom::new(256 << 20);
/// A connection takes at most this part of what is left, so that there is some for those who come
/// later.
const PART: usize = 256;

/// How many bytes of requests the client of a connection may send before somebody reads them, on
/// HTTP/2 and HTTP/3: the flow-control window. What exceeds [`LEAST`](Self::LEAST) is taken, until
/// this is dropped, of 256 MiB that all connections of the process share. A connection gets less
/// where little is left.
#[derive(Debug)]
pub struct RequestWindow(Taken);

impl RequestWindow {
    /// What every connection has, in bytes: HTTP/2 lets each client send as much before it knows
    /// anything of the server (RFC 9113, section 6.9.2).
    pub const LEAST: u32 = 65_535;

    /// Takes a window of up to `most` bytes.
    pub fn take(most: u32) -> Self {
        Self::take_of(&SHARED, most)
    }

    fn take_of(shared: &'static SharedRoom, most: u32) -> Self {
        let more = most.saturating_sub(Self::LEAST) as usize;
        Self(shared.take(more.min(shared.left() / PART)))
    }

    /// The flow-control window in bytes: [`LEAST`](Self::LEAST) or more.
    pub fn bytes(&self) -> u32 {
        // Fits: `take_of` takes at most `u32::MAX - LEAST` bytes.
        Self::LEAST + self.0.bytes() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_share_what_exceeds_the_least_and_give_it_back() {
        const MOST: u32 = 384 << 10;
        let shared = SharedRoom::leaked(256 << 20);
        let windows: Vec<_> = (0..10_000).map(|_| RequestWindow::take_of(shared, MOST)).collect();
        assert_eq!([0, 500].map(|number: usize| windows[number].bytes()), [MOST; 2]);
        assert!(windows[2000].bytes() > RequestWindow::LEAST, "later ones have some, too");
        let sum = windows.iter().map(|window| u64::from(window.bytes() - RequestWindow::LEAST)).sum::<u64>();
        assert!((250 << 20..=256 << 20).contains(&sum), "{sum}");
        drop(windows);
        assert_eq!(shared.taken(), 0);
        assert_eq!(RequestWindow::take_of(shared, 1).bytes(), RequestWindow::LEAST);
    }
}
