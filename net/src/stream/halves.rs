//! The halves of a split stream.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::net::{Shutdown, SocketAddr};
use std::ops::Deref;
use std::os::unix::net::SocketAddr as UnixAddr;
use std::rc::Rc;

use runtime::io::OnItsWorker;

use super::generic::Stream;
use super::socket_io::SocketIo;
use crate::buffers::ReadBuffer;
use crate::stream::generic::{impl_async_read, impl_async_write};
use crate::tcp::{Tcp, internet_address};
use crate::unix::{Unix, unix_address};

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

/// The socket of two halves. Nested once more than [`OnItsWorker`].
#[derive(Debug)]
struct Shared<K>(Rc<SocketIo<K>>);

impl<K> Deref for Shared<K> {
    type Target = SocketIo<K>;

    fn deref(&self) -> &SocketIo<K> {
        &self.0
    }
}

/// The reading half of [`Stream::into_split`](crate::Stream::into_split).
#[derive(Debug)]
pub struct OwnedReadHalf<K> {
    on_its_worker: OnItsWorker,
    io: Shared<K>,
    unread: ReadBuffer,
}

/// The writing half of [`Stream::into_split`](crate::Stream::into_split). Dropping it shuts down
/// writing.
#[derive(Debug)]
pub struct OwnedWriteHalf<K> {
    on_its_worker: OnItsWorker,
    io: Shared<K>,
    shutdown_on_drop: bool,
}

/// Two halves that were to be reunited are of two streams.
#[derive(Debug)]
pub struct NotSameStream<K>(pub OwnedReadHalf<K>, pub OwnedWriteHalf<K>);

impl<K> fmt::Display for NotSameStream<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the two halves are of different streams")
    }
}

impl<K: fmt::Debug> std::error::Error for NotSameStream<K> {}

impl<K> Stream<K> {
    /// Splits into a reading and a writing half, for use in one task.
    pub fn split(&mut self) -> (ReadHalf<'_, K>, WriteHalf<'_, K>) {
        (ReadHalf { io: &self.io, unread: &mut self.unread }, WriteHalf { io: &self.io })
    }

    /// Splits into owned halves, for two tasks of this worker. Dropping the writing half shuts down
    /// writing; dropping both closes the connection.
    pub fn into_split(self) -> (OwnedReadHalf<K>, OwnedWriteHalf<K>) {
        let io = Shared(Rc::new(self.io));
        let reader =
            OwnedReadHalf { on_its_worker: PhantomData, io: Shared(Rc::clone(&io.0)), unread: self.unread };
        (reader, OwnedWriteHalf { on_its_worker: PhantomData, io, shutdown_on_drop: true })
    }
}

impl<K> ReadHalf<'_, K> {
    /// Sets how many unread bytes wake a task that waits for any (`SO_RCVLOWAT`, socket(7)): 1 by
    /// default, and again after 1. A task that knows how many have to come is then woken once for
    /// them, and not for each packet. Fewer are there at the end of the stream, after an error, and
    /// where the receive buffer is full, which the kernel enlarges for a mark that it doesn't hold
    /// (up to `tcp_rmem`'s largest). Reads return what is there, whatever the mark. Only TCP heeds it.
    ///
    /// # Errors
    /// Those of `setsockopt(2)`.
    #[doc(alias = "SO_RCVLOWAT")]
    pub fn set_receive_low_water(&self, bytes: usize) -> io::Result<()> {
        self.io.set_receive_low_water(bytes)
    }
}

impl<K> OwnedReadHalf<K> {
    /// Makes a stream of its halves again.
    ///
    /// # Errors
    /// [`NotSameStream`], with both halves, if they are of two streams.
    pub fn reunite(self, writer: OwnedWriteHalf<K>) -> Result<Stream<K>, NotSameStream<K>> {
        if !Rc::ptr_eq(&self.io.0, &writer.io.0) {
            return Err(NotSameStream(self, writer));
        }
        writer.forget();
        let Self { io, unread, .. } = self;
        match Rc::try_unwrap(io.0) {
            Ok(io) => Ok(Stream { on_its_worker: PhantomData, io, unread }),
            Err(_) => unreachable!("a stream has two halves, and nothing else holds its socket"),
        }
    }
}

impl<K> OwnedWriteHalf<K> {
    /// Drops this half without shutting down writing. The reading half keeps the connection open.
    pub fn forget(mut self) {
        self.shutdown_on_drop = false;
    }
}

impl<K> Drop for OwnedWriteHalf<K> {
    fn drop(&mut self) {
        if self.shutdown_on_drop {
            // Fails if the connection is broken, and then there is nothing to shut down.
            let _ = self.io.shutdown(Shutdown::Write);
        }
    }
}

macro_rules! impl_shutdown {
    ($($type:ty),+) => {$(
        impl<K> $type {
            /// As [`Stream::shutdown`](crate::Stream::shutdown).
            pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
                self.io.shutdown(how)
            }
        }
    )+};
}

macro_rules! impl_addresses {
    ($kind:ty, $address:ty, $convert:path, [$($half:ty),+]) => {$(
        impl $half {
            /// The address of this side.
            pub fn local_addr(&self) -> io::Result<$address> {
                $convert(&self.io.socket().local_addr()?)
            }

            /// The address of the other side, with the errors of the whole stream's `peer_addr`.
            pub fn peer_addr(&self) -> io::Result<$address> {
                $convert(&self.io.socket().peer_addr()?)
            }
        }
    )+};
    ($kind:ty, $address:ty, $convert:path) => {
        impl_addresses!($kind, $address, $convert, [
            ReadHalf<'_, $kind>, WriteHalf<'_, $kind>, OwnedReadHalf<$kind>, OwnedWriteHalf<$kind>
        ]);
    };
}

impl_addresses!(Tcp, SocketAddr, internet_address);
impl_addresses!(Unix, UnixAddr, unix_address);
impl_shutdown!(ReadHalf<'_, K>, WriteHalf<'_, K>, OwnedReadHalf<K>, OwnedWriteHalf<K>);
impl_async_read!(ReadHalf<'_, K>);
impl_async_read!(OwnedReadHalf<K>);
impl_async_write!(WriteHalf<'_, K>);
impl_async_write!(OwnedWriteHalf<K>);

// `K` only names a kind of socket: nothing in a half is ever pinned.
impl<K> Unpin for OwnedReadHalf<K> {}
impl<K> Unpin for OwnedWriteHalf<K> {}
