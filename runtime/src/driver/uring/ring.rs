//! The ring itself: set up with the flags that the kernel supports, filled, entered.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, Probe, cqueue, opcode, squeue};

use crate::faults;

/// The size of the completion queue, in multiples of the submission queue's: completions come in
/// larger batches, several receives per connection.
const COMPLETIONS_PER_SUBMISSION: u32 = 8;
/// The largest completion queue (`IORING_MAX_CQ_ENTRIES`): an enter that wants so many waits for
/// its timeout.
pub(super) const COMPLETIONS: u32 = 1 << 16;
/// The kernel adds a timeout to its clock, which wraps some 292 years after boot: a wait of more than
/// what is left would end at once.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);
/// `IORING_REGISTER_RING_FDS` and the bit that makes an enter use the registration.
const REGISTER_RING_FDS: libc::c_uint = 20;
const ENTER_REGISTERED_RING: u32 = 1 << 4;

/// The sizes of a ring, and of what each of its connections may hold.
#[derive(Debug, Clone)]
pub(crate) struct RingOptions {
    /// The size of the submission queue; more submissions take a second enter.
    pub(crate) submissions: u32,
    /// Unread bytes of one connection above which its receive is cancelled: then TCP's window stops
    /// the peer, as a full socket buffer would.
    pub(crate) unread_limit: usize,
    /// Unsent bytes of one connection above which a write has to wait.
    pub(crate) unsent_limit: usize,
}

impl Default for RingOptions {
    fn default() -> Self {
        Self { submissions: 512, unread_limit: 32 << 10, unsent_limit: 64 << 10 }
    }
}

impl RingOptions {
    /// The least bytes that a connection may hold in either direction.
    pub(crate) const LEAST: usize = 4 << 10;

    /// The memory that a ring shares with the kernel, which counts it as locked (from Linux 6.14
    /// on): its two queues and the entries' indices, the submissions, and the list of buffers.
    pub(crate) fn locked_bytes(&self) -> usize {
        let page = rustix::param::page_size();
        let submissions = self.submissions.next_power_of_two() as usize;
        let completions = submissions * COMPLETIONS_PER_SUBMISSION as usize;
        // The queues have one header (`struct io_rings`), and the list of buffers is below a page.
        let header = 512;
        let queues = header + completions * size_of::<cqueue::Entry>() + submissions * size_of::<u32>();
        let submissions = submissions * size_of::<squeue::Entry>();
        queues.next_multiple_of(page) + submissions.next_multiple_of(page) + page
    }
}

#[cfg(test)]
thread_local! {
    /// How many of this thread's next enters do nothing, as those for which the kernel has no
    /// memory (EAGAIN).
    pub(super) static REFUSED_ENTERS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

pub(super) struct Ring {
    ring: IoUring,
    /// The index under which the ring's descriptor is registered with the thread, if it is.
    registered: Option<u32>,
    /// Entries that did not fit into the submission queue; they go first.
    backlog: VecDeque<squeue::Entry>,
    no_iowait: bool,
}

/// `struct io_uring_rsrc_update` of `linux/io_uring.h`.
#[repr(C)]
struct ResourceUpdate {
    offset: u32,
    reserved: u32,
    data: u64,
}

impl Ring {
    /// Sets up a ring with the most useful flags that this kernel accepts, for a thread that
    /// [enables](Self::enable) it. Also returns the features that it uses, by the kernel's names.
    pub(super) fn new(submissions: u32) -> io::Result<(Self, Vec<&'static str>)> {
        let (ring, mut features) = build(submissions)?;
        if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_skip_cqe_on_success() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "it lacks CQE_SKIP (Linux 5.17)"));
        }
        // There is no probe for multishot receives, which came with SEND_ZC (Linux 6.0).
        if !supports(&ring, opcode::SendZc::CODE) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let no_iowait = ring.params().is_feature_no_iowait();
        if no_iowait {
            features.push("NO_IOWAIT");
        }
        Ok((Self { ring, registered: None, backlog: VecDeque::new(), no_iowait }, features))
    }

    /// Makes the calling thread the only one that submits and waits. Returns whether the ring's
    /// descriptor is registered with it.
    pub(super) fn enable(&mut self) -> io::Result<bool> {
        self.ring.submitter().register_enable_rings()?;
        self.registered = register_ring(self.ring.as_raw_fd());
        Ok(self.registered.is_some())
    }

    pub(super) fn supports(&self, operation: u8) -> bool {
        supports(&self.ring, operation)
    }

    pub(super) fn duplicate(&self) -> io::Result<OwnedFd> {
        // SAFETY: the ring is open while it is borrowed.
        let fd = unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) };
        Ok(rustix::io::fcntl_dupfd_cloexec(fd, 0)?)
    }

    pub(super) fn submitter(&self) -> io_uring::Submitter<'_> {
        self.ring.submitter()
    }

    /// Queues an operation for the next enter. Entries that don't fit into the submission queue
    /// wait in the backlog.
    ///
    /// # Safety
    /// What the entry points to must stay valid until the operation's last completion.
    pub(super) unsafe fn push(&mut self, entry: squeue::Entry) {
        if self.backlog.is_empty() {
            // SAFETY: the caller's promise.
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return;
            }
        }
        self.backlog.push_back(entry);
    }

    fn refill(&mut self) {
        let mut submission = self.ring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: the promise of `push`'s caller.
            if unsafe { submission.push(entry) }.is_err() {
                break;
            }
            self.backlog.pop_front();
        }
    }

    /// Whether the kernel defers work until the next enter.
    pub(super) fn has_deferred_work(&mut self) -> bool {
        self.ring.submission().taskrun()
    }

    /// Whether an enter finds completions at once, or work that makes some.
    pub(super) fn has_completions(&mut self) -> bool {
        self.has_deferred_work() || !self.ring.completion().is_empty()
    }

    /// The number of entries that were pushed and not submitted yet.
    pub(super) fn unsubmitted(&mut self) -> usize {
        self.backlog.len() + self.ring.submission().len()
    }

    /// Submits what fits, runs deferred work, and waits for `want` completions or until the
    /// timeout; `None` waits without a limit. With more to submit than fits it doesn't wait.
    pub(super) fn enter(&mut self, want: u32, timeout: Option<Duration>) -> io::Result<()> {
        self.refill();
        let queued = self.ring.submission().len() as u32;
        self.enter_once(queued, if self.backlog.is_empty() { want } else { 0 }, timeout)
    }

    fn enter_once(&self, submit: u32, want: u32, timeout: Option<Duration>) -> io::Result<()> {
        #[cfg(test)]
        if REFUSED_ENTERS.get() > 0 {
            REFUSED_ENTERS.set(REFUSED_ENTERS.get() - 1);
            return Ok(());
        }
        // As if a signal had interrupted it, or the kernel had no memory.
        if faults::chance(8) {
            return Ok(());
        }
        let mut flags = EnterFlags::GETEVENTS.bits() | EnterFlags::EXT_ARG.bits();
        if self.no_iowait {
            flags |= EnterFlags::NO_IOWAIT.bits();
        }
        let timespec = timeout.map(|timeout| Timespec::from(timeout.min(LONGEST_TIMEOUT)));
        let mut arguments = SubmitArgs::new();
        if let Some(timespec) = &timespec {
            arguments = arguments.timespec(timespec);
        }
        let fd = match self.registered {
            Some(index) => {
                flags |= ENTER_REGISTERED_RING;
                index as libc::c_int
            }
            None => self.ring.as_raw_fd(),
        };
        // SAFETY: io_uring_enter reads one `io_uring_getevents_arg` through the pointer, which
        // `SubmitArgs` mirrors, and through that a timespec that lives in this frame. The callers
        // of `push` promise that what the submissions point to is valid.
        let result = unsafe {
            libc::syscall(
                libc::SYS_io_uring_enter,
                fd,
                submit,
                want,
                flags,
                &raw const arguments,
                size_of::<SubmitArgs<'_, '_>>(),
            )
        };
        if result >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            // A timeout, a signal, or completions have to be taken first.
            Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
            _ => Err(error),
        }
    }

    /// Takes all posted completions. Returns whether the kernel holds more, which did not fit.
    pub(super) fn take_completions(&mut self, into: &mut Vec<cqueue::Entry>) -> bool {
        into.extend(self.ring.completion());
        self.ring.submission().cq_overflow()
    }
}

fn supports(ring: &IoUring, operation: u8) -> bool {
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).is_ok() && probe.is_supported(operation)
}

/// Tries flags from the newest to the oldest: a kernel refuses flags that it doesn't know.
fn build(submissions: u32) -> io::Result<(IoUring, Vec<&'static str>)> {
    let mut best = IoUring::builder();
    best.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_submit_all();
    let mut older = IoUring::builder();
    older.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all();
    let attempts = [
        (best, vec!["SINGLE_ISSUER", "DEFER_TASKRUN", "TASKRUN_FLAG", "SUBMIT_ALL"]),
        (older, vec!["COOP_TASKRUN", "TASKRUN_FLAG", "SUBMIT_ALL"]),
    ];
    let mut refused = io::Error::from(io::ErrorKind::Unsupported);
    for (mut builder, flags) in attempts {
        builder.setup_cqsize(submissions.saturating_mul(COMPLETIONS_PER_SUBMISSION)).setup_clamp();
        builder.setup_r_disabled();
        match builder.build(submissions) {
            Ok(ring) => return Ok((ring, flags)),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refused = error,
            Err(error) => return Err(error),
        }
    }
    Err(refused)
}

/// Registers the ring's descriptor with this thread, which saves the lookup in each enter (Linux
/// 5.18). The registration ends with the thread, or when the descriptor is closed.
fn register_ring(ring: RawFd) -> Option<u32> {
    let mut update = ResourceUpdate { offset: u32::MAX, reserved: 0, data: ring as u64 };
    // SAFETY: IORING_REGISTER_RING_FDS reads and writes one `io_uring_rsrc_update`, which the
    // struct mirrors, through a pointer to a live value.
    let result =
        unsafe { libc::syscall(libc::SYS_io_uring_register, ring, REGISTER_RING_FDS, &raw mut update, 1) };
    (result == 1).then_some(update.offset)
}

/// Unregisters the descriptor: the thread may outlive the ring.
impl Drop for Ring {
    fn drop(&mut self) {
        const UNREGISTER_RING_FDS: libc::c_uint = 21;
        if let Some(index) = self.registered {
            let update = ResourceUpdate { offset: index, reserved: 0, data: 0 };
            // SAFETY: as in `register_ring`. Fails only if it is unregistered already.
            unsafe {
                libc::syscall(
                    libc::SYS_io_uring_register,
                    self.ring.as_raw_fd(),
                    UNREGISTER_RING_FDS,
                    &raw const update,
                    1,
                )
            };
        }
    }
}
