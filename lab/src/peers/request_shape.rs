//! The sizes of requests and replies.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestShape {
    pub request: usize,
    pub reply: usize,
}

impl RequestShape {
    pub const SMALL: Self = Self { request: 40, reply: 200 };
}

/// Bytes of a server's read buffer, if the runtime doesn't provide one.
pub(super) const READ_BUFFER: usize = 4096;

static REPLIES: [u8; 64 << 10] = [b'a'; 64 << 10];

pub(super) struct RequestCounter {
    shape: RequestShape,
    partial: usize,
}

impl RequestCounter {
    pub(super) fn new(shape: RequestShape) -> Self {
        Self { shape, partial: 0 }
    }

    /// The replies to the requests that `received` more bytes complete.
    pub(super) fn replies(&mut self, received: usize) -> &'static [u8] {
        self.partial += received;
        let complete = self.partial / self.shape.request;
        self.partial %= self.shape.request;
        // The largest read: READ_BUFFER / 40 requests with replies of 200 bytes, or one of Lull's
        // buffers.
        &REPLIES[..(complete * self.shape.reply).min(REPLIES.len())]
    }
}
