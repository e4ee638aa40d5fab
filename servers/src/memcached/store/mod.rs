//! The item store: shards, each with a hash table and a log of segments, under one memory limit.
//!
//! A command locks its key's shard with [`Store::lock`] and runs all of its steps under that lock,
//! so every command is atomic. Small values are copied out under the lock. Large values live in
//! their own pages and are shared by reference count, so a value that is being sent stays intact
//! when it is replaced.

mod ghost_queue;
mod item_layout;
mod locked_entry;
mod memory;
mod reclaim;
mod segment_log;
mod shard;
mod shard_set;
mod sharded_store;
mod value;

#[cfg(test)]
mod tests;

pub use item_layout::{ItemBits, ItemHeader};
pub use locked_entry::LockedEntry;
pub use memory::{BufferReservation, OutOfMemory};
pub use sharded_store::{Store, StoreConfig, WalkPosition};
pub use value::LargeValue;
pub use value::{NewItem, NewValue, StoredValue};
