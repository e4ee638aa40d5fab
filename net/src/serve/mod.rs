//! Serving connections on the workers that own their NAPIs.

mod accept;
mod accept_errors;
mod alignment_counts;
mod connections;
mod datagrams;
mod listener_group;
mod serving;
mod steering;

pub use self::accept_errors::AcceptErrors;
pub use self::alignment_counts::Alignment;
pub use self::connections::ListenerFailure;
pub use self::datagrams::{UdpServing, UdpSteering};
pub use self::serving::{Serving, ShutdownReport};
