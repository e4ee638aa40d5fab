//! What a session expects next in its input.

use super::buffer_charge::BufferCharge;
use crate::memcached::mutation::StoreRequest;
use crate::memcached::protocol::store_reply::StoreReply;
use crate::memcached::store::LargeValue;

/// What the next bytes of the input are.
pub enum PendingInput {
    /// A request.
    Request,
    /// The data block of a storage command.
    DataBlock(Box<DataBlock>),
    /// This many bytes that are discarded.
    Discard(usize),
}

/// A storage command whose data block is being received.
pub struct DataBlock {
    pub request: StoreRequest<Box<[u8]>>,
    pub reply: StoreReply<Box<[u8]>>,
    pub value: PartialValue,
    /// The bytes that terminate the block, as far as they were received.
    pub terminator: [u8; 2],
    pub terminator_length: usize,
}

/// A value that is being received.
pub enum PartialValue {
    Small { received: Vec<u8>, _charge: BufferCharge },
    Large { value: LargeValue, filled: usize },
}

impl DataBlock {
    /// Bytes of the value that were not received yet.
    pub fn missing(&self) -> usize {
        match &self.value {
            PartialValue::Small { received, .. } => self.request.length - received.len(),
            PartialValue::Large { filled, .. } => self.request.length - filled,
        }
    }
}
