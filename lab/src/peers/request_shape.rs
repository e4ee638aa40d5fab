//! The sizes of requests and replies.

use serde::{Deserialize, Serialize};

/// Sizes of a request and its reply, and the depth of the pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestShape {
    pub request: usize,
    pub reply: usize,
    pub depth: usize,
}

impl RequestShape {
    /// One request of 40 B in flight, with a reply of 200 B.
    pub const SMALL: Self = Self { request: 40, reply: 200, depth: 1 };
}

impl std::fmt::Display for RequestShape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} B to {} B", self.request, self.reply)?;
        if self.depth > 1 { write!(f, ", {} pipelined", self.depth) } else { Ok(()) }
    }
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
        // The largest read: READ_BUFFER / 40 requests with replies of 200 bytes, or one of Lull's buffers.
        &REPLIES[..(complete * self.shape.reply).min(REPLIES.len())]
    }
}
