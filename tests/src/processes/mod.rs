//! Servers as processes that a test starts.

mod inherited_socket;
mod kill_on_drop;
pub mod memcached;
mod server_log;

pub use self::inherited_socket::with_inherited_socket;
pub use self::kill_on_drop::KillOnDrop;
