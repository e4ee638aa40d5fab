//! Drivers: how a worker waits for the kernel.

pub(crate) mod epoll;
mod source;
pub(crate) mod sys;

pub(crate) use epoll::{EpollDriver, Wait};
pub(crate) use source::Source;
pub use source::{Direction, SourceKind};
pub use sys::EpollParams;
