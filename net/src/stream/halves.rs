//! The halves of a split stream.

use std::io;
use std::net::Shutdown;
use std::rc::Rc;

use super::async_io::{impl_async_read, impl_async_write};
use super::socket_io::SocketIo;
use crate::buffers::ReadBuffer;

/// The reading half of [`Stream::split`](crate::Stream::split).
#[derive(Debug)]
pub struct ReadHalf<'a, K> {
    io: &'a SocketIo<K>,
    unread: &'a mut ReadBuffer,
}

/// The writing half of [`Stream::split`](crate::Stream::split).
#[derive(Debug)]
pub struct WriteHalf<'a, K> {
    io: &'a SocketIo<K>,
}

/// The reading half of [`Stream::into_split`](crate::Stream::into_split).
#[derive(Debug)]
pub struct OwnedReadHalf<K> {
    io: Rc<SocketIo<K>>,
    unread: ReadBuffer,
}

/// The writing half of [`Stream::into_split`](crate::Stream::into_split). Dropping it shuts down writing.
#[derive(Debug)]
pub struct OwnedWriteHalf<K> {
    io: Rc<SocketIo<K>>,
}

impl<'a, K> ReadHalf<'a, K> {
    pub(super) fn new(io: &'a SocketIo<K>, unread: &'a mut ReadBuffer) -> Self {
        Self { io, unread }
    }
}

impl<'a, K> WriteHalf<'a, K> {
    pub(super) fn new(io: &'a SocketIo<K>) -> Self {
        Self { io }
    }
}

impl<K> OwnedReadHalf<K> {
    pub(super) fn new(io: Rc<SocketIo<K>>, unread: ReadBuffer) -> Self {
        Self { io, unread }
    }

    /// As [`Stream::shutdown`](crate::Stream::shutdown).
    ///
    /// # Errors
    /// The error of the system call.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.io.shutdown(how)
    }
}

impl<K> OwnedWriteHalf<K> {
    pub(super) fn new(io: Rc<SocketIo<K>>) -> Self {
        Self { io }
    }

    /// As [`Stream::shutdown`](crate::Stream::shutdown).
    ///
    /// # Errors
    /// The error of the system call.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.io.shutdown(how)
    }
}

impl<K> ReadHalf<'_, K> {
    /// As [`Stream::shutdown`](crate::Stream::shutdown).
    ///
    /// # Errors
    /// The error of the system call.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.io.shutdown(how)
    }
}

impl<K> WriteHalf<'_, K> {
    /// As [`Stream::shutdown`](crate::Stream::shutdown).
    ///
    /// # Errors
    /// The error of the system call.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.io.shutdown(how)
    }
}

impl<K> Drop for OwnedWriteHalf<K> {
    fn drop(&mut self) {
        // Fails if the connection is broken, and then there is nothing to shut down.
        let _ = self.io.shutdown(Shutdown::Write);
    }
}

impl_async_read!(ReadHalf<'_, K>);
impl_async_read!(OwnedReadHalf<K>);
impl_async_write!(WriteHalf<'_, K>);
impl_async_write!(OwnedWriteHalf<K>);

// `K` only names a kind of socket: nothing in a half is ever pinned.
impl<K> Unpin for OwnedReadHalf<K> {}
impl<K> Unpin for OwnedWriteHalf<K> {}
