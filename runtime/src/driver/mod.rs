//! Drivers: how a worker waits for the kernel.

mod epoll;
mod kind;
mod ring;
mod source;
mod sys;

use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;

pub(crate) use self::epoll::{EpollDriver, Wait, Woken};
pub use self::kind::{DriverKind, UnknownDriver};
pub(crate) use self::ring::{Mode, RingDriver};
pub use self::ring::{Received, RingListener, RingSocket};
pub(crate) use self::source::Source;
pub use self::source::{Direction, SourceKind};
pub use self::sys::EpollParams;
pub(crate) use self::sys::monotonic_nanos;
use crate::shared::WorkerShared;

/// How many tasks a turn runs at the most, where each turn may have to poll a queue: what comes
/// meanwhile must fit into the receive ring (256 packets of a veth pair).
const BATCH: usize = 128;

/// A worker's driver.
pub(crate) enum Driver {
    Epoll(EpollDriver),
    Ring(Rc<RingDriver>),
}

impl Driver {
    /// Opens the driver that was asked for. `auto` takes the epoll driver where there is no io_uring;
    /// the second value says why.
    ///
    /// `split`: whether the policy busy-polls an interface's queue.
    pub(crate) fn open(
        asked: DriverKind,
        split: bool,
        max_events: usize,
        shared: &WorkerShared,
    ) -> io::Result<(Self, Option<String>)> {
        let wake = Some(shared.wake.as_fd());
        let mode = match asked {
            DriverKind::Epoll => {
                return Ok((Self::Epoll(EpollDriver::new(split, max_events, wake)?), None));
            }
            DriverKind::Uring => Mode::Uring,
            DriverKind::Hybrid => Mode::Hybrid,
            DriverKind::Auto if split => Mode::Hybrid,
            DriverKind::Auto => Mode::Uring,
        };
        let split_epoll = split && mode == Mode::Hybrid;
        let epoll = EpollDriver::new(split_epoll, max_events, wake.filter(|_| mode == Mode::Hybrid))?;
        match RingDriver::new(mode, epoll) {
            Ok(ring) => Ok((Self::Ring(ring), None)),
            Err(error) => {
                let why = explain(&error);
                if asked != DriverKind::Auto {
                    let message = format!("the {asked} driver can't be had: {why}; take epoll, or auto");
                    return Err(io::Error::new(error.kind(), message));
                }
                Ok((Self::Epoll(EpollDriver::new(split, max_events, wake)?), Some(why)))
            }
        }
    }

    pub(crate) fn kind(&self) -> DriverKind {
        match self {
            Self::Epoll(_) => DriverKind::Epoll,
            Self::Ring(ring) => match ring.mode() {
                Mode::Uring => DriverKind::Uring,
                Mode::Hybrid => DriverKind::Hybrid,
            },
        }
    }

    /// The kernel's features in use, by their names.
    pub(crate) fn features(&self) -> &[&'static str] {
        match self {
            Self::Epoll(_) => &[],
            Self::Ring(ring) => ring.features(),
        }
    }

    /// Where descriptors are registered.
    pub(crate) fn epoll(&self) -> &EpollDriver {
        match self {
            Self::Epoll(epoll) => epoll,
            Self::Ring(ring) => ring.epoll(),
        }
    }

    pub(crate) fn ring(&self) -> Option<&Rc<RingDriver>> {
        match self {
            Self::Epoll(_) => None,
            Self::Ring(ring) => Some(ring),
        }
    }

    pub(crate) fn wait(&self, shared: &WorkerShared, wait: Wait) -> io::Result<Woken> {
        match self {
            Self::Epoll(epoll) => epoll.wait(shared, wait),
            Self::Ring(ring) => ring.wait(shared, wait),
        }
    }

    /// How many tasks one turn runs before it looks at the network again.
    pub(crate) fn batch(&self) -> usize {
        self.ring().map_or(BATCH, |ring| ring.batch())
    }

    /// Takes over the duty of waking another worker, with the next wait; `false` where it can't.
    pub(crate) fn take_wake(&self, worker: &Arc<WorkerShared>) -> bool {
        self.ring().is_some_and(|ring| ring.take_wake(worker))
    }

    /// Whether nothing is lost by not waiting for a moment: no queue is to be polled, and nothing sent.
    pub(crate) fn may_linger(&self) -> bool {
        !self.epoll().is_split() && self.ring().is_none_or(|ring| !ring.has_to_send())
    }

    /// Wakes the workers whose wakes it has taken over, now: the wait is not near.
    pub(crate) fn flush_wakes(&self) {
        if let Self::Ring(ring) = self {
            ring.flush_wakes();
        }
    }

    /// Has other workers wake this one by a message to its ring, where it waits in one.
    pub(crate) fn publish(&self, shared: &WorkerShared) -> io::Result<()> {
        match self {
            Self::Ring(ring) => ring.publish(shared),
            Self::Epoll(_) => Ok(()),
        }
    }

    /// Ends all operations. Called when the tasks are gone.
    pub(crate) fn close(&self, shared: &WorkerShared) {
        if let Self::Ring(ring) = self {
            shared.set_ring(None);
            ring.close();
        }
    }
}

/// Why there is no io_uring, in words.
fn explain(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOSYS) => "the kernel has no io_uring, or a seccomp filter hides it".to_owned(),
        Some(libc::EPERM) => {
            "io_uring is forbidden (sysctl kernel.io_uring_disabled, or a seccomp filter)".to_owned()
        }
        Some(libc::ENOMEM) => {
            "there is no memory for the ring; the limit on locked memory (ulimit -l) may be too low"
                .to_owned()
        }
        None if error.kind() == io::ErrorKind::Unsupported => error.to_string(),
        Some(libc::EINVAL) => "the kernel's io_uring is too old (Linux 6.0 is needed)".to_owned(),
        _ => format!("io_uring can't be set up: {error}"),
    }
}
