//! Operations that an application submits to its worker's ring, and those of a descriptor.

use std::cell::RefCell;
use std::ffi::CString;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{opcode, squeue};

use crate::coop;
use crate::driver::uring::driver::UringDriver;
use crate::driver::uring::operations::ApplicationOperation;
use crate::worker::current;

/// The worker's driver has no ring ([`DriverKind::Epoll`](crate::DriverKind::Epoll)). As an
/// [`io::Error`] its kind is `Unsupported`, and this its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRing;

policies::error_text!(NoRing: _ => "the epoll driver has no io_uring: this operation needs the uring driver");

impl From<NoRing> for io::Error {
    fn from(error: NoRing) -> Self {
        Self::new(io::ErrorKind::Unsupported, error)
    }
}

/// Whether the calling worker has a ring, so that [`submit`] and [`RingFd`](super::RingFd) work.
#[track_caller]
pub fn has_ring() -> bool {
    current::with(|worker| worker.driver.ring().is_some())
}

/// Submits any operation to the calling worker's ring, with the next enter. `keep` is what the
/// kernel uses: it is dropped or given back only after the operation's last completion. Where there
/// is no room in the submission queue, the operation waits for the next enter that has some.
///
/// The entry is the kernel's `struct io_uring_sqe`, as the crate `io-uring` of any version builds
/// it. Its user data is overwritten.
///
/// ```
/// use io_uring::{opcode, squeue, types::Timespec};
///
/// # #[runtime::main(driver = "uring", workers = 1)]
/// # async fn main() {
/// let time = Box::new([Timespec::new().nsec(1000)]);
/// let entry = opcode::Timeout::new(time.as_ptr()).build();
/// // SAFETY: an entry is 64 bytes, all of them initialized.
/// let entry = unsafe { std::mem::transmute::<squeue::Entry, [u8; 64]>(entry) };
/// // SAFETY: the entry points to the timespec only, which is in the box.
/// let waiting = unsafe { runtime::io::submit(entry, time) };
/// let (result, _time) = waiting.unwrap_or_else(|(no_ring, _)| panic!("{no_ring}")).await;
/// assert_eq!(result.unwrap_err().to_string(), "Timer expired (os error 62)");
/// # }
/// ```
///
/// # Errors
/// [`NoRing`], with `keep`. All other errors are the operation's result; `NotConnected` if the
/// runtime is ending.
///
/// # Safety
/// - Everything that the entry points to is owned by `keep` or lives forever. It stays valid while
///   `keep` does, also when `keep` is moved: memory on the heap does, a field of `keep` itself does
///   not.
/// - Nobody else reads what the kernel may write, or writes what it may read, before the operation
///   has ended.
/// - The entry doesn't use the ring's provided buffers (`IOSQE_BUFFER_SELECT`), whose only group is
///   the receives'.
/// - Descriptors that the entry names belong to `keep`, or stay open until the operation has ended:
///   the kernel looks them up at the next enter, when the number may be another file's.
/// - It doesn't wait for the operations before it (`IOSQE_IO_DRAIN`): receives never end, so the
///   ring would stand still. It does not message a ring of this crate (`IORING_OP_MSG_RING`).
/// - It is not linked with the next entry (`IOSQE_IO_LINK`, `IOSQE_IO_HARDLINK`), which may be
///   anybody's, and posts a completion in any case (not `IOSQE_CQE_SKIP_SUCCESS`).
#[doc(alias = "io_uring_sqe")]
#[track_caller]
pub unsafe fn submit<T: 'static>(entry: [u8; 64], keep: T) -> Result<RingOperation<T>, (NoRing, T)> {
    // SAFETY: the entry has the layout of the kernel's structure, in which all bytes are valid.
    let entry = unsafe { std::mem::transmute::<[u8; 64], squeue::Entry>(entry) };
    // SAFETY: the caller's promise.
    unsafe { submit_entry(entry, keep) }
}

/// # Safety
/// As [`submit`].
#[track_caller]
pub(super) unsafe fn submit_entry<T: 'static>(
    entry: squeue::Entry,
    keep: T,
) -> Result<RingOperation<T>, (NoRing, T)> {
    let Some(driver) = current::with(|worker| worker.driver.ring().cloned()) else {
        return Err((NoRing, keep));
    };
    let submission = Rc::new(Submission::new(keep));
    if driver.is_closed() {
        submission.completed(-libc::ENOTCONN, true);
        return Ok(RingOperation { submission, in_flight: None });
    }
    let operation: Rc<dyn ApplicationOperation> = Rc::<Submission<T>>::clone(&submission);
    // SAFETY: the submission owns `keep`, and gives it away only after the last completion. The
    // rest is the caller's promise.
    let id = unsafe { driver.submit_application(entry, operation) };
    Ok(RingOperation { submission, in_flight: Some((driver, id)) })
}

/// An operation on its worker's ring ([`submit`]). Its output is the result, and what was kept for
/// it.
///
/// The result is that of the first completion; the future is ready after the last one. So a
/// zero-copy send's buffer comes back when the kernel no longer reads it, and an operation that
/// completes many times (multishot) ends with its last time.
///
/// Dropping it cancels the operation (`IORING_OP_ASYNC_CANCEL`), which may have had its effect by
/// then, in part or in full. What was kept lives on until the completion has come.
///
/// If the runtime has ended, the operation is cancelled as well. One that can't be cancelled, and
/// goes on for more than two seconds, is then never ready, and its memory is never freed.
#[must_use = "an operation is cancelled when it is dropped"]
pub struct RingOperation<T> {
    submission: Rc<Submission<T>>,
    in_flight: Option<(Rc<UringDriver>, u64)>,
}

impl<T> RingOperation<T> {
    /// If the future is dropped before it is ready, calls this with what would have been its
    /// output, on the worker, once the operation has ended. For results that have to be disposed
    /// of, such as a descriptor.
    pub fn on_abandoned(self, dispose: fn(io::Result<u32>, T)) -> Self {
        self.submission.0.borrow_mut().dispose = Some(dispose);
        self
    }
}

impl<T> Future for RingOperation<T> {
    type Output = (io::Result<u32>, T);

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        ready!(coop::poll_budget(context));
        let mut state = self.submission.0.borrow_mut();
        if !state.ended {
            match &mut state.waker {
                Some(waker) => waker.clone_from(context.waker()),
                None => state.waker = Some(context.waker().clone()),
            }
            return Poll::Pending;
        }
        coop::spend();
        match state.take() {
            Some(output) => Poll::Ready(output),
            None => panic!("a ring's operation was polled after it was ready"),
        }
    }
}

opaque_debug!(RingOperation<T>, "RingOperation", [T], |it| "ended" = it.submission.0.borrow().ended);

impl<T> Drop for RingOperation<T> {
    fn drop(&mut self) {
        let mut state = self.submission.0.borrow_mut();
        let (ended, waker) = (state.ended, state.waker.take());
        drop(state);
        drop(waker);
        if let Some((driver, id)) = self.in_flight.take()
            && !ended
            && !driver.is_closed()
        {
            driver.cancel(id);
        }
    }
}

/// An operation as its future and the driver see it: each holds it until it needs it no more.
struct Submission<T>(RefCell<SubmissionState<T>>);

struct SubmissionState<T> {
    /// What the kernel uses; not to be touched until the operation has ended.
    keep: Option<T>,
    result: Option<i32>,
    ended: bool,
    waker: Option<Waker>,
    dispose: Option<fn(io::Result<u32>, T)>,
}

impl<T> SubmissionState<T> {
    /// The output of an operation that has ended. Once only.
    fn take(&mut self) -> Option<(io::Result<u32>, T)> {
        let result = self.result.filter(|_| self.ended)?;
        let keep = self.keep.take()?;
        Some((u32::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result)), keep))
    }
}

impl<T> Submission<T> {
    fn new(keep: T) -> Self {
        let state =
            SubmissionState { keep: Some(keep), result: None, ended: false, waker: None, dispose: None };
        Self(RefCell::new(state))
    }
}

impl<T> ApplicationOperation for Submission<T> {
    fn completed(&self, result: i32, last: bool) -> Option<Waker> {
        let mut state = self.0.borrow_mut();
        state.result.get_or_insert(result);
        state.ended = last;
        if last { state.waker.take() } else { None }
    }
}

impl<T> Drop for Submission<T> {
    fn drop(&mut self) {
        let state = self.0.get_mut();
        if let Some(dispose) = state.dispose
            && let Some((result, keep)) = state.take()
        {
            dispose(result, keep);
        }
    }
}

/// The offset that stands for the file's position.
const AT_POSITION: u64 = u64::MAX;

/// A descriptor whose operations run on the worker's ring: a file, which readiness
/// ([`AsyncFd`](super::AsyncFd)) can't wait for, a pipe, or a device. Operations go to the ring of
/// the worker that calls them; clones share the descriptor.
///
/// An operation owns its buffer and a share in the descriptor until it has completed. If its future
/// is dropped, it is cancelled, and may have had its effect by then.
///
/// Errors are those of the system call of the same name, and `InvalidInput` for an offset above
/// `i64::MAX`. On the epoll driver each operation fails with `Unsupported`
/// ([`NoRing`](super::NoRing)): use [`spawn_blocking`](crate::spawn_blocking) there.
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
    /// `InvalidInput` for a path with a zero byte.
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
    /// and if the buffer has no room. After an error the buffer is as it was.
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
    #[doc(alias = "IORING_OP_WRITE")]
    pub async fn write_at(&self, bytes: Bytes, offset: u64) -> (io::Result<usize>, Bytes) {
        match check_offset(offset) {
            Ok(offset) => self.write_from(bytes, offset).await,
            Err(error) => (Err(error), bytes),
        }
    }

    /// Like [`RingFd::write_at`], at the file's position, as [`RingFd::read`]: two at a time may
    /// overwrite each other's bytes, unless with `O_APPEND`.
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
    let invalid = |_| io::Error::new(io::ErrorKind::InvalidInput, "a file's offsets end at i64::MAX");
    i64::try_from(offset).map(|_| offset).map_err(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_has_its_first_result_and_ends_with_its_last_completion() {
        let submission = Rc::new(Submission::new("buffer"));
        let mut operation = RingOperation { submission: Rc::clone(&submission), in_flight: None };
        let mut poll = || Pin::new(&mut operation).poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending());
        assert!(submission.completed(5, false).is_none());
        assert!(poll().is_pending());
        assert!(submission.completed(-libc::EIO, true).is_some());
        let Poll::Ready((result, kept)) = poll() else { panic!("the last completion has come") };
        assert_eq!((result.unwrap(), kept), (5, "buffer"));
    }
}
