//! Servers as processes that a test starts.

mod kill_on_drop;
pub mod memcached;

pub use self::kill_on_drop::KillOnDrop;
