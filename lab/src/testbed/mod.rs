//! Two network namespaces joined by a veth pair.

mod card;
mod namespace;
mod receiver;
mod rtnetlink;
mod veth;

pub use card::{Card, CardEnd};
pub use namespace::Namespace;
pub use receiver::{INTERRUPT_THREAD_PRIORITY, Receiver, poll_by_threads};
pub use rtnetlink::PREFIX_LENGTH;
pub use veth::{
    CLIENT_ADDRESS, CLIENT_INTERFACE, CONGESTION_CONTROL, FLEET_MAC, MOST_FLEETS, SERVER_ADDRESS,
    SERVER_INTERFACE, SERVER_MAC, Testbed, fleet_address,
};
