//! The io_uring driver: receives and sends of streams are operations of a ring; everything else
//! uses the epoll driver.
//!
//! The worker waits in the ring, which watches the epoll instance. Under kernel polling the enter
//! that would sleep polls the queue first ([`polling`]).
//!
//! From bottom to top: [`ring`] and [`buffers`] are what the kernel shares; [`socket_state`] and
//! [`listener_state`] what operations need; [`operations`] the table of those in flight; [`driver`]
//! holds all of it; [`recv`], [`send`], [`accept`] and [`msg_ring`] submit and complete operations;
//! [`wait`] is the wait; [`socket`] and [`listener`] are what networking libraries use.

mod accept;
mod buffers;
pub(crate) mod driver;
pub(crate) mod listener;
mod listener_state;
mod msg_ring;
pub(crate) mod operations;
mod polling;
mod recv;
pub(crate) mod ring;
mod send;
pub(crate) mod socket;
pub(crate) mod socket_state;
mod wait;
