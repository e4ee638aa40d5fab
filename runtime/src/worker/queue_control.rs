//! Kernel polling that adapts: a worker measures its waits, and applies what the controller
//! chooses.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use policies::controller::{
    Budgets, Delays, Epoch, ForcedSettings, PollingController, QueueMode, QueueSettings, Reason,
    receiving_time,
};
use policies::netlink::netdev::Netdev;
use policies::thread_time::{AwakeTime, ThreadTimes, this_thread_cpu_time, voluntary_switches};
use policies::{ChangeStep, QueueChange, QueueRequests};

use super::worker_handle::WorkerHandle;
use crate::driver::Driver;
use crate::driver::wait::WaitOutcome;

/// How often the controller is asked.
const STEP: Duration = Duration::from_millis(10);
/// What the kernel takes at most to receive and report one event within a wait. A wait that took no
/// longer than its events was not a sleep.
const EVENT_TIME: Duration = Duration::from_nanos(1_500);
/// After a turn with this many events or more, the length of a wait doesn't tell whether it slept:
/// the ring sends the turn's replies within the wait, and the queue's kernel thread may preempt it.
const LONG_TURN: u32 = 3;
/// What receiving one request, or sending one reply, takes at most. A longer wait has slept.
const LONGEST_EVENT: Duration = Duration::from_micros(8);
/// After one of this many long turns, the kernel's count of sleeps tells whether the wait slept
/// (`ru_nvcsw`). Two system calls read it, in about a microsecond.
const ASKED: u32 = 8;
/// The weight of a wait in what waits take for each event.
const WAIT_WEIGHT: f64 = 0.01;
/// For how long nobody may poll the queue when a worker stops polling.
const LONGEST_INTERRUPTION: Duration = Duration::from_millis(1);
/// A worker that was away from its queue for longer than this, in nanoseconds, was paused: by a
/// long task, or by the hypervisor. The events of a turn that took so long are not counted.
const PAUSE: u64 = 1_000_000;
/// About what an interrupt and its softirq take for one packet.
const INTERRUPT: Duration = Duration::from_nanos(1_500);
/// The payload of a full Ethernet frame with TCP timestamps, in bytes.
const SEGMENT: u64 = 1_448;

/// The readings at the last step.
#[derive(Debug, Clone, Copy)]
struct Reading {
    time: u64,
    received_bytes: u64,
    sent_bytes: u64,
    /// As far as the kernel counts it.
    threads: Option<QueueTimes>,
}

/// How the worker's thread and its queue's have spent their time so far.
#[derive(Debug, Clone, Copy)]
struct QueueTimes {
    worker: ThreadTimes,
    /// The kernel thread that polls the queue; `None` if there is none.
    receiver: Option<ThreadTimes>,
}

impl QueueTimes {
    /// The CPU time of the worker and of the kernel's work for its queue, and how long the worker
    /// waited for its core beyond that, with `sleeps` in between and `packets` received.
    fn since(&self, before: &Self, sleeps: u32, packets: u64) -> (Duration, Duration) {
        let run = self.worker.run.saturating_sub(before.worker.run);
        let ready = self.worker.ready.saturating_sub(before.worker.ready);
        match self.received_since(before) {
            // While the kernel thread has the worker's core, the worker is ready.
            Some((received, _)) => (run + received, ready.saturating_sub(received)),
            // Interrupts do the kernel's work. While they hold up the worker, it is running or
            // ready; while it sleeps, it is neither. The rest of the time in which it was ready,
            // other programs had the core.
            None => {
                let in_interrupts = ready.min(INTERRUPT * u32::try_from(packets).unwrap_or(u32::MAX));
                (run + in_interrupts + INTERRUPT * sleeps, ready - in_interrupts)
            }
        }
    }

    /// How long the kernel thread has run, and how often.
    fn received_since(&self, before: &Self) -> Option<(Duration, u64)> {
        let (before, after) = before.receiver.zip(self.receiver)?;
        Some((after.run.saturating_sub(before.run), after.turns.saturating_sub(before.turns)))
    }

    /// How long each of so many packets took through the kernel thread, on average.
    fn receiving_since(&self, before: &Self, packets: u64) -> Duration {
        let (run, turns) = self.received_since(before).unwrap_or_default();
        receiving_time(run, turns, packets)
    }
}

/// The controller of one worker's queue, and its state.
pub(crate) struct QueueControl {
    controller: RefCell<PollingController>,
    forced: Option<ForcedSettings>,
    change: RefCell<QueueChange>,
    /// The worker's thread; `None` where the kernel does not count. Then the lengths of waits are
    /// used.
    thread: Option<AwakeTime>,
    /// The kernel thread that polls the queue, if there is one.
    napi_thread: RefCell<Option<AwakeTime>>,
    last: Cell<Reading>,
    next_step: Cell<u64>,
    waits: Cell<Waits>,
    /// How long events have waited since the last step.
    delays: RefCell<Delays>,
    /// How long a packet took through the queue's kernel thread in the last step with interrupts.
    receiving: Cell<Duration>,
    long_turns: Cell<LongTurns>,
    backlog: Cell<Backlog>,
    /// What a wait takes for each event that it receives, and each reply that it sends, in seconds:
    /// smoothed over the waits that did not sleep.
    wait_per_event: Cell<f64>,
}

/// When the packets came that a look at the queue finds. One look takes so many of them at most, so
/// some wait for several looks.
#[derive(Debug, Clone, Copy, Default)]
struct Backlog {
    /// What came before this moment was taken, on the monotonic clock in nanoseconds.
    taken_until: u64,
    /// Packets that wait at most: the slots of the ring.
    most: u32,
    /// When the last look was.
    looked: u64,
    /// Events since the last step, and the sum of the times from a look to the next one that has
    /// found some, in nanoseconds: without the pauses between bursts.
    events: u32,
    coming: u64,
    /// Events per second of that time, in the last step.
    rate: f64,
}

impl Backlog {
    /// A look at `time` has found nothing.
    fn found_nothing(&mut self, time: u64) {
        self.taken_until = self.taken_until.max(time);
        self.looked = self.looked.max(time);
    }

    /// Begins a step. `average`: events in a second of the step before. A step without events
    /// leaves the rate as it was.
    fn begin_step(&mut self, average: f64) {
        if self.events > 0 && self.coming > 0 {
            self.rate = f64::from(self.events) * 1e9 / self.coming as f64;
        } else if average > 0.0 {
            self.rate = average;
        }
        (self.events, self.coming) = (0, 0);
    }

    /// Takes in a look at the queue at `time`, which has taken `events`, or all there were if that
    /// is fewer than `budget`. Returns between which times they have waited.
    fn look(&mut self, time: u64, events: u32, budget: u32) -> [Duration; 2] {
        let gap = time.saturating_sub(std::mem::replace(&mut self.looked, time));
        if events > 0 && gap <= PAUSE {
            self.events = self.events.saturating_add(events);
            self.coming += gap;
        }
        let since = time.saturating_sub(self.taken_until);
        if since > PAUSE {
            self.taken_until = time;
            return [Duration::ZERO, Duration::from_nanos(since)];
        }
        let rate = self.rate.max(1.0);
        let nanos = |events: u32| (f64::from(events) / rate * 1e9) as u64;
        let arrived_in = if events < budget { since } else { since.min(nanos(events)) };
        // No more wait than fit into the ring.
        self.taken_until = (self.taken_until + arrived_in).max(time.saturating_sub(nanos(self.most)));
        let longest = since.min(nanos(self.most).max(arrived_in));
        [longest - arrived_in, longest].map(Duration::from_nanos)
    }
}

/// What the waits were like since the last step.
#[derive(Debug, Clone, Copy, Default)]
struct Waits {
    /// Events of the queue.
    events: u64,
    /// Waits that have put the worker to sleep, and the sum of their lengths.
    sleeps: f64,
    slept: Duration,
    /// As in [`Epoch`].
    overslept: (Duration, u64),
    last: LastWait,
}

/// What the last wait has brought.
#[derive(Debug, Clone, Copy, Default)]
struct LastWait {
    /// When it ended, on the monotonic clock.
    ended: u64,
    /// Events of the queue.
    events: u32,
    /// How sure it is that the wait has slept, from 0 to 1.
    slept: f64,
    /// Between which times the events had waited when it ended, if it has slept, and if it has not.
    delays: [[Duration; 2]; 2],
}

/// Which share of the waits after long turns has slept.
#[derive(Debug, Clone, Copy)]
struct LongTurns {
    turns: u32,
    /// How often the thread had gone to sleep before this wait, if that is asked.
    sleeps_before: Option<u64>,
    /// Smoothed: between 0 and 1.
    slept: f64,
}

impl Default for LongTurns {
    fn default() -> Self {
        Self { turns: 0, sleeps_before: None, slept: 0.5 }
    }
}

impl LongTurns {
    fn begin_wait(self) -> Self {
        let turns = self.turns.wrapping_add(1);
        Self { turns, sleeps_before: turns.is_multiple_of(ASKED).then(voluntary_switches), ..self }
    }

    fn end_wait(self) -> Self {
        let Some(before) = self.sleeps_before else { return self };
        let slept = if voluntary_switches() != before { 1.0 } else { 0.0 };
        Self { sleeps_before: None, slept: self.slept + (slept - self.slept) / 8.0, ..self }
    }
}

impl QueueControl {
    /// `ring_slots`: those of the queue's receive ring. `thread`: the worker's thread id.
    /// `napi_thread`: the id of the kernel thread that polls the queue. `now`: on the clock of the
    /// event loop.
    pub(crate) fn new(
        queue: u32,
        requests: Option<Arc<QueueRequests>>,
        controller: PollingController,
        ring_slots: u32,
        thread: i32,
        napi_thread: Option<i32>,
        now: u64,
    ) -> Self {
        let control = Self {
            change: RefCell::new(QueueChange::new(queue, requests, *controller.settings())),
            controller: RefCell::new(controller),
            forced: None,
            thread: AwakeTime::open(thread).ok(),
            napi_thread: RefCell::new(
                napi_thread.and_then(|thread| AwakeTime::open_napi_thread(thread).ok()),
            ),
            last: Cell::new(Reading { time: now, received_bytes: 0, sent_bytes: 0, threads: None }),
            next_step: Cell::new(now + STEP.as_nanos() as u64),
            waits: Cell::new(Waits {
                last: LastWait { ended: now, ..LastWait::default() },
                ..Waits::default()
            }),
            delays: RefCell::default(),
            receiving: Cell::default(),
            long_turns: Cell::new(LongTurns::default()),
            backlog: Cell::new(Backlog {
                taken_until: now,
                looked: now,
                most: ring_slots,
                ..Backlog::default()
            }),
            wait_per_event: Cell::new(EVENT_TIME.as_secs_f64()),
        };
        let threads = control.thread_times(0);
        control.last.set(Reading { threads, ..control.last.get() });
        control
    }

    /// The same, whose settings a test may choose in the place of the controller.
    pub(crate) fn forced_by(self, forced: Option<ForcedSettings>) -> Self {
        Self { forced, ..self }
    }

    /// The budgets of the controller.
    pub(crate) fn budgets(&self) -> Budgets {
        self.controller.borrow().budgets()
    }

    /// The settings with which the queue is driven.
    pub(crate) fn in_effect(&self) -> QueueSettings {
        self.change.borrow().in_effect()
    }

    /// The queue's values if this process can't set them: those that it had when the worker
    /// started.
    pub(crate) fn kept_values(&self) -> Option<QueueSettings> {
        let change = self.change.borrow();
        (!change.can_set_values()).then(|| change.in_effect())
    }

    /// Whether the next wait must not sleep, because the worker stops polling after one that
    /// returns no event.
    pub(crate) fn needs_pass(&self) -> bool {
        self.change.borrow().stops_polling()
    }

    /// When a wait that begins now has to end at the latest, on the monotonic clock.
    pub(crate) fn end_of_wait(&self, now: u64) -> Option<u64> {
        let next = self.change.borrow().next_step(Duration::from_nanos(now), STEP)?;
        u64::try_from(next.as_nanos()).ok()
    }

    /// Called before each wait.
    pub(crate) fn begin_wait(&self) {
        if self.waits.get().last.events >= LONG_TURN && self.in_effect().mode != QueueMode::Timed {
            self.long_turns.set(self.long_turns.get().begin_wait());
        }
    }

    /// Takes in a wait from `began` to `ended`, on the monotonic clock, and the turn before it.
    /// `parked`: whether it could sleep.
    ///
    /// An event waits from the middle, on average, of the time between two looks at the queue to
    /// the second of them; then, if the wait did not receive it meanwhile, until all that was found
    /// is received; for half of the turn that processes it, and until half of the replies are sent.
    pub(crate) fn waited(&self, began: u64, ended: u64, parked: bool, outcome: &WaitOutcome) {
        let mut waits = self.waits.take();
        let last = waits.last;
        let turn = Duration::from_nanos(began.saturating_sub(last.ended));
        let waited = Duration::from_nanos(ended.saturating_sub(began));
        let events = u32::try_from(outcome.queue_events).unwrap_or(u32::MAX);
        if turn.as_nanos() <= PAUSE.into() {
            let mut delays = self.delays.borrow_mut();
            let [asleep, awake] = last.delays.map(|between| between.map(|delay| delay + turn / 2));
            let slept = f64::from(last.events) * last.slept;
            delays.add(asleep, slept as f32);
            delays.add(awake, (f64::from(last.events) - slept) as f32);
        }
        waits.events += u64::from(events);
        let each = Duration::from_secs_f64(self.wait_per_event.get() * f64::from(events));
        let (replied, received) = (each / 2, each + each / 2);
        let in_effect = self.in_effect();
        if in_effect.mode == QueueMode::Timed {
            let (overslept, sleeps) = outcome.overslept;
            waits.sleeps += f64::from(sleeps);
            if overslept.as_nanos() <= PAUSE.into() {
                waits.overslept.0 += overslept;
                waits.overslept.1 += u64::from(sleeps);
            }
            if sleeps > 0 {
                waits.slept += waited;
            } else if !in_effect.never_sleeps() {
                self.take_wait(waited, last.events.saturating_add(events));
            }
            let looked = if in_effect.never_sleeps() {
                // The kernel polls all the time but for the turns.
                [Duration::ZERO, turn]
            } else {
                let mut backlog = self.backlog.get();
                backlog.found_nothing(outcome.found_nothing);
                let looked = backlog.look(outcome.looked, events, outcome.look_budget);
                self.backlog.set(backlog);
                looked
            };
            let delays = [looked.map(|delay| delay + received); 2];
            waits.last = LastWait { ended, events, slept: 0.0, delays };
        } else {
            let receiving = EVENT_TIME * u32::try_from(outcome.events).unwrap_or(u32::MAX);
            let costs = self.controller.borrow().costs();
            let may_sleep = parked && waited > costs.block + receiving;
            let busy_at_most = LONGEST_EVENT * last.events.saturating_add(events);
            let (slept, was_awake) = if may_sleep && last.events >= LONG_TURN && waited < busy_at_most {
                let before = self.long_turns.get();
                let after = before.end_wait();
                self.long_turns.set(after);
                // The share falls where the kernel was asked, and said that this wait did not
                // sleep.
                (after.slept, after.slept < before.slept)
            } else {
                (f64::from(u8::from(may_sleep)), !may_sleep)
            };
            if was_awake {
                self.take_wait(waited, last.events.saturating_add(events));
            }
            waits.sleeps += slept;
            waits.slept += waited.mul_f64(slept);
            // The first one has ended the sleep; the others came while the worker woke up. That a
            // kernel thread on the same core takes part in a wake-up is little beside it. Until the
            // kernel's timer polls, where that is what does.
            let woken = [costs.wake_latency / events.max(1), costs.wake_latency + in_effect.grace_time];
            // After a sleep the worker receives them; otherwise it did so within the wait, and the
            // kernel thread partly meanwhile.
            let receiving = self.receiving.get();
            let delays = [
                woken.map(|delay| delay + received + receiving),
                [Duration::ZERO, turn + waited].map(|delay| delay + replied + receiving / 2),
            ];
            waits.last = LastWait { ended, events, slept, delays };
        }
        self.waits.set(waits);
    }

    /// Updates what a wait takes for each event from one that did not sleep. `events`: those that
    /// it received, and the replies that it sent.
    fn take_wait(&self, waited: Duration, events: u32) {
        if events >= LONG_TURN && waited < LONGEST_EVENT * events {
            let before = self.wait_per_event.get();
            let now = waited.as_secs_f64() / f64::from(events);
            self.wait_per_event.set(before + WAIT_WEIGHT * (now - before));
        }
    }

    /// Asks the controller if it is time, and carries on with what it has chosen. Called after each
    /// wait.
    pub(crate) fn update(&self, now: u64, worker: &WorkerHandle, driver: &Driver) {
        let mut change = self.change.borrow_mut();
        if change.is_settled() && now < self.next_step.get() {
            return;
        }
        let step = change.step(Duration::from_nanos(now), driver.is_suspended());
        drop(change);
        match step {
            ChangeStep::Wait => {}
            ChangeStep::Choose { retries } => {
                self.next_step.set(now + STEP.as_nanos() as u64);
                let followed = driver.follow_napi(napi(worker));
                let epoch = self.measure(now, worker);
                let mut controller = self.controller.borrow_mut();
                if let Err(error) = &followed {
                    tracing::warn!(worker = worker.index, %error, "the queue's new NAPI can't be polled");
                }
                if followed.is_err() || driver.polls_have_failed() {
                    controller.stop_polling(Reason::Failed);
                }
                if retries {
                    controller.release();
                }
                let chosen = match &self.forced {
                    Some(forced) => forced.take(),
                    None => controller.step(&epoch),
                };
                let settings = *controller.settings();
                drop(controller);
                if let Some(settings) = chosen {
                    self.start(now, settings, worker, driver);
                } else if settings != self.in_effect() && settings.equals_but_reason(&self.in_effect()) {
                    self.change.borrow_mut().set_reason(settings.why);
                    worker.set_queue_settings(settings, self.controller.borrow().trial_time());
                }
            }
            ChangeStep::ValuesSet(settings) => self.set_waiting(now, settings, worker, driver),
            ChangeStep::ValuesSetLate(settings) => {
                self.controller.borrow_mut().resume(settings);
                self.set_waiting(now, settings, worker, driver);
            }
            ChangeStep::Refused(settings) => {
                // The supervisor has reported the reason.
                self.keep_values(settings, Reason::Fixed, worker, driver);
            }
            ChangeStep::Unanswered(settings) => {
                tracing::warn!(
                    worker = worker.index,
                    "the supervisor does not answer: the queue is not driven by {settings}"
                );
                self.keep_values(settings, Reason::Unsupervised, worker, driver);
            }
            ChangeStep::Unsupervised => {
                tracing::warn!(
                    worker = worker.index,
                    "the supervisor has ended: interrupts drive the queue from now on"
                );
                self.controller.borrow_mut().supervisor_ended(self.in_effect());
            }
            ChangeStep::SetWaits(settings) => self.finish(now, settings, worker, driver),
        }
    }

    /// The queue keeps the values in effect for now, because those of `settings` could not be set.
    fn keep_values(&self, settings: QueueSettings, why: Reason, worker: &WorkerHandle, driver: &Driver) {
        let mut in_effect = self.in_effect();
        in_effect.why = why;
        if settings.mode == QueueMode::Timed {
            let _ = driver.set_polling(napi(worker), &in_effect);
        }
        self.controller.borrow_mut().fix(in_effect);
    }

    fn measure(&self, now: u64, worker: &WorkerHandle) -> Epoch {
        let counters = &worker.counters;
        let reading = Reading {
            time: now,
            received_bytes: counters.received_bytes.get(),
            sent_bytes: counters.sent_bytes.get(),
            threads: self.thread_times(napi(worker)),
        };
        let last = self.last.replace(reading);
        let duration = Duration::from_nanos(now - last.time);
        let waits = self.waits.take();
        self.waits.set(Waits { last: waits.last, ..Waits::default() });
        let events = waits.events;
        let data = data_packets(events, reading.received_bytes - last.received_bytes);
        // In timed mode nothing interrupts.
        let is_timed = self.in_effect().mode == QueueMode::Timed;
        let (interrupts, interrupting) = if is_timed { (0, 0) } else { (waits.sleeps as u32, data) };
        let packets = data + acknowledgements(reading.sent_bytes - last.sent_bytes);
        let (cpu, waiting) = match (last.threads, reading.threads) {
            // Without acknowledgements: one interrupt takes many, and few are sent where segments
            // are merged (GRO).
            (Some(before), Some(after)) => after.since(&before, interrupts, interrupting),
            _ => (duration.saturating_sub(waits.slept) + INTERRUPT * interrupts, Duration::ZERO),
        };
        let sleeps = waits.sleeps as u64;
        if let Some((before, after)) = last.threads.zip(reading.threads).filter(|_| !is_timed) {
            self.receiving.set(after.receiving_since(&before, events));
        }
        let mut backlog = self.backlog.get();
        backlog.begin_step(events as f64 / duration.as_secs_f64().max(1e-9));
        self.backlog.set(backlog);
        let delays = self.delays.take();
        Epoch { duration, events, packets, cpu, waiting, sleeps, delays, overslept: waits.overslept }
    }

    /// `napi`: the one that the worker polls, or 0.
    fn thread_times(&self, napi: u32) -> Option<QueueTimes> {
        // The first field of schedstat lags behind by up to a tick while the thread runs, which is
        // a good part of a step, and a worker that polls is hardly ever switched out. Its clock is
        // exact at any moment.
        let worker = ThreadTimes { run: this_thread_cpu_time(), ..self.thread.as_ref()?.read().ok()? };
        let mut napi_thread = self.napi_thread.borrow_mut();
        let mut receiver = napi_thread.as_ref().and_then(|thread| thread.read().ok());
        if receiver.is_none() && napi_thread.is_some() {
            // It has ended: a link that was opened again has another one, or none.
            *napi_thread = thread_of_napi(napi);
            receiver = napi_thread.as_ref().and_then(|thread| thread.read().ok());
        }
        Some(QueueTimes { worker, receiver })
    }

    /// First the queue's values, then the wait.
    fn start(&self, now: u64, settings: QueueSettings, worker: &WorkerHandle, driver: &Driver) {
        if !self.change.borrow().needs_values(&settings) {
            return self.set_waiting(now, settings, worker, driver);
        }
        // Before the values: with them, nobody else polls until the watchdog does.
        if settings.mode == QueueMode::Timed
            && let Err(error) = driver.set_polling(napi(worker), &settings)
        {
            tracing::warn!(worker = worker.index, %error, "the queue can't be polled; interrupts drive it from now on");
            return self.controller.borrow_mut().stop_polling(Reason::Failed);
        }
        self.change.borrow_mut().request(Duration::from_nanos(now), settings);
    }

    fn set_waiting(&self, now: u64, settings: QueueSettings, worker: &WorkerHandle, driver: &Driver) {
        // A saturated worker may have no wait without events for long. Then the kernel resumes the
        // queue after the suspend timeout, which is short where packets come often.
        let is_short = self.in_effect().suspend_timeout <= LONGEST_INTERRUPTION;
        let end = is_short.then(|| Duration::from_nanos(now) + STEP);
        let step = self.change.borrow_mut().values_set(settings, end);
        if let ChangeStep::SetWaits(settings) = step {
            self.finish(now, settings, worker, driver);
        }
    }

    fn finish(&self, now: u64, settings: QueueSettings, worker: &WorkerHandle, driver: &Driver) {
        if let Err(error) = driver.set_polling(napi(worker), &settings) {
            tracing::warn!(worker = worker.index, %error, "the wait can't be set to {settings}");
            if settings.mode == QueueMode::Timed {
                // The queue has its values, so others have to be asked for.
                self.change.borrow_mut().finish(settings);
                return self.controller.borrow_mut().stop_polling(Reason::Failed);
            }
            self.controller.borrow_mut().fix(self.in_effect());
            self.change.borrow_mut().abandon(Duration::from_nanos(now));
            return;
        }
        self.change.borrow_mut().finish(settings);
        self.backlog.set(Backlog { taken_until: now, looked: now, ..self.backlog.get() });
        // What was measured since the controller has chosen them belongs to neither mode.
        let _ = self.measure(now, worker);
        self.next_step.set(now + STEP.as_nanos() as u64);
        worker.set_queue_settings(settings, self.controller.borrow().trial_time());
        tracing::debug!(worker = worker.index, "the queue is driven by {settings}");
    }
}

/// The kernel thread that polls a NAPI.
fn thread_of_napi(napi: u32) -> Option<AwakeTime> {
    let thread = Netdev::open().ok()?.napi(napi).ok()?.pid?;
    AwakeTime::open_napi_thread(i32::try_from(thread).ok()?).ok()
}

/// The NAPI that the worker polls at present.
fn napi(worker: &WorkerHandle) -> u32 {
    worker.napi.load(Ordering::Relaxed)
}

/// How many packets have brought `events` events and this many bytes, at least.
fn data_packets(events: u64, received_bytes: u64) -> u64 {
    events.max(received_bytes / SEGMENT)
}

/// About how many packets acknowledge this many sent bytes: one for each two segments (RFC 9293,
/// section 3.8.6.3), fewer where the peer merges segments. They are in the receive ring too, and
/// are no events.
fn acknowledgements(sent_bytes: u64) -> u64 {
    sent_bytes / (2 * SEGMENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_of_large_replies_are_packets_and_those_of_small_ones_come_with_requests() {
        // 1000 requests of 100 bytes each.
        assert_eq!(data_packets(1_000, 100_000), 1_000);
        assert_eq!(acknowledgements(1_000 * 1_000_000), 345_303);
        assert_eq!(acknowledgements(1_000 * 100), 34);
    }

    #[test]
    fn packets_have_waited_since_the_queue_was_empty_however_many_looks_take_them() {
        let micros = |time: u64| time * 1_000;
        let mut backlog = Backlog { most: 256, ..Backlog::default() };
        backlog.begin_step(100_000.0);
        let waited = |look: [Duration; 2]| look.map(|time| time.as_micros());
        // 10 packets in 100 µs, all of which one look takes.
        assert_eq!(waited(backlog.look(micros(100), 10, 16)), [0, 100]);
        // 32 packets in 320 µs, which two looks take, 30 µs apart, with 3 more that came meanwhile.
        assert_eq!(waited(backlog.look(micros(420), 16, 16)), [160, 320]);
        assert_eq!(waited(backlog.look(micros(450), 16, 16)), [30, 190]);
        assert_eq!(waited(backlog.look(micros(460), 3, 16)), [0, 40]);
        // 2 packets in the 20 µs since a look in the same wait found nothing.
        backlog.found_nothing(micros(560));
        assert_eq!(waited(backlog.look(micros(580), 2, 16)), [0, 20]);
        // A ring that is full holds no more than its slots.
        let full = Backlog { most: 64, rate: 100_000.0, ..Backlog::default() }.look(micros(900), 16, 16);
        assert_eq!(waited(full), [480, 640]);
        // 47 packets in the 480 µs before the looks that found them. The 100 µs before a look that
        // found nothing don't count.
        backlog.begin_step(1.0);
        assert!((96_000.0..99_000.0).contains(&backlog.rate), "{backlog:?}");
        backlog.begin_step(0.0);
        assert!(backlog.rate > 90_000.0, "no step was between");
        // A worker that was away for long.
        assert_eq!(waited(backlog.look(micros(60_000), 16, 16))[0], 0);
    }
}
