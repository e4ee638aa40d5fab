//! What the commands of this crate have in common.

pub mod descriptor_limit;
pub mod guardian;
pub mod inherited_listeners;
pub mod network_flags;
pub mod pid_file;
pub mod run_as_user;
