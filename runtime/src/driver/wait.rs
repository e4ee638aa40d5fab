//! What a worker asks of its driver's wait, and what it gets.

use std::time::Duration;

/// How many tasks a turn runs at most if each turn may have to poll a queue: what arrives meanwhile
/// must fit into the receive ring (256 packets of a veth pair).
pub(crate) const POLLING_TASK_BUDGET: usize = 128;

/// How long a turn may run tasks if it may have to poll a queue, for the same reason: that ring is
/// full after 0.94 ms at 272,000 packets a second.
pub(crate) const POLLING_TURN_LIMIT: Duration = Duration::from_millis(1);
/// How long a turn may run tasks otherwise, before timers and sockets have their turn.
pub(crate) const TURN_LIMIT: Duration = Duration::from_millis(5);

/// The shortest wait that still polls a NAPI: with a timeout of 0 `ep_poll` returns before it
/// would.
pub(crate) const POLL_PASS: Duration = Duration::from_nanos(1);

/// A wait in timed mode returns after this time also without events, so that the controller can end
/// the polls; in nanoseconds.
pub(crate) const LONGEST_TIMED_WAIT: u64 = 10_000_000;

/// How long a wait may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Collect what is there, and poll the NAPI once if the policy polls.
    Pass,
    /// Sleep until something happens, or for this time; `None`: without a limit.
    Park(Option<Duration>),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct WaitOutcome {
    pub(crate) events: usize,
    /// Those of them that came by the queue that the worker polls, if the policy polls; and the
    /// datagrams that were received from the queue's sockets before the wait, beyond one for each
    /// event of an earlier wait.
    pub(crate) queue_events: usize,
    /// Whether operations of the ring have completed, also those that are not counted as events.
    pub(crate) completed: bool,
    pub(crate) calls: usize,
    /// Whether an extra poll pass was made because the first one had returned only wake-ups or
    /// events of the other epoll instance.
    pub(crate) forced_pass: bool,
    /// Bytes received by operations of the ring.
    pub(crate) received_bytes: u64,
    /// Bytes sent by the ring's sockets.
    pub(crate) sent_bytes: u64,
}
