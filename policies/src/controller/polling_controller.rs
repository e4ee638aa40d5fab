//! The controller: chooses a queue's mode and values from a worker's measurements.
//!
//! It measures plain interrupts at a load, predicts whether polling can take less CPU time or
//! delay, and if so tries it: the measurements of the trial decide, and go on deciding. It has one
//! dimension, the poll interval (or grace time): a longer one takes less CPU time, a shorter one
//! delays less.

use std::time::Duration;

use super::budget::{Budgets, LatencyBudget};
use super::epoch::Epoch;
use super::limits::{ControllerLimits, PollTimer};
use super::load_memory::{FIRST_TRUST, KnownLoad, LoadMemory, NEAR};
use super::machine_costs::MachineCosts;
use super::measured::{ENOUGH, Measured, differ};
use super::queue_settings::{QueueMode, QueueSettings};
use super::reason::{Comparison, Reason};

/// The shortest time over which the controller measures: shorter ones hold too few wake-ups.
const SHORTEST_WINDOW: Duration = Duration::from_millis(10);
/// With fewer events than this it waits for more. A queue with so few events is not polled.
const FEW_EVENTS: u64 = 32;
/// The longest time for which it waits, and for which a choice is measured at least where the core
/// is saturated: clients that wait for their replies fall into step there, and what an event takes
/// falls by 15 % in the first 100 ms.
const LONGEST_WINDOW: Duration = Duration::from_millis(120);
/// How much a measurement may exceed its bound before what has paid is given up, and by how much a
/// prediction has to keep to it: windows differ by some percent at the same load.
const TOLERANCE: f64 = 1.05;
/// The share of an event's CPU time that the next longer interval has to save: for less no event
/// waits longer.
const LEAST_SAVING: f64 = 0.0125;
/// A window whose rate differs by more than this factor is of another load.
const OTHER_LOAD: f64 = 1.5;
/// What remains of the peak packet rate after each window: it halves in 0.7 s of load.
const PEAK_DECAY: f64 = 0.99;

/// Chooses how one queue is driven, from the measurements of the worker that serves it.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use policies::controller::{Budgets, Delays, Epoch, ControllerLimits, MachineCosts, PollTimer, PollingController, QueueMode};
///
/// let micros = Duration::from_micros;
/// let costs = MachineCosts { block: micros(3), timer_latency: micros(5), wake_latency: micros(4) };
/// let limits = ControllerLimits { timer: PollTimer::Worker, ..ControllerLimits::default() };
/// let mut controller = PollingController::new(Budgets::default(), costs, limits);
/// // A core that interrupts keep busy for 95 % of the time, for 150 ms. A request waits for 50 µs.
/// for _ in 0..15 {
///     let duration = Duration::from_millis(10);
///     let cpu = Duration::from_micros(9_500);
///     let mut delays = Delays::default();
///     delays.add([micros(20), micros(80)], 2_000.0);
///     controller.step(&Epoch { duration, events: 2_000, packets: 2_000, cpu, sleeps: 400, delays, ..Epoch::default() });
/// }
/// assert_eq!(controller.settings().mode, QueueMode::Timed);
/// ```
#[derive(Debug, Clone)]
pub struct PollingController {
    budgets: Budgets,
    costs: MachineCosts,
    /// That of the start. The present one may be that of a pause, and stays while no sleep is ended
    /// by a timer.
    first_timer_latency: Duration,
    limits: ControllerLimits,
    settings: QueueSettings,
    window: Epoch,
    /// The mode in effect, since it is.
    present: Measured,
    since_change: Duration,
    /// For how long the load has varied too much to judge the mode in effect.
    unjudged: Duration,
    memory: LoadMemory,
    /// The highest packet rate of the last second or so.
    peak_rate: f64,
    /// Why polling is not tried any more.
    stopped: Option<Reason>,
    /// Whether the load was another one in the window before.
    is_new_load: bool,
    /// Plain interrupts, and the rate before the present trial, until it was judged.
    before_trial: Option<(Measured, f64)>,
    trial_time: Duration,
    /// The rate of plain interrupts before a trial in which the load seemed to step. If interrupts
    /// have that rate again, it was polling that has changed it: clients wait for replies.
    doubted: Option<f64>,
}

/// What becomes of the mode in effect.
enum Choice {
    Stay(Reason),
    Plain(Reason),
    /// Polls with this interval. Zero: the wait never sleeps.
    Poll(Duration, Reason),
}

impl PollingController {
    /// A controller that starts with plain interrupts.
    pub fn new(budgets: Budgets, costs: MachineCosts, limits: ControllerLimits) -> Self {
        let settings = match limits.fixed {
            Some(fixed) => QueueSettings { mode: QueueMode::Plain, why: Reason::Start, ..fixed },
            None => QueueSettings::plain(Reason::Start),
        };
        Self {
            budgets,
            costs,
            first_timer_latency: costs.timer_latency,
            limits,
            settings,
            window: Epoch::default(),
            present: Measured::default(),
            since_change: Duration::ZERO,
            unjudged: Duration::ZERO,
            memory: LoadMemory::default(),
            peak_rate: 0.0,
            stopped: None,
            is_new_load: false,
            before_trial: None,
            trial_time: Duration::ZERO,
            doubted: None,
        }
    }

    /// The settings chosen last.
    pub fn settings(&self) -> &QueueSettings {
        &self.settings
    }

    /// For how long polling was tried, or given up for a moment to measure interrupts, since the
    /// start.
    pub fn trial_time(&self) -> Duration {
        self.trial_time
    }

    /// What the application grants.
    pub fn budgets(&self) -> Budgets {
        self.budgets
    }

    /// The costs of a sleep that the controller calculates with: the timer's latency as measured
    /// last.
    pub fn costs(&self) -> MachineCosts {
        self.costs
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
        self.before_trial = None;
        self.window = Epoch::default();
        self.begin_measuring();
    }

    /// Chooses all values again, after [`PollingController::fix`].
    pub fn release(&mut self) {
        self.limits.fixed = None;
    }

    /// Forgets all measurements, and begins with plain interrupts. What it can't set, and whether
    /// it may poll at all, stays.
    pub fn restart(&mut self, limits: ControllerLimits) {
        let limits = ControllerLimits { fixed: self.limits.fixed.or(limits.fixed), ..limits };
        let costs = MachineCosts { timer_latency: self.first_timer_latency, ..self.costs };
        let (stopped, trial_time) = (self.stopped, self.trial_time);
        *self = Self { stopped, trial_time, ..Self::new(self.budgets, costs, limits) };
    }

    /// The supervisor has ended, which has given the queue its values from before. A change from
    /// `in_effect` that was under way is not made any more, and polling is not tried again.
    pub fn supervisor_ended(&mut self, in_effect: QueueSettings) {
        self.resume(in_effect);
        self.stop_polling(Reason::Unsupervised);
    }

    /// Stays with plain interrupts from now on.
    pub fn stop_polling(&mut self, why: Reason) {
        self.stopped = Some(why);
    }

    /// Takes in what was measured since the last step. Returns new settings if they are to change.
    pub fn step(&mut self, epoch: &Epoch) -> Option<QueueSettings> {
        self.since_change = self.since_change.saturating_add(epoch.duration);
        self.window.add(epoch);
        let too_short = self.window.duration < SHORTEST_WINDOW;
        // Polls in vain cost a wake-up each, so while it polls the controller doesn't wait for more
        // of them.
        let in_vain = !self.settings.is_plain() && self.window.events == 0;
        let too_few = self.window.events < FEW_EVENTS && self.window.duration < LONGEST_WINDOW && !in_vain;
        if too_short || too_few {
            return None;
        }
        let window = std::mem::take(&mut self.window);
        // A load that varies too much to be judged is left to interrupts.
        if matches!(self.settings.why, Reason::Tries | Reason::Measures) && self.unjudged <= FIRST_TRUST {
            self.trial_time += window.duration;
        }
        self.take(&window);
        let choice = if let Some(why) = self.stopped {
            Choice::Plain(why)
        } else if !self.limits.has_to_pay {
            self.choose_polling_always(&window)
        } else if !self.settings.is_plain() {
            self.judge_polling(&window)
        } else {
            self.judge_plain(&window)
        };
        let wanted = self.permitted(match choice {
            Choice::Stay(why) if !self.settings.is_plain() => {
                QueueSettings { why, ..self.within_ring(self.settings) }
            }
            // Also without a change: the queue may have kept the values of a mode that polls.
            Choice::Stay(why) | Choice::Plain(why) => {
                // The present timeout ends a suspension that nobody resumes when the worker stops
                // polling.
                let suspend_timeout = self.settings.suspend_timeout;
                QueueSettings { suspend_timeout, ..QueueSettings::plain(why) }
            }
            Choice::Poll(interval, why) => self.polling(interval, why),
        });
        if wanted.equals_but_reason(&self.settings) {
            self.settings.why = wanted.why;
            return None;
        }
        if (wanted.mode, interval(&wanted)) != (self.settings.mode, interval(&self.settings)) {
            self.begin_measuring();
            self.unjudged = Duration::ZERO;
        }
        self.settings = wanted;
        Some(wanted)
    }

    fn begin_measuring(&mut self) {
        self.present = Measured::default();
        self.since_change = Duration::ZERO;
    }

    fn take(&mut self, window: &Epoch) {
        let seconds = window.duration.as_secs_f64();
        let rate = window.events as f64 / seconds.max(1e-9);
        if differ(rate, self.present.rate, OTHER_LOAD) {
            self.begin_measuring();
        }
        self.memory.pass(window.duration);
        self.peak_rate = window.packet_rate().max(self.peak_rate * PEAK_DECAY);
        self.present.take(window);
        let moved = self.memory.follow(self.present.rate);
        self.is_new_load = moved > 0;
        if moved > NEAR {
            self.present.begin_other_load();
        }
        self.unjudged = if self.is_measured() { Duration::ZERO } else { self.unjudged + window.duration };
        let (overslept, sleeps) = window.overslept;
        if let Ok(sleeps @ 1..) = u32::try_from(sleeps) {
            self.costs.take_timer_latency(overslept / sleeps);
        }
    }

    /// Whether the core is saturated under interrupts, or although the kernel's timer polls for it.
    /// Then waits poll, too: no request waits for a timer, which clients that wait for their
    /// replies would ask the less for.
    fn outgrows_deferral(&self) -> bool {
        let load = self.memory.known(self.present.rate);
        let plain_saturated = load.fresh_plain().is_some_and(|plain| plain.is_saturated());
        plain_saturated
            || load.outgrows_deferral()
            || (!self.settings.is_plain() && self.present.is_saturated())
    }

    /// Whether the mode in effect was measured for long enough to judge.
    fn is_measured(&self) -> bool {
        let falls_into_step = self.present.is_saturated() && self.since_change < LONGEST_WINDOW;
        self.present.windows >= ENOUGH && !falls_into_step
    }

    /// How long an event may wait, in seconds, beside plain interrupts.
    fn delay_bound(&self, plain: &Measured) -> f64 {
        let has_cpu_budget = self.budgets.cpu.share() > 0.0;
        let budget = if has_cpu_budget { 0.0 } else { self.budgets.latency.delay().as_secs_f64() };
        plain.delay + budget
    }

    /// The CPU time that an event may take, in seconds.
    fn cost_bound(&self, plain: &Measured) -> f64 {
        plain.cost * (1.0 + self.budgets.cpu.share())
    }

    fn judge_plain(&mut self, window: &Epoch) -> Choice {
        if window.events < FEW_EVENTS {
            return Choice::Stay(Reason::Idle);
        }
        let load = self.memory.known(self.present.rate);
        if let Some(comparison) = load.refused() {
            self.doubted = None;
            return Choice::Stay(Reason::DidNotPay(comparison));
        }
        // The rate of clients that wait for replies may differ under polling, so what is known at
        // this rate may not be at that one.
        let measures = load.is_stale() || self.settings.why == Reason::Measures;
        if let Some(interval) = load.interval().filter(|_| !measures) {
            (self.before_trial, self.doubted) = (None, None);
            return Choice::Poll(interval, Reason::Tries);
        }
        if !self.is_measured() {
            return Choice::Stay(self.settings.why);
        }
        let (measured, load) = (self.present, self.memory.at(self.present.rate));
        let plain = load.set_plain(measured);
        self.doubted = self.doubted.filter(|rate| !differ(plain.rate, *rate, OTHER_LOAD));
        let known = load.interval();
        match known.or_else(|| self.first_interval(&plain)) {
            None => Choice::Stay(Reason::CannotPay),
            Some(interval) => {
                self.memory.at(measured.rate).begin_trial();
                self.before_trial = Some((measured, measured.rate));
                Choice::Poll(interval, Reason::Tries)
            }
        }
    }

    /// The interval with which polling is tried; `None` if it can't pay. The measurements decide
    /// afterwards. Polling leaves the core idle for a third of the time at least, and saves half of
    /// the CPU time at most.
    fn first_interval(&self, plain: &Measured) -> Option<Duration> {
        if self.limits.timer == PollTimer::Kernel && self.outgrows_deferral() {
            // Waits poll, so the timer hardly does.
            return self.intervals().find(|interval| !interval.is_zero() && !self.is_barred(*interval));
        }
        let late = self.costs.timer_latency.min(self.first_timer_latency).as_secs_f64();
        let idle = (1.0 - plain.busy).max(0.3);
        let polls = match self.limits.timer {
            PollTimer::Worker => idle,
            // It polls also while the application runs.
            PollTimer::Kernel => 1.0,
        };
        let bound = self.delay_bound(plain);
        let fits = |interval: &Duration| {
            let late = if interval.is_zero() { 0.0 } else { late };
            (interval.as_secs_f64() + late) / 2.0 <= bound && !self.is_barred(*interval)
        };
        let saved = (plain.sleeps * self.costs.block.as_secs_f64()).min(plain.cost * plain.rate / 2.0);
        let granted = plain.cost * plain.rate * self.budgets.cpu.share();
        let pays = |interval: &Duration| {
            if interval.is_zero() {
                self.never_sleeps_within(plain)
            } else {
                // A saturated core hardly sleeps: what is saved there, the kernel thread's
                // wake-ups, is not known.
                plain.is_saturated() || polls * self.sleeps_cost(*interval) <= saved + granted
            }
        };
        let mut intervals = self.intervals();
        if self.budgets.cpu.share() > 0.0 {
            return intervals.find(|interval| fits(interval) && pays(interval));
        }
        let shortest = intervals.next().filter(fits)?;
        let longest = self.lengthened(shortest, polls, 1.0 - idle, fits);
        Some(longest).filter(pays)
    }

    /// Whether a core that never sleeps takes no more than the CPU budget allows.
    fn never_sleeps_within(&self, plain: &Measured) -> bool {
        self.limits.timer == PollTimer::Worker && 1.0 <= self.cost_bound(plain) * plain.rate
    }

    /// All intervals that may be chosen, from the shortest on.
    fn intervals(&self) -> impl Iterator<Item = Duration> {
        let shortest = match self.limits.timer {
            PollTimer::Worker => QueueSettings::SHORTEST_INTERVAL,
            PollTimer::Kernel => QueueSettings::SHORT_GRACE_TIME,
        };
        // A quarter of the ring fills in it at most. The watchdog is at least twice as long.
        let in_ring = QueueSettings::time_to_half_fill(self.limits.ring_slots, self.peak_rate) / 2;
        let longest = in_ring.min(LatencyBudget::MAX.delay()).max(shortest);
        let never_sleeps = (self.budgets.cpu.share() > 0.0).then_some(Duration::ZERO);
        // Each is 1.4 times the one before it.
        let steps =
            (0..8).flat_map(move |octave| [shortest, shortest * 7 / 5].map(|step| step * (1 << octave)));
        let steps = steps.filter(move |interval| *interval <= longest);
        let fixed = self.limits.fixed.map(|fixed| interval(&fixed));
        let chosen = never_sleeps.into_iter().chain(steps).filter(move |_| fixed.is_none());
        fixed.into_iter().chain(chosen)
    }

    fn judge_polling(&mut self, window: &Epoch) -> Choice {
        if window.events == 0 {
            return Choice::Plain(Reason::Idle);
        }
        let known = self.memory.known(self.present.rate).interval();
        if let Some(known) = known.filter(|known| self.is_new_load && *known != interval(&self.settings)) {
            return Choice::Poll(known, Reason::Tries);
        }
        if !self.is_measured() {
            // What can't be judged may cost anything.
            let is_too_long = self.unjudged > FIRST_TRUST;
            return if is_too_long {
                Choice::Plain(Reason::Measures)
            } else {
                Choice::Stay(self.settings.why)
            };
        }
        let present = self.present;
        if let Some((plain, before)) = self.before_trial.take() {
            // Clients that wait for the replies of a saturated server ask more often while the
            // queue is polled: it is the same load.
            let is_same =
                !differ(present.rate, before, OTHER_LOAD) || (plain.is_saturated() && present.rate > before);
            if is_same || self.doubted.is_some() {
                self.doubted = None;
                // Polling may have changed the rate.
                let load = self.memory.at(present.rate);
                if load.is_stale() {
                    load.set_plain(plain);
                }
            } else {
                self.doubted = Some(before);
                return Choice::Plain(Reason::Measures);
            }
        }
        match self.memory.known(present.rate).fresh_plain() {
            Some(plain) => self.compare(&plain),
            None => Choice::Plain(Reason::Measures),
        }
    }

    /// Keeps the interval, changes it or gives polling up, by what interrupts take at this load.
    fn compare(&mut self, plain: &Measured) -> Choice {
        let (present, now) = (self.present, interval(&self.settings));
        if self.settings.mode == QueueMode::Deferral && self.outgrows_deferral() {
            self.memory.each_at([present.rate, plain.rate], KnownLoad::outgrow_deferral);
            return Choice::Poll(now, Reason::Tries);
        }
        let delay = present.delay;
        // CPU time that is paid has to buy as large a share of the delay.
        let paid = if self.budgets.cpu.share() > 0.0 { (present.cost / plain.cost).max(1.0) } else { 1.0 };
        let most_delay = self.delay_bound(plain) / paid;
        let most_cost = self.cost_bound(plain);
        let percent = |share: f64| (share * 100.0).round().min(f64::from(u16::MAX)) as u16;
        let comparison = Comparison {
            cpu: percent(present.cost / plain.cost),
            delay: percent(delay / plain.delay.max(1e-9)),
        };
        let saturated = plain.is_saturated();
        // What was found to pay is not given up for a difference that windows have at the same
        // load. At saturation a cost that is wrong by some percent is throughput lost, so there the
        // gain has to be clear.
        let pays = self.memory.known(present.rate).pays_with(now);
        let tolerance = if pays { TOLERANCE } else { 1.0 };
        let is_costly = present.cost > most_cost * if saturated { 1.0 / TOLERANCE } else { tolerance };
        let is_late = delay > most_delay * tolerance;
        let next = match (is_costly, is_late) {
            (true, true) if !saturated => None,
            (true, _) => {
                let most_delay = if saturated { f64::INFINITY } else { most_delay };
                self.longer(now, delay, most_delay / TOLERANCE)
            }
            (false, true) => {
                self.shorter(now, plain, most_cost, delay - most_delay).or(saturated.then_some(now))
            }
            (false, false) => {
                let better = match self.budgets.cpu.share() > 0.0 {
                    true => self.shorter(now, plain, most_cost, 0.0),
                    false => self.longer(now, delay, most_delay / TOLERANCE),
                };
                Some(better.unwrap_or(now))
            }
        };
        let rates = [present.rate, plain.rate];
        match next {
            None => {
                self.memory.each_at(rates, |load| load.refuse(comparison));
                Choice::Plain(Reason::DidNotPay(comparison))
            }
            Some(next) if next == now => {
                self.memory.each_at(rates, |load| load.accept(now, &present));
                // At the load before another mode may have been better.
                Choice::Poll(now, Reason::Pays(comparison))
            }
            Some(next) => {
                // At saturation an interval may be left for a longer one although events wait.
                if is_late && next < now {
                    self.memory.each_at(rates, |load| load.bar_from(now));
                }
                self.before_trial = Some((*plain, present.rate));
                Choice::Poll(next, Reason::Tries)
            }
        }
    }

    /// A longer interval, at most twice as long, if events still wait no longer than they may: for
    /// half of what it is longer. Those that come while the worker sleeps wait for the poll, and
    /// the others for the larger batch.
    fn longer(&self, now: Duration, delay: f64, most: f64) -> Option<Duration> {
        let twice = self.intervals().find(|interval| *interval > now)?.max(now * 2);
        let added = |next: &Duration| (*next - now).as_secs_f64() / 2.0;
        let fits = |next: &Duration| *next <= twice && !self.is_barred(*next) && delay + added(next) <= most;
        let longest = self.lengthened(now, self.asleep(), self.present.cost * self.present.rate, fits);
        (longest > now).then_some(longest)
    }

    /// The longest interval from `now` on that fits, as long as each saves enough CPU time beside
    /// the one before it that events may wait for it. `asleep`, `busy`: the share of the time that
    /// the worker sleeps, with what a sleep costs, and that it takes of its core.
    fn lengthened(
        &self,
        now: Duration,
        asleep: f64,
        busy: f64,
        fits: impl Fn(&Duration) -> bool,
    ) -> Duration {
        let mut longest = now;
        for next in self.intervals().filter(|interval| *interval > now).take_while(fits) {
            let saved = asleep * (self.sleeps_cost(longest) - self.sleeps_cost(next));
            if saved < LEAST_SAVING * busy {
                break;
            }
            longest = next;
        }
        longest
    }

    /// The share of the time that the worker sleeps while the queue is polled, what a sleep costs
    /// included.
    fn asleep(&self) -> f64 {
        let sleep = interval(&self.settings) + self.costs.timer_latency;
        (self.present.sleeps * sleep.as_secs_f64()).min(1.0)
    }

    /// The CPU time that the sleeps of an idle worker take with a poll interval, as a share of the
    /// time. What a sleep takes was measured on an idle machine. It is at least half of what makes
    /// the timer late, which is measured while the worker serves.
    fn sleeps_cost(&self, interval: Duration) -> f64 {
        let late = self.costs.timer_latency;
        self.costs.block.max(late / 2).as_secs_f64() / (interval + late).as_secs_f64()
    }

    /// The longest shorter interval with which events should wait for less by `excess` seconds, if
    /// they still take no more CPU time than they may.
    fn shorter(&self, now: Duration, plain: &Measured, most: f64, excess: f64) -> Option<Duration> {
        let saved = |next: Duration| (now - next).as_secs_f64() / 2.0;
        let mut shorter = self.intervals().take_while(|interval| *interval < now);
        let shortest = shorter.next()?;
        let next = shorter.filter(|next| saved(*next) >= excess).last().unwrap_or(shortest);
        let fits = if next.is_zero() {
            self.never_sleeps_within(plain)
        } else {
            let added = self.asleep() * (self.sleeps_cost(next) - self.sleeps_cost(now));
            self.present.cost + added / self.present.rate <= most / TOLERANCE
        };
        (!self.is_barred(next) && fits).then_some(next)
    }

    /// Whether the interval has exceeded a bound at the present load.
    fn is_barred(&self, interval: Duration) -> bool {
        self.memory.known(self.present.rate).is_barred(interval)
    }

    fn choose_polling_always(&self, window: &Epoch) -> Choice {
        if window.events < FEW_EVENTS {
            return Choice::Plain(Reason::Idle);
        }
        Choice::Poll(self.budgets.latency.delay().max(QueueSettings::SHORT_GRACE_TIME), Reason::Tries)
    }

    /// The settings that poll with this interval. Zero: the wait never sleeps.
    fn polling(&self, interval: Duration, why: Reason) -> QueueSettings {
        let timed = |interval: Duration| {
            // Nobody else receives until the watchdog does.
            let watchdog = QueueSettings::LONGEST_WATCHDOG.max(interval * 2);
            self.within_ring(QueueSettings::timed(interval, watchdog, why))
        };
        match self.limits.timer {
            PollTimer::Worker if interval.is_zero() => {
                // Each wait polls until the controller is asked again, or for this time.
                let spin = QueueSettings::LONGEST_WATCHDOG / 2;
                QueueSettings { spin, ..timed(spin) }
            }
            PollTimer::Worker => timed(interval),
            PollTimer::Kernel if self.limits.has_to_pay && !self.outgrows_deferral() => {
                // The present timeout ends a suspension that nobody resumes when waits stop
                // polling.
                let suspend_timeout = self.settings.suspend_timeout;
                QueueSettings { suspend_timeout, ..QueueSettings::deferral(interval, why) }
            }
            PollTimer::Kernel => {
                // Where the core is saturated batches are long.
                let defer_hard_irqs = QueueSettings::MOST_DEFERRALS;
                self.within_ring(QueueSettings { defer_hard_irqs, ..QueueSettings::grace(interval, why) })
            }
        }
    }

    /// Shortens the time without a poll until at most half of the ring fills in it, at the observed
    /// rate.
    fn within_ring(&self, settings: QueueSettings) -> QueueSettings {
        let bound = QueueSettings::time_to_half_fill(self.limits.ring_slots, self.peak_rate);
        let within = QueueSettings::longest_suspend_timeout_within(bound);
        match settings.mode {
            QueueMode::Plain | QueueMode::Deferral => settings,
            QueueMode::Timed => {
                let sleep = if settings.never_sleeps() { Duration::ZERO } else { settings.poll_interval };
                let grace_time = settings.grace_time.min(within.max(sleep * 2));
                QueueSettings { grace_time, ..settings }
            }
            QueueMode::InterruptFirst | QueueMode::Grace => {
                QueueSettings { suspend_timeout: settings.suspend_timeout.min(within), ..settings }
            }
        }
    }

    /// Keeps to the values that can't be set.
    fn permitted(&self, wanted: QueueSettings) -> QueueSettings {
        let Some(fixed) = self.limits.fixed else { return wanted };
        let is_unsupervised = fixed.why == Reason::Unsupervised;
        let wants_plain = wanted.is_plain();
        let polls = match fixed.mode {
            QueueMode::Plain => false,
            // Packets would wait for the watchdog. The first one of an idle queue doesn't.
            QueueMode::Timed => self.stopped.is_none() && wanted.why != Reason::Idle,
            // The timer polls, whatever waits do.
            QueueMode::Deferral => true,
            QueueMode::InterruptFirst | QueueMode::Grace => !wants_plain && !is_unsupervised,
        };
        let why = match wanted.why {
            _ if is_unsupervised => Reason::Unsupervised,
            _ if !wants_plain && !polls => Reason::Fixed,
            why => why,
        };
        if polls {
            QueueSettings { why, ..fixed }
        } else {
            QueueSettings { mode: QueueMode::Plain, spin: Duration::ZERO, why, ..fixed }
        }
    }
}

/// The time between two polls of a sleeping worker. Zero if it never sleeps.
fn interval(settings: &QueueSettings) -> Duration {
    match settings.mode {
        QueueMode::Timed if settings.never_sleeps() => Duration::ZERO,
        QueueMode::Timed => settings.poll_interval,
        QueueMode::Plain => Duration::ZERO,
        QueueMode::InterruptFirst | QueueMode::Grace | QueueMode::Deferral => settings.grace_time,
    }
}

#[cfg(test)]
mod tests;
