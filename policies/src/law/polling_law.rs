//! The law: chooses a queue's mode and values from a worker's measurements.

use std::time::Duration;

use super::budget::LatencyBudget;
use super::cost_comparison::{Case, CostComparison};
use super::epoch::Epoch;
use super::gaps::GapHistogram;
use super::limits::{LawLimits, PollTimer};
use super::machine_costs::MachineCosts;
use super::queue_settings::{QueueMode, QueueSettings};
use super::reason::Reason;

/// The shortest time over which the law judges.
const SHORTEST_WINDOW: Duration = Duration::from_millis(10);
/// With fewer events than this the law waits for more...
const FEW_EVENTS: u64 = 32;
/// ...but not longer than this.
const LONGEST_WINDOW: Duration = Duration::from_millis(100);
/// How long a choice stays before the next one.
const DWELL: Duration = Duration::from_millis(50);
/// How many windows in a row must ask for the same mode.
const AGREEING_WINDOWS: u32 = 2;
/// The weight of the newest window in the smoothed busy share.
const SMOOTHING: f64 = 0.5;
/// How many gaps say how often packets come within the grace time.
const FEW_GAPS: f64 = 8.0;

/// The busy share under interrupts from which interrupt-first mode is chosen, and below which it ends.
/// Every empty poll costs two more polls (`busy_poll_stop`, and the one that `napi_resume_irqs`
/// schedules), and every packet that comes while the worker is busy saves an interrupt. In a queue
/// with random arrivals 1/(1-busy) events are processed between two empty polls: here four or five.
const STAYS_BUSY: Threshold = Threshold { enter: 0.78, leave: 0.68 };
/// The busy share from which packets wait longer for the core than for the timer of a short grace time.
/// With random arrivals and a fixed service time s, a packet waits s/2 · busy/(1-busy) for the core.
const SATURATED: Threshold = Threshold { enter: 0.9, leave: 0.82 };
/// The share of sleeps that end within the grace time, from which the timer's polls cost less than the interrupts
/// that they replace (`lab simulate`): with random arrivals about one packet a grace time. In grace mode short gaps
/// merge, so the share is lower there; the measured cost ends the mode earlier than this.
const WITHIN_GRACE: Threshold = Threshold { enter: 0.6, leave: 0.25 };
/// The same in timed mode where interrupts wake a kernel thread, which wakes the worker: each poll that finds a packet saves
/// two wake-ups.
const WITHIN_INTERVAL_OF_THREAD: Threshold = Threshold { enter: 0.3, leave: 0.15 };
/// How many poll intervals packets wait for the core under interrupts, on average, where timed mode without a budget is
/// chosen, and below which it ends. It makes them wait for half of one.
const CORE_WAIT_INTERVALS: Threshold = Threshold { enter: 1.5, leave: 1.0 };
/// The cost of polling over that of interrupts above which it is given up: with a budget, whose mode delays packets.
const MOST_COST: f64 = 0.97;
/// The same in interrupt-first mode, which delays none, and spares them interrupts.
const MOST_COST_INTERRUPT_FIRST: f64 = 1.0;
/// The same where interrupts would saturate the core: polling takes packets sooner then, also at the same cost.
const MOST_COST_SATURATED: f64 = 1.05;
/// The least that polling costs, as a share of what interrupts cost.
const LEAST_COST: f64 = 0.35;
/// The busy share from which a mode on trial is given up at once: requests are piling up.
const OVERLOADED: f64 = 0.97;
/// How much less CPU time a spin must take than the present one to replace it.
const SPIN_GAIN: f64 = 0.1;
/// How many gaps a spin is chosen from.
const ENOUGH_GAPS: f64 = 32.0;
/// The short grace time is at least as long as this number of blocks, each of which costs about what a timer's poll does...
const TIMER_BLOCKS: u32 = 5;
/// ...but this is enough...
const LONGEST_TIMER_BLOCKS: Duration = Duration::from_micros(40);
/// ...and it is not longer than this.
const LONGEST_SHORT_GRACE_TIME: Duration = Duration::from_micros(160);
/// The longest batch of events that deferrals last for: as many as a wait returns at most.
const BATCH: f64 = 64.0;
/// The shortest poll interval is at least as long as this number of blocks, each of which is what a poll in vain costs.
const INTERVAL_BLOCKS: u32 = 3;
/// What remains of the peak packet rate after each window: it halves in 0.7 s of load.
const PEAK_DECAY: f64 = 0.99;

/// A threshold with hysteresis.
struct Threshold {
    enter: f64,
    leave: f64,
}

impl Threshold {
    fn is_met(&self, value: f64, before: bool) -> bool {
        value >= if before { self.leave } else { self.enter }
    }
}

/// Chooses how one queue is driven, from the measurements of the worker that serves it.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use policies::law::{Epoch, LatencyBudget, LawLimits, MachineCosts, PollingLaw, QueueMode};
///
/// let costs = MachineCosts { block: Duration::from_micros(3), wake_latency: Duration::from_micros(5) };
/// let mut law = PollingLaw::new(LatencyBudget::ZERO, costs, LawLimits::default());
/// // A core that is always busy, for 100 ms.
/// for _ in 0..10 {
///     let duration = Duration::from_millis(10);
///     law.step(&Epoch { duration, events: 2_000, packets: 2_000, cpu: duration, ..Epoch::default() });
/// }
/// assert_eq!(law.settings().mode, QueueMode::Grace);
/// ```
#[derive(Debug, Clone)]
pub struct PollingLaw {
    budget: LatencyBudget,
    costs: MachineCosts,
    limits: LawLimits,
    settings: QueueSettings,
    gaps: GapHistogram,
    window: Epoch,
    /// The busy share, smoothed.
    busy: Option<f64>,
    costs_of_modes: CostComparison,
    /// The highest packet rate of the last second or so.
    peak_rate: f64,
    since_change: Duration,
    /// The mode that the last windows asked for, and how many did.
    asked: (QueueMode, u32),
}

impl PollingLaw {
    /// A law that starts with plain interrupts.
    pub fn new(budget: LatencyBudget, costs: MachineCosts, limits: LawLimits) -> Self {
        Self {
            budget,
            costs,
            limits,
            settings: Self::initial(limits),
            gaps: GapHistogram::default(),
            window: Epoch::default(),
            busy: None,
            costs_of_modes: CostComparison::default(),
            peak_rate: 0.0,
            since_change: DWELL,
            asked: (QueueMode::Plain, 0),
        }
    }

    fn initial(limits: LawLimits) -> QueueSettings {
        match limits.fixed {
            Some(fixed) => QueueSettings { mode: QueueMode::Plain, why: Reason::Start, ..fixed },
            None => QueueSettings::plain(Reason::Start),
        }
    }

    /// The settings chosen last.
    pub fn settings(&self) -> &QueueSettings {
        &self.settings
    }

    /// How much median delay over plain interrupts the application grants.
    pub fn budget(&self) -> LatencyBudget {
        self.budget
    }

    /// The costs of a sleep that the law calculates with.
    pub fn costs(&self) -> MachineCosts {
        self.costs
    }

    /// Goes on with the settings that are in effect, because others could not be set. Until [`PollingLaw::release`] it only
    /// chooses between waits that poll and waits that don't.
    pub fn fix(&mut self, values: QueueSettings) {
        self.limits.fixed = Some(values);
        self.settings = values;
        self.gaps = GapHistogram::default();
    }

    /// Chooses all values again, after [`PollingLaw::fix`].
    pub fn release(&mut self) {
        self.limits.fixed = None;
    }

    /// Records how long the queue was empty before the event that ended a wait.
    pub fn record_gap(&mut self, gap: Duration) {
        self.gaps.record(gap);
    }

    /// Takes in what was measured since the last step. Returns new settings if they are to change; at most once in 50 ms.
    pub fn step(&mut self, epoch: &Epoch) -> Option<QueueSettings> {
        self.since_change = self.since_change.saturating_add(epoch.duration);
        self.window.add(epoch);
        let too_short = self.window.duration < SHORTEST_WINDOW;
        // Polls in vain cost the worker a wake-up each, so in timed mode the law doesn't wait for more of them.
        let in_vain = self.settings.mode == QueueMode::Timed && self.window.events == 0;
        let too_few = self.window.events < FEW_EVENTS && self.window.duration < LONGEST_WINDOW && !in_vain;
        if too_short || too_few {
            return None;
        }
        let window = std::mem::take(&mut self.window);
        self.judge(&window)
    }

    fn judge(&mut self, window: &Epoch) -> Option<QueueSettings> {
        let busy = self.update(window);
        let gives_up = self.gives_up(window);
        let wanted = self.permitted(self.choose(window, busy, gives_up));
        if let Some(case) = Case::of(self.settings.why).filter(|_| gives_up) {
            self.costs_of_modes.pause(case, busy, most_cost(case));
        }
        // Gaps of older load fade within some 100 ms.
        self.gaps.decay();
        let agreeing = if self.asked.0 == wanted.mode { self.asked.1 + 1 } else { 1 };
        self.asked = (wanted.mode, agreeing);
        let same_values = QueueSettings { why: self.settings.why, ..wanted } == self.settings;
        if same_values {
            self.settings.why = wanted.why;
            return None;
        }
        let too_soon = self.since_change < DWELL || agreeing < AGREEING_WINDOWS;
        if too_soon && !gives_up {
            return None;
        }
        self.since_change = Duration::ZERO;
        if wanted.mode != self.settings.mode {
            self.costs_of_modes.change_mode();
            // They hold what the queue was like in the other mode.
            self.gaps = GapHistogram::default();
        }
        self.settings = wanted;
        Some(wanted)
    }

    /// Whether the present mode polls and costs more than it gives.
    fn gives_up(&mut self, window: &Epoch) -> bool {
        let polls = self.settings.polls() && self.limits.compares_costs;
        let Some(case) = Case::of(self.settings.why).filter(|_| polls) else { return false };
        let most = most_cost(case);
        let costs_more = |(cost, plain)| cost > plain;
        let piling_up = case != Case::Saturated
            && window.busy_share() - window.waiting_share() > OVERLOADED
            && window.cost().zip(self.costs_of_modes.plain()).is_some_and(costs_more);
        piling_up || self.costs_of_modes.costs_more(case, most)
    }

    /// Updates the smoothed measurements. Returns the busy share that the core would have under interrupts.
    fn update(&mut self, window: &Epoch) -> f64 {
        let now = window.busy_share();
        let busy = self.busy.map_or(now, |before| before + SMOOTHING * (now - before));
        self.busy = Some(busy);
        self.peak_rate = window.packet_rate().max(self.peak_rate * PEAK_DECAY);
        let polls = self.settings.polls();
        self.costs_of_modes.record(window.cost(), window.duration, (!polls).then_some(busy));
        match self.costs_of_modes.plain() {
            // Polling makes the core less busy than interrupts would, or busier where it costs more.
            // If requests have become cheaper since, the busy share bounds it.
            Some(cost) if polls => {
                (window.rate() * cost + window.waiting_share()).min(busy / LEAST_COST).min(1.0)
            }
            _ => busy,
        }
    }

    /// The settings for the measured load: the first that suit it, and have not cost more lately.
    fn choose(&self, window: &Epoch, busy: f64, gives_up: bool) -> QueueSettings {
        let before = self.settings;
        let busy_percent = percent(busy);
        let present = Case::of(before.why).filter(|_| before.polls());
        let is_tried = |case: Case| match present {
            // The budget allows less cost than saturation does, in the same mode.
            Some(Case::Saturated) if case == Case::WithinBudget && gives_up => false,
            Some(present) if present == case => !gives_up,
            _ => !self.costs_of_modes.is_paused(case, busy),
        };
        let mut suits = false;
        let short = self.short_grace_time();
        if self.is_saturated(busy, present == Some(Case::Saturated)) {
            suits = true;
            if is_tried(Case::Saturated) {
                let why = Reason::Saturated { busy: busy_percent };
                if self.is_timed() {
                    // Hardly any wait sleeps, and those that do must not miss the next burst.
                    return self.timed(self.short_interval(), why);
                }
                let settings = QueueSettings::grace(short.max(self.budget.delay()), why);
                return self.with_suspend_timeout(self.with_deferrals(settings));
            }
        }
        if let Some(share) = self.share_within_budget(window, busy) {
            suits = true;
            if is_tried(Case::WithinBudget) {
                let why = Reason::WithinBudget { share: percent(share) };
                if self.is_timed() {
                    return self.timed(self.budget_interval(), why);
                }
                return self.with_suspend_timeout(QueueSettings::grace(self.budget.delay(), why));
            }
        }
        if STAYS_BUSY.is_met(busy, before.polls()) {
            suits = true;
            if is_tried(Case::StaysBusy) {
                let why = Reason::StaysBusy { busy: busy_percent };
                let settings =
                    QueueSettings { spin: self.spin(), ..QueueSettings::interrupt_first(short, why) };
                return self.with_suspend_timeout(settings);
            }
        }
        let why = if suits {
            Reason::CostsMore { busy: busy_percent }
        } else {
            Reason::OftenIdle { busy: busy_percent }
        };
        // The present timeout ends a suspension that nobody resumes when the worker stops polling.
        QueueSettings { suspend_timeout: before.suspend_timeout, ..QueueSettings::plain(why) }
    }

    fn is_timed(&self) -> bool {
        self.limits.timer != PollTimer::Kernel && self.limits.fixed.is_none()
    }

    /// Whether packets wait longer for the core than for a timer's poll. With random arrivals and a fixed service time s they
    /// wait s/2 · busy/(1-busy) for the core.
    fn is_saturated(&self, busy: f64, before: bool) -> bool {
        let waits_long = || {
            let event = self.costs_of_modes.plain().unwrap_or(0.0);
            let core_wait = event / 2.0 * busy / (1.0 - busy).max(1e-3);
            CORE_WAIT_INTERVALS.is_met(core_wait / self.short_interval().as_secs_f64(), before)
        };
        SATURATED.is_met(busy, before) || self.is_timed() && STAYS_BUSY.is_met(busy, before) && waits_long()
    }

    /// The shortest poll interval that does not take much of the core.
    fn short_interval(&self) -> Duration {
        let least = self.costs.block * INTERVAL_BLOCKS;
        let mut interval = QueueSettings::SHORT_GRACE_TIME;
        while interval < least && interval < LONGEST_SHORT_GRACE_TIME {
            interval *= 2;
        }
        interval
    }

    /// The poll interval that the budget grants, and in which no more than a quarter of the ring fills.
    fn budget_interval(&self) -> Duration {
        let bound = QueueSettings::time_to_half_fill(self.limits.ring_slots, self.peak_rate) / 2;
        QueueSettings::halved(self.budget.delay(), bound, QueueSettings::SHORT_GRACE_TIME)
    }

    /// Timed mode. Its watchdog is bounded like a suspend timeout: nobody else receives meanwhile.
    fn timed(&self, interval: Duration, why: Reason) -> QueueSettings {
        let present = &self.settings;
        let before = (present.mode == QueueMode::Timed).then_some(present.grace_time);
        let watchdog = self.longest_without_poll(before).min(QueueSettings::LONGEST_WATCHDOG);
        QueueSettings::timed(interval, watchdog.max(interval * 2), why)
    }

    /// The share of sleeps that end within the budget's grace time, if that is enough for the timer's polls.
    fn share_within_budget(&self, window: &Epoch, busy: f64) -> Option<f64> {
        let grace = self.budget.delay();
        if grace < QueueSettings::SHORT_GRACE_TIME {
            return None;
        }
        let (mode, time) = match self.is_timed() {
            true => (QueueMode::Timed, self.settings.poll_interval),
            false => (QueueMode::Grace, self.settings.grace_time),
        };
        let is_in_effect = self.settings.mode == mode && time <= grace;
        // The timer's first poll comes after the grace time; a sleep that it ended has not reached half of
        // the second.
        let limit = if is_in_effect { grace * 3 / 2 } else { grace };
        let never_idle = self.gaps.weight() < 1.0 && busy > SATURATED.enter;
        let enough = self.gaps.weight() >= FEW_GAPS && window.events >= FEW_EVENTS;
        let share = if never_idle { 1.0 } else { self.gaps.share_within(limit) };
        let threshold = match self.limits.timer {
            PollTimer::Worker { wakes_thread: true } => WITHIN_INTERVAL_OF_THREAD,
            _ => WITHIN_GRACE,
        };
        ((never_idle || enough) && threshold.is_met(share, is_in_effect)).then_some(share)
    }

    /// The timer's polls must not take much of the core. And the timer must not fire between an interrupt's poll and
    /// the wait that suspends the queue: one event may be processed meanwhile, and another may follow.
    fn short_grace_time(&self) -> Duration {
        let blocks = (self.costs.block * TIMER_BLOCKS).min(LONGEST_TIMER_BLOCKS);
        let event =
            Duration::try_from_secs_f64(self.costs_of_modes.plain().unwrap_or(0.0)).unwrap_or_default();
        let least = blocks.max(event * 2).clamp(QueueSettings::SHORT_GRACE_TIME, LONGEST_SHORT_GRACE_TIME);
        // A cost that varies must not change the grace time each time.
        let present = self.settings.grace_time;
        let by_load = matches!(self.settings.why, Reason::Saturated { .. } | Reason::StaysBusy { .. });
        if by_load && present >= least && present <= least * 4 {
            return present;
        }
        let mut time = QueueSettings::SHORT_GRACE_TIME;
        while time < least {
            time *= 2;
        }
        time
    }

    /// Enough deferrals for a batch of requests. A queue that is saturated is hardly ever empty, so they are not used up.
    fn with_deferrals(&self, settings: QueueSettings) -> QueueSettings {
        let batch = self.costs_of_modes.plain().unwrap_or(0.0) * BATCH;
        let needed = (batch / settings.grace_time.as_secs_f64()).ceil() as u64;
        let needed = needed.clamp(QueueSettings::GRACE_DEFERRALS, QueueSettings::MOST_DEFERRALS);
        // A cost that varies must not change them each time.
        let present = self.settings.defer_hard_irqs;
        let stays = present >= needed && matches!(self.settings.why, Reason::Saturated { .. });
        QueueSettings { defer_hard_irqs: if stays { present } else { needed }, ..settings }
    }

    /// The spin that takes the least CPU time: its mean time, and a block where it was in vain. Never longer than
    /// a block, so that it costs at most twice the best choice (Damianakis et al. 1997).
    fn spin(&self) -> Duration {
        let present = self.settings.spin;
        if self.settings.mode != QueueMode::InterruptFirst || self.gaps.weight() < ENOUGH_GAPS {
            return present;
        }
        let block = self.costs.block;
        let cost = |spin: Duration| {
            let in_vain = 1.0 - self.gaps.share_within(spin);
            let spun = if spin.is_zero() { Duration::ZERO } else { self.gaps.mean_up_to(spin) };
            spun.as_secs_f64() + block.as_secs_f64() * in_vain
        };
        // The kernel's unit.
        let whole = |time: Duration| Duration::from_micros(time.as_micros() as u64);
        let best = [Duration::ZERO, whole(block / 2), whole(block)]
            .into_iter()
            .min_by(|one, other| cost(*one).total_cmp(&cost(*other)));
        best.filter(|best| cost(*best) < cost(present) * (1.0 - SPIN_GAIN)).unwrap_or(present)
    }

    fn with_suspend_timeout(&self, settings: QueueSettings) -> QueueSettings {
        let present = &self.settings;
        let suspends = present.polls() && !present.suspend_timeout.is_zero();
        let timeout = self.longest_without_poll(suspends.then_some(present.suspend_timeout));
        QueueSettings { suspend_timeout: timeout, ..settings }
    }

    /// Bounds the time without a poll by half of the ring at the observed rate. `present`: the bound in effect.
    fn longest_without_poll(&self, present: Option<Duration>) -> Duration {
        let bound = QueueSettings::time_to_half_fill(self.limits.ring_slots, self.peak_rate);
        let timeout = QueueSettings::longest_suspend_timeout_within(bound);
        // A rate near a power of two must not change the timeout back and forth.
        present.filter(|&present| present <= bound && present >= timeout / 4).unwrap_or(timeout)
    }

    /// Keeps to the values that can't be set.
    fn permitted(&self, wanted: QueueSettings) -> QueueSettings {
        match self.limits.fixed {
            None => wanted,
            // Its values need a worker that polls.
            Some(fixed) if fixed.mode == QueueMode::Timed => QueueSettings { why: wanted.why, ..fixed },
            Some(fixed) if wanted.polls() && fixed.polls() => {
                QueueSettings { spin: wanted.spin, why: wanted.why, ..fixed }
            }
            Some(fixed) => {
                QueueSettings { mode: QueueMode::Plain, spin: Duration::ZERO, why: wanted.why, ..fixed }
            }
        }
    }
}

/// The share of the cost under interrupts above which polling is given up.
fn most_cost(case: Case) -> f64 {
    match case {
        Case::StaysBusy => MOST_COST_INTERRUPT_FIRST,
        Case::Saturated => MOST_COST_SATURATED,
        Case::WithinBudget => MOST_COST,
    }
}

fn percent(share: f64) -> u8 {
    (share * 100.0).round().clamp(0.0, 100.0) as u8
}

#[cfg(test)]
mod tests;
