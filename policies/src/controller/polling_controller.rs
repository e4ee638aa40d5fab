//! The controller: polls a queue while two packets come in a poll interval.
//!
//! While a queue is polled each poll takes what has come in an interval, where an interrupt would
//! take each packet by itself. With two or more in an interval that saves wake-ups.

use std::time::Duration;

use super::epoch::Epoch;
use super::limits::{ControllerLimits, PollTimer};
use super::poll_interval::PollInterval;
use super::queue_settings::{QueueMode, QueueSettings};
use super::reason::Reason;

/// From this many packets in a poll interval on, the controller polls the queue. With fewer, polls
/// save too few wake-ups.
const MANY: f64 = 2.0;
/// Below this many packets in a poll interval, it returns the queue to interrupts.
const FEW: f64 = 1.2;
/// The number of consecutive steps with few packets, or with a saturated core, after which the
/// controller acts. A single one may be due to a pause of the machine.
const STEPS: u32 = 3;
/// A saturated queue counts as saturated until its rate falls below this share of the rate at
/// saturation...
const NOT_SATURATED: f64 = 0.93;
/// ...and at most for this time: another cause may have kept the core busy.
const SATURATED_FOR: Duration = Duration::from_secs(20);
/// The queue of a saturated worker on epoll stays polled until the worker is busy for less than this
/// share of the time: polling may halve the CPU time of its requests, and spends some of it in waits.
const THIRD_BUSY: f64 = 0.33;
/// What remains of the peak packet rate after each step: with steps of 10 ms it halves in 0.7 s.
const PEAK_DECAY: f64 = 0.99;

impl PollTimer {
    /// The share of the time in which the core is busy from which on it is saturated. A ring has to
    /// have hardly any time left: up to there polling takes less CPU time than interrupts.
    fn saturated(self) -> f64 {
        match self {
            PollTimer::Ring => 0.97,
            PollTimer::Epoll | PollTimer::Kernel => 0.9,
        }
    }
}

/// Chooses how one queue is driven, from the measurements of the worker that serves it.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use policies::controller::{ControllerLimits, Epoch, PollInterval, PollTimer, PollingController, QueueMode};
///
/// let limits = ControllerLimits { timer: PollTimer::Ring, ..ControllerLimits::default() };
/// let mut controller = PollingController::new(PollInterval::default(), limits);
/// // 1,000 events in 10 ms are three in each interval of 30 µs.
/// let busy = Duration::from_millis(8);
/// let epoch = Epoch { duration: Duration::from_millis(10), events: 1_000, packets: 1_000, busy };
/// controller.step(&epoch);
/// assert_eq!(controller.settings().mode, QueueMode::Timed);
/// ```
#[derive(Debug, Clone)]
pub struct PollingController {
    interval: PollInterval,
    limits: ControllerLimits,
    settings: QueueSettings,
    /// For how many steps in a row the events were few, while the queue is polled.
    few_steps: u32,
    /// For how many steps in a row the core was saturated, while the queue is polled.
    saturated_steps: u32,
    /// The rate at which polling has saturated the core, and for how long that holds.
    saturated_at: Option<(f64, Duration)>,
    /// The highest packet rate of the last second or so.
    peak_rate: f64,
    /// Why the queue is not polled any more.
    stopped: Option<Reason>,
}

impl PollingController {
    /// A controller that starts with interrupts.
    pub fn new(interval: PollInterval, limits: ControllerLimits) -> Self {
        let settings = match limits.fixed {
            Some(fixed) => QueueSettings { mode: QueueMode::Interrupts, why: Reason::Start, ..fixed },
            None => QueueSettings::interrupts(Reason::Start),
        };
        Self {
            interval,
            limits,
            settings,
            few_steps: 0,
            saturated_steps: 0,
            saturated_at: None,
            peak_rate: 0.0,
            stopped: None,
        }
    }

    /// The settings chosen last.
    pub fn settings(&self) -> &QueueSettings {
        &self.settings
    }

    /// The worker waits on a ring, and not in epoll.
    pub fn set_ring(&mut self) {
        if self.limits.timer == PollTimer::Epoll {
            self.limits.timer = PollTimer::Ring;
        }
    }

    /// Goes on with the settings that are in effect, because others could not be set. Until
    /// [`PollingController::release`] it only chooses between waits that poll and waits that don't.
    /// `in_effect.why` is [`Reason::Unsupervised`] if nobody answered.
    pub fn fix(&mut self, in_effect: QueueSettings) {
        // The values may be those of timed mode although the waits don't poll.
        let is_timed = !in_effect.poll_interval.is_zero();
        let mode = if is_timed { QueueMode::Timed } else { in_effect.mode };
        self.resume(in_effect);
        self.limits.fixed = Some(QueueSettings { mode, ..in_effect });
    }

    /// Goes on from settings that are in effect although it has not chosen them last, and chooses
    /// all values again.
    pub fn resume(&mut self, in_effect: QueueSettings) {
        self.limits.fixed = None;
        self.settings = in_effect;
        (self.few_steps, self.saturated_steps) = (0, 0);
    }

    /// Chooses all values again, after [`PollingController::fix`].
    pub fn release(&mut self) {
        self.limits.fixed = None;
    }

    /// Begins again with interrupts. What it can't set, and whether it may poll at all, stays.
    pub fn restart(&mut self, limits: ControllerLimits) {
        let limits = ControllerLimits { fixed: self.limits.fixed.or(limits.fixed), ..limits };
        *self = Self { stopped: self.stopped, ..Self::new(self.interval, limits) };
    }

    /// The supervisor has ended, which has given the queue its values from before. A change from
    /// `in_effect` that was under way is not made any more, and polling does not begin again.
    pub fn supervisor_ended(&mut self, in_effect: QueueSettings) {
        self.resume(in_effect);
        self.stop_polling(Reason::Unsupervised);
    }

    /// Stays with interrupts from now on.
    pub fn stop_polling(&mut self, why: Reason) {
        self.stopped = Some(why);
    }

    /// Takes in what was measured since the last step, some 10 ms or more. Returns new settings if
    /// they are to change.
    pub fn step(&mut self, epoch: &Epoch) -> Option<QueueSettings> {
        self.peak_rate = epoch.packet_rate().max(self.peak_rate * PEAK_DECAY);
        let why = self.stopped.unwrap_or_else(|| self.judge(epoch));
        let wanted = match why {
            Reason::ManyPackets => self.polling(why),
            Reason::Saturated if self.limits.timer != PollTimer::Ring => self.polling(why),
            why => self.without_polling_waits(QueueSettings::interrupts(why)),
        };
        let wanted = self.permitted(wanted, epoch);
        if wanted.equals_but_reason(&self.settings) {
            self.settings.why = wanted.why;
            return None;
        }
        if wanted.mode != self.settings.mode {
            (self.few_steps, self.saturated_steps) = (0, 0);
        }
        self.settings = wanted;
        Some(wanted)
    }

    /// The rule: whether the queue is polled in the next step, and why.
    fn judge(&mut self, epoch: &Epoch) -> Reason {
        let rate = epoch.event_rate();
        let never_sleeps = self.interval.never_sleeps();
        let in_interval = match self.limits.polls_always {
            // Who never sleeps polls while packets come at all.
            false if never_sleeps => epoch.events as f64 * MANY,
            false => rate * self.interval_in_ring().as_secs_f64(),
            true => rate * PollInterval::MAX.get().as_secs_f64(),
        };
        let holds = |(at, time): (f64, Duration)| {
            let left = time.checked_sub(epoch.duration)?;
            (rate > at * NOT_SATURATED).then_some((at, left))
        };
        self.saturated_at = self.saturated_at.and_then(holds);
        if epoch.events == 0 && !never_sleeps {
            return Reason::FewPackets;
        }
        let timer = self.limits.timer;
        let is_saturated = epoch.busy_share() > timer.saturated();
        if self.settings.is_by_interrupts() {
            return match in_interval >= MANY {
                true if self.saturated_at.is_some() => Reason::Saturated,
                true => Reason::ManyPackets,
                false if timer == PollTimer::Epoll && is_saturated => Reason::Saturated,
                false => Reason::FewPackets,
            };
        }
        let counted = |count: u32, holds: bool| if holds { count + 1 } else { 0 };
        let was_saturated = timer == PollTimer::Epoll && self.settings.why == Reason::Saturated;
        let needs_polls = was_saturated && epoch.busy_share() > THIRD_BUSY;
        self.few_steps = counted(self.few_steps, in_interval < FEW && !needs_polls);
        let counts = timer != PollTimer::Epoll && self.saturated_at.is_none() && !never_sleeps;
        self.saturated_steps =
            counted(self.saturated_steps, is_saturated && counts && !self.limits.polls_always);
        if self.saturated_steps >= STEPS {
            (self.saturated_at, self.saturated_steps) = (Some((rate, SATURATED_FOR)), 0);
        }
        match self.saturated_at {
            _ if self.few_steps >= STEPS => Reason::FewPackets,
            Some(_) => Reason::Saturated,
            None if needs_polls => Reason::Saturated,
            None => Reason::ManyPackets,
        }
    }

    /// The poll interval, halved until at most a quarter of the ring fills in it, and 10 µs where
    /// waits never sleep.
    fn interval_in_ring(&self) -> Duration {
        let quarter = QueueSettings::time_to_half_fill(self.limits.ring_slots, self.peak_rate) / 2;
        let mut interval = self.interval.get().max(PollInterval::MIN.get());
        while interval > quarter && interval / 2 >= PollInterval::MIN.get() {
            interval /= 2;
        }
        interval
    }

    /// The settings that poll, as the interval and the ring allow.
    fn polling(&self, why: Reason) -> QueueSettings {
        let interval = self.interval_in_ring();
        let ring = QueueSettings::time_to_half_fill(self.limits.ring_slots, self.peak_rate);
        match self.limits.timer {
            PollTimer::Epoll | PollTimer::Ring => {
                // For so long other programs on the queue wait while the worker is busy.
                let within = QueueSettings::longest_suspend_timeout_within(ring);
                let watchdog = QueueSettings::LONGEST_WATCHDOG.min(within).max(interval * 2);
                if self.interval.never_sleeps() {
                    // Each wait polls until the controller is asked again, or for this time.
                    let spin = QueueSettings::LONGEST_WATCHDOG / 2;
                    return QueueSettings { spin, ..QueueSettings::timed(spin, watchdog, why) };
                }
                QueueSettings::timed(interval, watchdog, why)
            }
            PollTimer::Kernel if why == Reason::Saturated || self.limits.polls_always => {
                // Where the core is saturated batches are long.
                let defer_hard_irqs = QueueSettings::MOST_DEFERRALS;
                let suspend_timeout = QueueSettings::longest_suspend_timeout_within(ring);
                QueueSettings { defer_hard_irqs, suspend_timeout, ..QueueSettings::grace(interval, why) }
            }
            PollTimer::Kernel => self.without_polling_waits(QueueSettings::deferral(interval, why)),
        }
    }

    /// Settings in which no wait polls. They keep the present suspend timeout: it ends a suspension
    /// that no wait resumes any more.
    fn without_polling_waits(&self, settings: QueueSettings) -> QueueSettings {
        QueueSettings { suspend_timeout: self.settings.suspend_timeout, ..settings }
    }

    /// Keeps to the values that can't be set.
    fn permitted(&self, wanted: QueueSettings, epoch: &Epoch) -> QueueSettings {
        let Some(fixed) = self.limits.fixed else { return wanted };
        let is_unsupervised = fixed.why == Reason::Unsupervised;
        let wants_polls = !wanted.is_by_interrupts();
        let polls = match fixed.mode {
            QueueMode::Interrupts => false,
            // Packets would wait for the watchdog. The first one of an idle queue doesn't.
            QueueMode::Timed => self.stopped.is_none() && epoch.events > 0,
            // The timer polls, whatever waits do.
            QueueMode::Deferral => true,
            QueueMode::Grace => wants_polls && !is_unsupervised,
        };
        let why = match wanted.why {
            _ if is_unsupervised => Reason::Unsupervised,
            _ if wants_polls && !polls => Reason::Fixed,
            why => why,
        };
        if polls {
            QueueSettings { why, ..fixed }
        } else {
            QueueSettings { mode: QueueMode::Interrupts, spin: Duration::ZERO, why, ..fixed }
        }
    }
}

#[cfg(test)]
mod tests;
