//! Drivers: how a worker waits for the kernel.

pub(crate) mod epoll;
pub(crate) mod readiness;
pub(crate) mod rings;
/// The io_uring driver: receives and sends of streams are operations of a ring; everything else is
/// registered in an epoll instance, which the ring watches.
///
/// The worker waits in the ring. Under kernel polling the enter that would sleep polls the queue
/// first (`polling`).
///
/// From bottom to top: `ring` and `buffers` are what the kernel shares; `socket_state` what
/// operations need; `operations` the table of those in flight; `driver` holds all of it; `incoming`
/// and `send` submit and complete operations; `wait` is the wait; `socket` is what networking
/// libraries use.
pub(crate) mod uring {
    mod buffers;
    pub(crate) mod driver;
    mod incoming;
    pub(crate) mod operations;
    mod polling;
    pub(crate) mod ring;
    mod send;
    pub(crate) mod socket;
    pub(crate) mod socket_state;
    mod wait;
}
pub(crate) mod wait;

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use policies::controller::QueueSettings;
use policies::epoll_params::EpollParams;

use self::epoll::EpollDriver;
use self::epoll::instance::Instance;
use self::uring::driver::{PreparedRing, UringDriver};
use self::wait::{POLLING_TASK_BUDGET, POLLING_TURN_LIMIT, TURN_LIMIT, Wait, WaitOutcome};
use crate::wake_handle::WakeHandle;

/// Which driver workers use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum DriverKind {
    /// Epoll where the values of an interface's queue are fixed and its waits poll (suppression,
    /// kernel polling with a fixed grace time or on a host that was prepared by others), or if
    /// io_uring is not available. Else uring.
    #[default]
    Auto,
    /// Only epoll: readiness, and a system call for each receive and send.
    Epoll,
    /// io_uring: a turn's receives and sends take one system call, which also polls the queue.
    Uring,
}

policies::names!(DriverKind, "driver": Auto = "auto", Epoll = "epoll", Uring = "uring");

pub(crate) enum Driver {
    Epoll(EpollDriver),
    Uring(Rc<UringDriver>),
}

/// Whether the policy busy-polls an interface's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueuePolling {
    None,
    /// With values of the queue that stay as they are.
    Fixed,
    /// As a controller chooses, which sets the queue's values.
    ByController,
}

impl Driver {
    /// Opens the driver that was asked for; `auto` is `epoll` without a ring.
    ///
    /// `polling`: whether and how the policy busy-polls an interface's queue. `wake`: wakes this
    /// driver's worker.
    pub(crate) fn open(
        asked: DriverKind,
        polling: QueuePolling,
        max_events: usize,
        ring: Option<PreparedRing>,
        wake: Arc<WakeHandle>,
    ) -> io::Result<Self> {
        let polls = polling != QueuePolling::None;
        // Only epoll's waits suspend interrupts, which values that nobody adapts need
        // (`napi_suspend_irqs` has one caller, `fs/eventpoll.c`).
        let takes_ring = asked != DriverKind::Auto || polling != QueuePolling::Fixed;
        match ring.filter(|_| takes_ring) {
            Some(ring) => {
                UringDriver::new(polls, Instance::new(false, max_events)?, wake, ring).map(Self::Uring)
            }
            // Taken by an attempt to start this worker that has failed.
            None if asked == DriverKind::Uring => {
                Err(io::Error::other("the worker's ring was closed when it could not start"))
            }
            None => EpollDriver::new(polls, max_events, wake).map(Self::Epoll),
        }
    }

    pub(crate) fn kind(&self) -> DriverKind {
        match self {
            Self::Epoll(_) => DriverKind::Epoll,
            Self::Uring(_) => DriverKind::Uring,
        }
    }

    /// The kernel's features in use, by their names.
    pub(crate) fn features(&self) -> &[&'static str] {
        match self {
            Self::Epoll(_) => &[],
            Self::Uring(ring) => &ring.features,
        }
    }

    /// Where descriptors are registered.
    pub(crate) fn instance(&self) -> &Instance {
        match self {
            Self::Epoll(epoll) => &epoll.instance,
            Self::Uring(ring) => &ring.instance,
        }
    }

    pub(crate) fn ring(&self) -> Option<&Rc<UringDriver>> {
        match self {
            Self::Epoll(_) => None,
            Self::Uring(ring) => Some(ring),
        }
    }

    pub(crate) fn wait(&self, wait: Wait) -> io::Result<WaitOutcome> {
        let unannounced = self.instance().take_unannounced();
        let mut outcome = match self {
            Self::Epoll(epoll) => epoll.wait(wait),
            Self::Uring(ring) => ring.wait(wait),
        }?;
        outcome.queue_events += unannounced;
        Ok(outcome)
    }

    /// Makes the wait busy-poll a NAPI as the settings say, or stops that
    /// ([`EpollDriver::set_polling`]).
    pub(crate) fn set_polling(&self, napi: u32, settings: &QueueSettings) -> io::Result<()> {
        // Waits may stop polling while the queue keeps the values of timed mode.
        let interval = if settings.polls() { settings.poll_interval } else { Duration::ZERO };
        match self {
            Self::Epoll(epoll) => {
                let micros = u32::try_from(settings.spin.as_micros()).unwrap_or(i32::MAX as u32);
                let params =
                    settings.polls().then(|| EpollParams::polling(micros, QueueSettings::BUSY_POLL_BUDGET));
                epoll.set_polling(params, (interval, settings.grace_time))
            }
            Self::Uring(ring) => {
                let napi = if settings.polls() { napi } else { 0 };
                ring.set_polling(napi, settings.spin, (interval, settings.grace_time))
            }
        }
    }

    /// The queue's NAPI has this id now, after its link was opened again. Connections tell epoll by
    /// themselves.
    pub(crate) fn follow_napi(&self, napi: u32) -> io::Result<()> {
        self.instance().follow_napi(napi);
        match self {
            Self::Epoll(_) => Ok(()),
            Self::Uring(ring) => ring.follow_napi(napi),
        }
    }

    pub(crate) fn polls_have_failed(&self) -> bool {
        match self {
            Self::Epoll(epoll) => epoll.polls_have_failed(),
            Self::Uring(ring) => ring.polling.has_failed(),
        }
    }

    /// Says that a kernel thread polls the NAPI while the worker doesn't.
    pub(crate) fn set_napi_thread(&self) {
        if let Self::Epoll(epoll) = self {
            epoll.set_napi_thread();
        }
    }

    /// Whether the last wait may have suspended the queue's interrupts, so that only a wait that
    /// polls resumes them.
    pub(crate) fn is_suspended(&self) -> bool {
        matches!(self, Self::Epoll(epoll) if epoll.is_suspended())
    }

    /// Whether waits may have to poll a queue, in which what arrives between two of them must fit.
    fn polls_queue(&self) -> bool {
        match self {
            Self::Epoll(epoll) => epoll.may_poll(),
            Self::Uring(ring) => ring.polling.is_on(),
        }
    }

    /// How many tasks one turn runs before the next wait.
    pub(crate) fn task_budget(&self) -> usize {
        self.ring().map_or(POLLING_TASK_BUDGET, |ring| ring.task_budget())
    }

    /// Whether a turn has written so much that it is to be sent before more tasks run.
    pub(crate) fn sends_are_due(&self) -> bool {
        self.ring().is_some_and(|ring| ring.sends_are_due())
    }

    /// How long one turn runs tasks before the next wait. It is exceeded by the last task's poll.
    pub(crate) fn turn_limit(&self) -> Duration {
        if self.polls_queue() { POLLING_TURN_LIMIT } else { TURN_LIMIT }
    }

    /// Takes on waking another worker with the next wait; `false` if this driver can't.
    pub(crate) fn defer_wake(&self, worker: &Arc<WakeHandle>) -> bool {
        self.ring().is_some_and(|ring| ring.defer_wake(worker))
    }

    /// Whether the wait can be delayed for a moment: no queue is to be polled, and nothing to be
    /// sent.
    pub(crate) fn may_spin(&self) -> bool {
        !self.polls_queue() && self.ring().is_none_or(|ring| !ring.has_to_send())
    }

    /// Wakes the workers of [`Driver::defer_wake`] now, because the next wait is not near.
    pub(crate) fn flush_wakes(&self) {
        if let Self::Uring(ring) = self {
            ring.flush_wakes();
        }
    }

    /// If this worker waits in a ring, lets other workers wake it by a message to that ring.
    pub(crate) fn publish_ring(&self) -> io::Result<()> {
        match self {
            Self::Uring(ring) => ring.publish_ring(),
            Self::Epoll(_) => Ok(()),
        }
    }

    pub(crate) fn submit(&self) -> io::Result<()> {
        match self {
            Self::Uring(ring) => ring.submit(),
            Self::Epoll(_) => Ok(()),
        }
    }

    /// Ends all operations, by the deadline at the latest. Called when the tasks are dropped.
    pub(crate) fn close(&self, deadline: Option<Instant>) {
        if let Self::Uring(ring) = self {
            ring.close(deadline);
        }
    }
}
