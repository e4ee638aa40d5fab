//! What the application decides about a worker's ring.

/// The sizes of a ring, and of what each of its connections may hold.
#[derive(Debug, Clone)]
pub(crate) struct RingOptions {
    /// The size of the submission queue; more submissions take a second enter.
    pub(crate) submissions: u32,
    /// Unread bytes of one connection above which its receive is cancelled: then TCP's window stops
    /// the peer, as a full socket buffer would.
    pub(crate) unread_limit: usize,
    /// Unsent bytes of one connection above which a write has to wait.
    pub(crate) unsent_limit: usize,
}

impl Default for RingOptions {
    fn default() -> Self {
        Self { submissions: 512, unread_limit: 128 << 10, unsent_limit: 64 << 10 }
    }
}

impl RingOptions {
    /// The least bytes that a connection may hold in either direction.
    pub(crate) const LEAST: usize = 4 << 10;
}
