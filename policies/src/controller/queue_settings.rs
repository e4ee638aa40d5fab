//! How a queue is driven: its mode, and the kernel's values for it.

use std::fmt;
use std::time::Duration;

use super::poll_interval::PollInterval;
use super::reason::Reason;
use crate::json::json_text;
use crate::names;

/// What drives a queue while the application waits: interrupts, the kernel's timer, or the worker's
/// own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QueueMode {
    /// Interrupts, as under vanilla. The wait does not poll (`prefer_busy_poll` 0), and nothing is
    /// deferred: with `defer_hard_irqs` 0, `napi_complete_done` unmasks the interrupt after every
    /// poll.
    Interrupts,
    /// The wait polls, and while it finds events the interrupt is suspended. After an empty poll
    /// the timer polls every grace time (`gro_flush_timeout`), up to `defer_hard_irqs` times before
    /// the interrupt is unmasked.
    Grace,
    /// The kernel's timer polls every grace time while packets come, and no wait polls. After
    /// `defer_hard_irqs` polls that found nothing the next packet interrupts. Needs no suspend
    /// timeout.
    Deferral,
    /// The worker alone polls: by each wait, and where that sleeps, again after a poll interval.
    /// The interrupt stays masked, and the kernel's timer is only a watchdog for a worker that
    /// stays away: each poll starts it anew (`busy_poll_stop` with `defer_hard_irqs` 1), and the
    /// interval is shorter. So no packet wakes anybody before the worker's timer does, neither
    /// softirq nor kernel thread. Needs no suspend timeout.
    Timed,
}

names!(
    QueueMode, "mode": Interrupts = "interrupts", Grace = "grace", Deferral = "deferral", Timed = "timed"
);
json_text!(QueueMode);

/// The values that drive a queue and the wait of the worker that polls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct QueueSettings {
    /// Which loop drives the queue while the application waits.
    pub mode: QueueMode,
    /// `gro_flush_timeout`. In timed mode it is the watchdog.
    pub grace_time: Duration,
    /// `napi_defer_hard_irqs`.
    pub defer_hard_irqs: u64,
    /// `irq_suspend_timeout`: at most the time in which half of the receive ring fills. 0 in timed
    /// mode.
    pub suspend_timeout: Duration,
    /// How long the worker's wait sleeps at most before it polls again, in timed mode. 0 in others,
    /// unless the queue keeps the values of timed mode because nobody sets others.
    pub poll_interval: Duration,
    /// `busy_poll_usecs`: how long a wait polls before it sleeps, beyond the first poll.
    pub spin: Duration,
    /// Why the controller chose this.
    pub why: Reason,
}

impl QueueSettings {
    /// The deferrals of deferral mode, and of grace mode with fixed values: 5. That number of timer
    /// polls costs about what an interrupt and a wake-up do. After them, waiting for the next
    /// packet with the timer would cost more than its interrupt.
    pub const GRACE_DEFERRALS: u64 = 5;
    /// The most deferrals, and those with which the controller polls a saturated queue: its batches
    /// must not outlast them, or the interrupt is unmasked in the middle of one, and nothing
    /// suspends it until a batch begins with the queue in the timer's hands.
    pub const MOST_DEFERRALS: u64 = 40;
    /// The longest watchdog of timed mode: 2 ms. For so long other programs on the queue wait while
    /// the worker is busy, or after it was killed.
    pub const LONGEST_WATCHDOG: Duration = Duration::from_millis(2);
    /// The longest suspend timeout: 20 ms, the value of the kernel series' authors.
    pub const LONGEST_SUSPEND_TIMEOUT: Duration = Duration::from_millis(20);

    /// How many packets one poll takes, and so events one wait: the most that is allowed without
    /// `CAP_NET_ADMIN`.
    pub const BUSY_POLL_BUDGET: u16 = 64;

    /// The shortest suspend timeout: a shorter one would cut off batches of requests.
    pub(crate) const SHORTEST_SUSPEND_TIMEOUT: Duration = Duration::from_micros(250);

    /// How long half of a receive ring takes to fill at a packet rate, per second.
    pub(crate) fn time_to_half_fill(ring_slots: u32, packet_rate: f64) -> Duration {
        let seconds = f64::from(ring_slots / 2) / packet_rate.max(1.0);
        Duration::try_from_secs_f64(seconds).unwrap_or(Self::LONGEST_SUSPEND_TIMEOUT)
    }

    /// The longest suspend timeout within a time, halved from
    /// [`QueueSettings::LONGEST_SUSPEND_TIMEOUT`] as often as needed, but not below the shortest.
    /// By steps, so that a rate that varies does not change the settings each time.
    pub(crate) fn longest_suspend_timeout_within(bound: Duration) -> Duration {
        let mut time = Self::LONGEST_SUSPEND_TIMEOUT;
        while time > bound && time / 2 >= Self::SHORTEST_SUSPEND_TIMEOUT {
            time /= 2;
        }
        time
    }

    /// The settings of a queue that interrupts drive.
    pub const fn interrupts(why: Reason) -> Self {
        Self {
            mode: QueueMode::Interrupts,
            grace_time: Duration::ZERO,
            defer_hard_irqs: 0,
            suspend_timeout: Self::LONGEST_SUSPEND_TIMEOUT,
            poll_interval: Duration::ZERO,
            spin: Duration::ZERO,
            why,
        }
    }

    /// The settings of a queue in grace mode.
    pub const fn grace(grace_time: Duration, why: Reason) -> Self {
        Self {
            mode: QueueMode::Grace,
            grace_time,
            defer_hard_irqs: Self::GRACE_DEFERRALS,
            ..Self::interrupts(why)
        }
    }

    /// The settings of a queue in deferral mode.
    pub const fn deferral(grace_time: Duration, why: Reason) -> Self {
        Self { mode: QueueMode::Deferral, ..Self::grace(grace_time, why) }
    }

    /// The settings of a queue in timed mode. `watchdog`: after this time without a poll the kernel
    /// takes the queue back.
    pub const fn timed(poll_interval: Duration, watchdog: Duration, why: Reason) -> Self {
        Self {
            mode: QueueMode::Timed,
            grace_time: watchdog,
            defer_hard_irqs: 1,
            suspend_timeout: Duration::ZERO,
            poll_interval,
            ..Self::interrupts(why)
        }
    }

    /// The settings for a host on which nobody adapts them, `policies apply` or a process that may
    /// not: grace mode, with the poll interval as grace time.
    pub fn fixed(interval: PollInterval) -> Self {
        Self::grace(interval.get().max(PollInterval::MIN.get()), Reason::Fixed)
    }

    /// The settings of a queue that has these values already.
    pub fn preset(defer_hard_irqs: u64, grace_time: Duration, suspend_timeout: Duration) -> Self {
        let mode = match defer_hard_irqs {
            _ if grace_time.is_zero() => QueueMode::Interrupts,
            0 => QueueMode::Interrupts,
            _ => QueueMode::Grace,
        };
        Self { mode, grace_time, defer_hard_irqs, suspend_timeout, ..Self::interrupts(Reason::Fixed) }
    }

    /// Whether interrupts drive the queue.
    pub fn is_by_interrupts(&self) -> bool {
        self.mode == QueueMode::Interrupts
    }

    /// Whether a wait in timed mode polls for as long as it would sleep otherwise.
    pub fn never_sleeps(&self) -> bool {
        self.mode == QueueMode::Timed && self.spin >= self.poll_interval
    }

    /// Whether both drive a queue alike, for whatever reasons.
    pub fn equals_but_reason(&self, other: &Self) -> bool {
        Self { why: other.why, ..*self } == *other
    }

    /// Whether the wait polls the queue (`prefer_busy_poll` 1).
    pub fn polls(&self) -> bool {
        !matches!(self.mode, QueueMode::Interrupts | QueueMode::Deferral)
    }

    /// The mode, with the times that count in it: `grace 40 µs`.
    pub(crate) fn mode_text(&self) -> String {
        let mut text = self.mode.to_string();
        match self.mode {
            QueueMode::Grace | QueueMode::Deferral => text += &format!(" {} µs", self.grace_time.as_micros()),
            QueueMode::Timed if self.never_sleeps() => return text + ", never sleeps",
            QueueMode::Timed => text += &format!(" {} µs", self.poll_interval.as_micros()),
            QueueMode::Interrupts => {}
        }
        if !self.spin.is_zero() {
            text += &format!(", spins {} µs", self.spin.as_micros());
        }
        text
    }
}

impl fmt::Display for QueueSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.mode_text(), self.why)
    }
}
