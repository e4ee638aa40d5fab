//! Operations of the worker's ring on a descriptor.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{opcode, squeue};

use super::ring_operation::submit_entry;

/// The offset that stands for the file's position.
const AT_POSITION: u64 = u64::MAX;

/// A descriptor whose operations run on the worker's ring: a file, which readiness
/// ([`AsyncFd`](super::AsyncFd)) can't wait for, a pipe, or a device. Operations go to the ring of
/// the worker that calls them; clones share the descriptor.
///
/// An operation owns its buffer and a share in the descriptor until it has completed. If its future
/// is dropped, it is cancelled, and may have had its effect by then.
///
/// On the epoll driver each operation fails with `Unsupported` ([`NoRing`](super::NoRing)): use
/// [`spawn_blocking`](crate::spawn_blocking) there.
///
/// ```
/// use runtime::io::RingFd;
///
/// # #[runtime::main(driver = "uring", workers = 1)]
/// # async fn main() -> std::io::Result<()> {
/// let file = RingFd::new(std::fs::File::open("/proc/self/exe")?);
/// let (read, bytes) = file.read_at(Vec::with_capacity(4), 0).await;
/// assert_eq!((read?, &bytes[..]), (4, &b"\x7fELF"[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RingFd<T = OwnedFd>(Arc<T>);

impl<T> Clone for RingFd<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl RingFd {
    /// Opens a file. `flags` and `mode` are those of `open(2)`; the descriptor is closed on exec.
    ///
    /// # Errors
    /// Those of `openat(2)`; `InvalidInput` for a path with a zero byte; `Unsupported` without a
    /// ring.
    #[doc(alias = "IORING_OP_OPENAT")]
    pub async fn open(path: impl AsRef<Path>, flags: libc::c_int, mode: libc::mode_t) -> io::Result<Self> {
        fn take(result: io::Result<u32>) -> io::Result<OwnedFd> {
            let fd = RawFd::try_from(result?).map_err(io::Error::other)?;
            // SAFETY: the kernel has just opened it for this operation, and nobody else knows of
            // it.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        }
        let path = CString::new(path.as_ref().as_os_str().as_bytes())?;
        let flags = flags | libc::O_CLOEXEC;
        let entry = opcode::OpenAt::new(Fd(libc::AT_FDCWD), path.as_ptr()).flags(flags).mode(mode).build();
        // SAFETY: the entry points to the path only, which is on the heap. Its flags are those of a
        // plain operation.
        let opening = match unsafe { submit_entry(entry, path) } {
            Ok(opening) => opening.on_abandoned(|result, _| drop(take(result))),
            Err((no_ring, _)) => return Err(no_ring.into()),
        };
        Ok(Self::new(take(opening.await.0)?))
    }
}

impl<T: AsFd + 'static> RingFd<T> {
    /// Takes over the owner of a descriptor. It should be blocking: on a non-blocking one
    /// operations fail with `WouldBlock` instead of waiting.
    pub fn new(inner: T) -> Self {
        Self(Arc::new(inner))
    }

    /// The owner of the descriptor.
    pub fn get_ref(&self) -> &T {
        &self.0
    }

    /// Reads at an offset in bytes, and appends to `buffer` as much as it has room for without
    /// growing. Returns how many bytes were read, and the buffer: 0 bytes at the end of the file,
    /// and if the buffer has no room.
    ///
    /// # Errors
    /// Those of `pread(2)`; `InvalidInput` for an offset above `i64::MAX`; `Unsupported` without a
    /// ring. `buffer` is then as it was.
    #[doc(alias = "IORING_OP_READ")]
    pub async fn read_at(&self, buffer: Vec<u8>, offset: u64) -> (io::Result<usize>, Vec<u8>) {
        match check_offset(offset) {
            Ok(offset) => self.read_from(buffer, offset).await,
            Err(error) => (Err(error), buffer),
        }
    }

    /// Like [`RingFd::read_at`], at the file's position, which it moves; for pipes, too.
    ///
    /// One at a time for a file that has a position: the kernel doesn't lock it for operations of a
    /// ring, so that two at a time may return the same bytes. Use offsets there.
    ///
    /// # Errors
    /// Those of `read(2)`, else as [`RingFd::read_at`].
    pub async fn read(&self, buffer: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
        self.read_from(buffer, AT_POSITION).await
    }

    async fn read_from(&self, mut buffer: Vec<u8>, offset: u64) -> (io::Result<usize>, Vec<u8>) {
        let room = buffer.spare_capacity_mut();
        let length = u32::try_from(room.len()).unwrap_or(u32::MAX);
        let entry = opcode::Read::new(self.fd(), room.as_mut_ptr().cast(), length).offset(offset).build();
        // SAFETY: the kernel writes to the vector's room only, which is on the heap and in nobody
        // else's hands.
        let (result, mut buffer) = unsafe { self.run(entry, buffer) }.await;
        if let Ok(read) = result {
            let filled = buffer.len() + read;
            // SAFETY: the kernel has initialized `read` bytes after the vector's own, at most its
            // room, and the vector has not been touched since.
            unsafe { buffer.set_len(filled) };
        }
        (result, buffer)
    }

    /// Writes at an offset in bytes. Returns how many bytes were written, which may be fewer, and
    /// the bytes.
    ///
    /// # Errors
    /// Those of `pwrite(2)`; `InvalidInput` for an offset above `i64::MAX`; `Unsupported` without a
    /// ring.
    #[doc(alias = "IORING_OP_WRITE")]
    pub async fn write_at(&self, bytes: Bytes, offset: u64) -> (io::Result<usize>, Bytes) {
        match check_offset(offset) {
            Ok(offset) => self.write_from(bytes, offset).await,
            Err(error) => (Err(error), bytes),
        }
    }

    /// Like [`RingFd::write_at`], at the file's position, which it moves; for pipes, too.
    ///
    /// One at a time for a file that has a position: the kernel doesn't lock it for operations of a
    /// ring, so that two at a time may overwrite each other's bytes. Use offsets there, or
    /// `O_APPEND`.
    ///
    /// # Errors
    /// Those of `write(2)`, else as [`RingFd::write_at`].
    pub async fn write(&self, bytes: Bytes) -> (io::Result<usize>, Bytes) {
        self.write_from(bytes, AT_POSITION).await
    }

    async fn write_from(&self, bytes: Bytes, offset: u64) -> (io::Result<usize>, Bytes) {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let entry = opcode::Write::new(self.fd(), bytes.as_ptr(), length).offset(offset).build();
        // SAFETY: the kernel reads the bytes only, which never move nor change.
        unsafe { self.run(entry, bytes) }.await
    }

    /// Writes what the kernel holds of the file, and its metadata, to the disk (`fsync(2)`). Writes
    /// that have not completed before need not be included.
    ///
    /// # Errors
    /// Those of `fsync(2)`; `Unsupported` without a ring.
    #[doc(alias = "IORING_OP_FSYNC")]
    pub async fn sync_all(&self) -> io::Result<()> {
        self.sync(FsyncFlags::empty()).await
    }

    /// Like [`RingFd::sync_all`], with the metadata that reading the file needs only
    /// (`fdatasync(2)`).
    pub async fn sync_data(&self) -> io::Result<()> {
        self.sync(FsyncFlags::DATASYNC).await
    }

    async fn sync(&self, flags: FsyncFlags) -> io::Result<()> {
        let entry = opcode::Fsync::new(self.fd()).flags(flags).build();
        // SAFETY: the entry has no pointers.
        unsafe { self.run(entry, ()) }.await.0.map(drop)
    }

    /// Waits until one of these events of `poll(2)` has come (`POLLERR` and `POLLHUP` always
    /// count), and returns those that have. Unlike an [`AsyncFd`](super::AsyncFd) it registers
    /// nothing.
    ///
    /// # Errors
    /// `Unsupported` without a ring.
    #[doc(alias = "IORING_OP_POLL_ADD")]
    pub async fn poll(&self, events: libc::c_short) -> io::Result<libc::c_short> {
        let entry = opcode::PollAdd::new(self.fd(), u32::from(events.cast_unsigned())).build();
        // SAFETY: the entry has no pointers.
        let (events, ()) = unsafe { self.run(entry, ()) }.await;
        // The events are 16 bits.
        events.map(|events| events as libc::c_short)
    }

    fn fd(&self) -> Fd {
        Fd(self.0.as_fd().as_raw_fd())
    }

    /// Runs an operation on this descriptor, which stays open until the operation has ended.
    ///
    /// # Safety
    /// As [`submit`](super::submit).
    async unsafe fn run<K: 'static>(&self, entry: squeue::Entry, keep: K) -> (io::Result<usize>, K) {
        // SAFETY: the caller's promise.
        match unsafe { submit_entry(entry, (keep, Arc::clone(&self.0))) } {
            Ok(operation) => {
                let (result, (keep, _descriptor)) = operation.await;
                (result.map(|result| result as usize), keep)
            }
            Err((no_ring, (keep, _))) => (Err(no_ring.into()), keep),
        }
    }
}

fn check_offset(offset: u64) -> io::Result<u64> {
    match i64::try_from(offset) {
        Ok(_) => Ok(offset),
        Err(_) => Err(io::Error::new(io::ErrorKind::InvalidInput, "a file's offsets end at i64::MAX")),
    }
}
