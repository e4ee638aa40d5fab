//! A connection as its thread sees it.

use std::fmt;
use std::io::{self, BufRead, ErrorKind, IoSlice, Read, Write};
use std::marker::PhantomData;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::SendFlags;
use socket2::{SockAddr, Socket};

use crate::metrics::add;
use crate::slot::Slot;
use crate::state::DispatcherState;
use net::{Tcp, sendable};

/// A connection whose reads and writes block the calling thread, as those of [`std::net::TcpStream`] do.
///
/// Its [`Read`] and [`BufRead`] return what the worker has received; `BufRead` lends it without a copy. A [`Write`] is a
/// `send(2)`, which waits while the kernel's send buffer is full. There is nothing to flush. Both are also implemented for
/// `&BlockingStream`, so that one thread can read while another writes; reads of several threads take turns, and
/// their time limit begins when it is their turn: before, they wait for as long as the reads before them.
///
/// # Errors
/// - A read returns 0 at the end of the stream, each time. A connection that breaks is one error (`ConnectionReset`), and then
///   the end.
/// - When the runtime ends, or the task of the connection is aborted, a read returns `ConnectionAborted`, and writes fail with
///   `BrokenPipe`.
/// - After a time limit reads and writes return `WouldBlock`.
///
/// Dropping it closes the connection.
pub struct BlockingStream<K = Tcp> {
    slot: Arc<Slot>,
    socket: Arc<Socket>,
    dispatcher: Arc<DispatcherState>,
    worker: usize,
    unread: Mutex<Unread>,
    /// In nanoseconds; 0: none.
    read_timeout: AtomicU64,
    write_timeout: AtomicU64,
    kind: PhantomData<fn() -> K>,
}

#[derive(Default)]
struct Unread {
    bytes: Vec<u8>,
    read: usize,
}

impl Unread {
    /// Takes what has come if nothing is unread, and waits for that. Empty at the end of the stream.
    fn fill(&mut self, slot: &Slot, limit: Option<Duration>) -> io::Result<&[u8]> {
        if self.read == self.bytes.len() {
            self.bytes.clear();
            self.read = 0;
            slot.take(&mut self.bytes, limit)?;
        }
        Ok(&self.bytes[self.read..])
    }

    fn read(&mut self, slot: &Slot, limit: Option<Duration>, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let mut bytes = self.fill(slot, limit)?;
        let length = bytes.read(buffer)?;
        self.read += length;
        Ok(length)
    }
}

impl<K> BlockingStream<K> {
    pub(crate) fn new(
        slot: Arc<Slot>,
        socket: Arc<Socket>,
        dispatcher: Arc<DispatcherState>,
        worker: usize,
    ) -> Self {
        Self {
            slot,
            socket,
            dispatcher,
            worker,
            unread: Mutex::default(),
            read_timeout: AtomicU64::new(0),
            write_timeout: AtomicU64::new(0),
            kind: PhantomData,
        }
    }

    /// How long a read waits at most. `None`, the default: without a limit.
    ///
    /// # Errors
    /// `InvalidInput` for a limit of zero.
    pub fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        set_limit(&self.read_timeout, limit)
    }

    /// How long a write waits for room at most. `None`, the default: without a limit.
    ///
    /// # Errors
    /// `InvalidInput` for a limit of zero.
    pub fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        set_limit(&self.write_timeout, limit)
    }

    /// The limit of [`BlockingStream::set_read_timeout`].
    pub fn read_timeout(&self) -> Option<Duration> {
        limit(&self.read_timeout)
    }

    /// The limit of [`BlockingStream::set_write_timeout`].
    pub fn write_timeout(&self) -> Option<Duration> {
        limit(&self.write_timeout)
    }

    /// Shuts down reading, writing or both, see `shutdown(2)`. Bytes that have come before can still be read.
    ///
    /// # Errors
    /// The error of the system call, for example `ENOTCONN` if the connection is broken.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.socket.shutdown(how)
    }

    /// The number of the worker that receives for this connection, from 0.
    pub fn worker(&self) -> usize {
        self.worker
    }

    fn lock_unread(&self) -> MutexGuard<'_, Unread> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends, and waits while there is no room.
    fn send(&self, mut send: impl FnMut(&Socket) -> io::Result<usize>) -> io::Result<usize> {
        let mut deadline = None;
        loop {
            match send(&self.socket) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                result => {
                    let length = result?;
                    add(&self.dispatcher.counters.of(self.worker).sent_bytes, length);
                    return Ok(length);
                }
            }
            let left = match self.write_timeout() {
                None => None,
                Some(limit) => {
                    let deadline = *deadline.get_or_insert_with(|| Instant::now() + limit);
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(ErrorKind::WouldBlock.into());
                    }
                    Some(Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() })
                }
            };
            // An error of the connection makes it ready, too, and the next attempt returns it.
            match poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], left.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl BlockingStream<Tcp> {
    /// The address of the other side.
    ///
    /// # Errors
    /// `NotConnected` after the connection has broken.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        internet_address(&self.socket.peer_addr()?)
    }

    /// The address of this side.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        internet_address(&self.socket.local_addr()?)
    }

    /// Sets `TCP_NODELAY`: small writes are sent at once. It is not set by default.
    #[doc(alias = "TCP_NODELAY")]
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.socket.set_tcp_nodelay(nodelay)
    }
}

fn set_limit(limit: &AtomicU64, value: Option<Duration>) -> io::Result<()> {
    let nanos = match value {
        None => 0,
        Some(Duration::ZERO) => {
            return Err(io::Error::new(
                ErrorKind::InvalidInput,
                "a time limit of zero is none: give None, or a longer one",
            ));
        }
        Some(value) => u64::try_from(value.as_nanos()).unwrap_or(u64::MAX),
    };
    limit.store(nanos, Ordering::Relaxed);
    Ok(())
}

fn limit(limit: &AtomicU64) -> Option<Duration> {
    match limit.load(Ordering::Relaxed) {
        0 => None,
        nanos => Some(Duration::from_nanos(nanos)),
    }
}

impl<K> Read for BlockingStream<K> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let limit = self.read_timeout();
        self.unread.get_mut().unwrap_or_else(PoisonError::into_inner).read(&self.slot, limit, buffer)
    }
}

impl<K> BufRead for BlockingStream<K> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let limit = self.read_timeout();
        self.unread.get_mut().unwrap_or_else(PoisonError::into_inner).fill(&self.slot, limit)
    }

    fn consume(&mut self, amount: usize) {
        let unread = self.unread.get_mut().unwrap_or_else(PoisonError::into_inner);
        unread.read = (unread.read + amount).min(unread.bytes.len());
    }
}

impl<K> Read for &BlockingStream<K> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let limit = self.read_timeout();
        self.lock_unread().read(&self.slot, limit, buffer)
    }
}

impl<K> Write for &BlockingStream<K> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A broken connection is an error here, never a signal.
        self.send(|socket| socket.send_with_flags(bytes, SendFlags::NOSIGNAL.bits().cast_signed()))
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        let buffers = sendable(buffers);
        self.send(|socket| socket.send_vectored_with_flags(buffers, SendFlags::NOSIGNAL.bits().cast_signed()))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<K> Write for BlockingStream<K> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(buffers)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<K> AsFd for BlockingStream<K> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl<K> fmt::Debug for BlockingStream<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingStream").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl<K> Drop for BlockingStream<K> {
    fn drop(&mut self) {
        self.slot.drop_stream();
    }
}

fn internet_address(address: &SockAddr) -> io::Result<SocketAddr> {
    address.as_socket().ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "not an internet address"))
}
