//! Receives the data blocks of storage commands and stores them.

use super::{BufferCharge, DataBlock, FREE_BUFFER, PartialValue, PendingInput, Session};
use crate::memcached::mutation::{self, Condition, StoreOutcome};
use crate::memcached::protocol::KEY_MAX;
use crate::memcached::protocol::store_reply::{StoreCommand, StoreReply};
use crate::memcached::store::NewValue;

/// What terminates a data block of the text protocol.
const TERMINATOR: &[u8] = b"\r\n";

impl Session<'_> {
    /// Begins to execute a storage command. `after` is what was received behind it, which begins
    /// with its data block. Returns how many bytes of `after` were used.
    pub(super) fn begin_store(&mut self, command: StoreCommand<'_>, after: &[u8]) -> usize {
        let StoreCommand { key, meta_flags, request, reply } = command;
        debug_assert!(key.len() <= KEY_MAX);
        let store = self.store();
        let block_length = request.length + reply.terminator_length();
        if !store.fits(key.len(), request.flags, request.length) {
            self.counters.store_too_large.add(1);
            self.refuse_store(command, StoreOutcome::TooLarge);
            self.discard_input(block_length);
            return 0;
        }
        let value = if !store.shards.is_large(request.length) {
            if after.len() >= block_length {
                // The whole block was received: store it without an intermediate copy.
                let (value, terminator) = after[..block_length].split_at(request.length);
                self.finish_store(command, value.into(), terminator);
                return block_length;
            }
            let mut charge = BufferCharge::default();
            charge
                .set(self.context, request.length)
                .map(|()| PartialValue::Small { bytes: Vec::new(), _charge: charge })
        } else {
            store.shards.allocate_large_value(request.length, self.now).map(PartialValue::Large)
        };
        let Ok(value) = value else {
            self.counters.store_no_memory.add(1);
            self.refuse_store(command, StoreOutcome::OutOfMemory);
            self.discard_input(block_length);
            return 0;
        };
        let (key, meta_flags) = (key.into(), meta_flags.into());
        let block = DataBlock { key, meta_flags, request, reply, value, filled: 0 };
        self.receive_data_block(Box::new(block), after)
    }

    /// Replies that an item is not stored. The client expects its old value to be replaced, so the
    /// old value is removed.
    fn refuse_store(&mut self, command: StoreCommand<'_>, outcome: StoreOutcome) {
        let is_meta = matches!(command.reply, StoreReply::Meta { .. });
        if command.request.condition == Condition::Always || is_meta {
            self.store().lock(command.key, self.now).remove();
        }
        command.write_reply(outcome, &mut self.replies);
    }

    /// Receives the part of a data block at the start of `rest`. Returns its length. A terminator is
    /// received as a whole.
    pub(super) fn receive_data_block(&mut self, mut block: Box<DataBlock>, rest: &[u8]) -> usize {
        let length = block.request.length;
        let used = (length - block.filled).min(rest.len());
        match &mut block.value {
            PartialValue::Small { bytes: value, .. } => {
                if value.len() + used > value.capacity() {
                    // It grows with what is received, not with what is announced, and never above
                    // the value.
                    let capacity = (2 * value.capacity()).max(value.len() + used).max(FREE_BUFFER);
                    value.reserve_exact(length.min(capacity) - value.len());
                }
                value.extend_from_slice(&rest[..used]);
            }
            PartialValue::Large(value) => {
                value.bytes_mut()[block.filled..block.filled + used].copy_from_slice(&rest[..used]);
            }
        }
        block.filled += used;
        let terminator = rest[used..].get(..block.reply.terminator_length());
        let Some(terminator) = terminator.filter(|_| block.filled == length) else {
            self.pending = PendingInput::DataBlock(block);
            return used;
        };
        let DataBlock { key, meta_flags, request, reply, value, .. } = *block;
        let bytes;
        let value = match value {
            PartialValue::Small { bytes: received, .. } => {
                bytes = received;
                NewValue::from(&bytes[..])
            }
            PartialValue::Large(value) => NewValue::Large(value),
        };
        let command = StoreCommand { key: &key, meta_flags: &meta_flags, request, reply };
        self.finish_store(command, value, terminator);
        used + terminator.len()
    }

    /// The missing bytes of a large value that is being received. The caller may read directly into
    /// them and then call [`Session::value_bytes_received`].
    pub fn missing_value_bytes(&mut self) -> Option<&mut [u8]> {
        let PendingInput::DataBlock(block) = &mut self.pending else { return None };
        let PartialValue::Large(value) = &mut block.value else { return None };
        Some(&mut value.bytes_mut()[block.filled..]).filter(|missing| !missing.is_empty())
    }

    /// How many bytes of a value that is being received are missing, without its terminator.
    pub fn missing_bytes(&self) -> usize {
        match &self.pending {
            PendingInput::DataBlock(block) => block.request.length - block.filled,
            _ => 0,
        }
    }

    pub fn is_receiving_value(&self) -> bool {
        matches!(self.pending, PendingInput::DataBlock(_))
    }

    /// Reports that `bytes` were read into [`Session::missing_value_bytes`].
    pub fn value_bytes_received(&mut self, bytes: usize) {
        let pending = std::mem::replace(&mut self.pending, PendingInput::Request);
        if let PendingInput::DataBlock(mut block) = pending {
            block.filled += bytes;
            // A block without a terminator may be complete now.
            self.receive_data_block(block, &[]);
        }
    }

    fn finish_store(&mut self, command: StoreCommand<'_>, value: NewValue<'_>, terminator: &[u8]) {
        let counters = self.counters;
        counters.cmd_set.add(1);
        if terminator.len() == TERMINATOR.len() && terminator != TERMINATOR {
            command.write_reply(StoreOutcome::BadDataBlock, &mut self.replies);
            return;
        }
        let outcome = mutation::store_item(self.store(), command.key, &command.request, value, self.now);
        if command.request.condition == Condition::CasMatches {
            match outcome {
                StoreOutcome::Stored { .. } => counters.cas_hits.add(1),
                StoreOutcome::Exists => counters.cas_badval.add(1),
                _ => counters.cas_misses.add(1),
            }
        }
        if outcome == StoreOutcome::OutOfMemory {
            counters.store_no_memory.add(1);
            self.refuse_store(command, outcome);
            return;
        }
        if matches!(outcome, StoreOutcome::Stored { .. }) {
            counters.total_items.add(1);
        }
        command.write_reply(outcome, &mut self.replies);
    }
}
