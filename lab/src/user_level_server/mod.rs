//! A memcached server on a network stack in user space, to compare the kernel's with: smoltcp over AF_XDP.
//!
//! It is what it says, and neither F-Stack nor Caladan. Store and protocol are those of the bundled memcached server
//! ([`servers::memcached::sessions`]), so that the stack is all that differs. It never blocks: its core is busy all the time.
//!
//! On a veth the driver runs the XDP program itself (native mode), but has no zero-copy mode. So a request is copied from the
//! sender's packet into a page for the XDP program, from there into a frame of the AF_XDP socket, and from there into the
//! receive buffer of smoltcp's socket, where it is parsed. A reply is copied from the session's buffer into smoltcp's send
//! buffer, from there into a frame, and from there into the kernel's packet.

mod connection;
mod connections;
mod frame_socket;
mod link;
mod queue_poller;
mod server;
mod spec;
mod xdp_program;

pub(crate) use server::serve;
pub use spec::{LostFrames, PORT, UserLevelServerReady, UserLevelServerSpec};
