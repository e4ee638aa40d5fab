//! Operations that an application submits to its worker's ring.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use io_uring::squeue;

use crate::coop;
use crate::driver::uring::driver::UringDriver;
use crate::driver::uring::operations::ApplicationOperation;
use crate::worker::current;

/// The worker's driver has no ring ([`DriverKind::Epoll`](crate::DriverKind::Epoll)). As an
/// [`io::Error`] its kind is `Unsupported`, and this its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the epoll driver has no io_uring: this operation needs the uring driver")]
pub struct NoRing;

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
///   ring would stand still. It is no message to a ring (`IORING_OP_MSG_RING`) of this crate.
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
