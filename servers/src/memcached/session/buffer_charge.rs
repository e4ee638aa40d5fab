//! Counts a connection's large buffers against the store's limit.

use crate::memcached::context::ServerContext;
use crate::memcached::store::{BufferReservation, OutOfMemory};

/// What a buffer of a connection takes of the store's memory.
#[derive(Debug, Default)]
pub struct BufferCharge(Option<Box<BufferReservation>>);

impl BufferCharge {
    /// Counts a buffer of `bytes`, in place of what was counted before. Up to `free` bytes don't count.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the store can't give up so much. Nothing is counted then.
    pub fn set(&mut self, context: &ServerContext, bytes: usize, free: usize) -> Result<(), OutOfMemory> {
        if bytes <= free {
            self.0 = None;
        } else if self.0.as_ref().is_none_or(|counted| counted.bytes() != bytes as u64) {
            self.0 = None;
            let store = &context.store;
            self.0 = Some(Box::new(store.reserve_buffer(bytes, store.clock().now())?));
        }
        Ok(())
    }
}
