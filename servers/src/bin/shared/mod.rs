//! What the commands of this crate have in common.

pub mod guardian;
pub mod network_flags;
pub mod process;
pub mod serving;
