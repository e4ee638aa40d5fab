//! The io_uring driver: receives and sends of streams are operations of a ring; everything else uses the
//! epoll driver.
//!
//! As `uring` the worker waits in the ring, which watches the epoll instance. As `hybrid` it waits in the
//! epoll instance, because only epoll suspends a queue's interrupts (`napi_suspend_irqs` has one caller,
//! `fs/eventpoll.c`). The ring signals its completions there by the [`completion_eventfd`]. The poll pass brings the packets, and one enter afterwards
//! carries all receives and sends of the turn.
//!
//! From bottom to top: [`ring`] and [`buffers`] are what the kernel shares; [`socket_state`] and
//! [`listener_state`] what operations need; [`operations`] the table of those in flight; [`driver`] holds
//! all of it; [`recv`], [`send`], [`accept`] and [`msg_ring`] submit and complete operations; [`wait`] is
//! the wait; [`socket`] and [`listener`] are what networking libraries use.

mod accept;
mod buffers;
mod completion_eventfd;
pub(crate) mod driver;
pub(crate) mod listener;
mod listener_state;
mod msg_ring;
pub(crate) mod operations;
mod recv;
mod ring;
mod send;
pub(crate) mod socket;
pub(crate) mod socket_state;
mod wait;
