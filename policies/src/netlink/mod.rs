//! Synchronous netlink: one request, all its replies.
//!
//! Message layouts come from the `netlink-packet-*` crates; this module sends and receives.

mod connection;
pub mod ethtool;
pub mod generic;
pub mod netdev;
pub mod route;

pub use connection::{
    Connection, NetlinkDeserializable, NetlinkPayload, NetlinkSerializable, Request, errno,
};
