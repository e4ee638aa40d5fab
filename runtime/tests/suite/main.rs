//! The runtime by its public interface. One program, since each has to be linked.

mod attributes;
mod awaited_number;
mod block_on;
mod descriptors;
mod drivers;
mod fairness;
mod fs;
mod handle_block_on;
mod handles;
mod metrics;
mod outside;
mod paused_time;
mod pipe;
mod process;
mod ring_operations;
mod stdio;
mod task_groups;
mod tasks;
mod time;
