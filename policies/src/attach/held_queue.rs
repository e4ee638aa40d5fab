//! A queue under kernel polling from outside: its journal, its controller, and the epoll instances
//! that poll it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use super::event::{AttachEvent, InstanceName};
use super::instance::QueueName;
use super::load::{Load, LoadMeter};
use super::target::AttachConfig;
use super::watchdog::{Step, Watchdog};
use crate::apply::{Applied, EpollJournal, apply};
use crate::controller::{
    ControllerLimits, Epoch, PollInterval, PollingController, QueueMode, QueueSettings, Reason,
};
use crate::epoll_params::EpollParams;
use crate::error::Error;
use crate::grace_time::GraceTime;
use crate::host::process::ProcessIdentity;
use crate::host::{Interface, interface_by_index};
use crate::journal::{Lifetime, RestoreOutcome};
use crate::knob::Knob;
use crate::plan::{Plan, Settings};
use crate::policy::{Affinity, Policy};
use crate::status::QueueStatus;
use crate::supervise::{ChangeStep, QueueChange, QueueRequests, Supervisor, SupervisorHooks};

/// How long a queue stays at interrupts after an instance has left it.
const PAUSE_AFTER_LEAVING: Duration = Duration::from_secs(1);
/// For how long the supervisor's answer is awaited before other queues have their turn. It takes
/// some 100 µs. Until the waits follow the queue's values nobody may poll the queue.
const AWAITED: Duration = Duration::from_millis(10);
const BETWEEN_LOOKS: Duration = Duration::from_micros(100);

pub(super) type InstanceKey = (ProcessIdentity, i32);

#[derive(Debug)]
pub(super) struct Attached {
    pub(super) name: InstanceName,
    /// The threads that were seen waiting on it.
    pub(super) threads: BTreeSet<i32>,
    /// All threads of its process, while none was seen waiting on it.
    pub(super) candidates: Vec<i32>,
    leaving: Option<String>,
}

/// A queue that this process holds. Dropping it restores the queue and the instances.
pub(super) struct HeldQueue {
    pub(super) name: QueueName,
    pub(super) instances: BTreeMap<InstanceKey, Attached>,
    epolls: EpollJournal,
    limits: ControllerLimits,
    controller: PollingController,
    change: QueueChange,
    /// When the clock of `change` began.
    begun: Instant,
    /// Until when interrupts drive the queue, and why.
    plain_until: Option<(Instant, Reason)>,
    pub(super) meter: LoadMeter,
    watchdog: Watchdog,
    /// Restores everything when it is dropped.
    _supervisor: Supervisor,
}

impl HeldQueue {
    pub(super) fn take(
        name: &QueueName,
        config: &AttachConfig,
        events: Sender<AttachEvent>,
    ) -> Result<Self, Error> {
        let refused = |reason: String| Error::NoTarget { target: name.to_string(), reason };
        let interface = interface_by_index(name.ifindex)?;
        let settings = Settings {
            queues: Some(vec![name.queue]),
            gro_flush_timeout: GraceTime::Adaptive,
            poll_interval: config.poll_interval,
            ..Settings::default()
        };
        let plan = Plan::new(Policy::KernelPolling, &interface, &settings);
        let suspends = |knob: &Knob| matches!(knob, Knob::NapiIrqSuspendTimeout { .. });
        if !plan.steps.iter().any(|step| suspends(&step.knob)) {
            return Err(refused("its NAPI has no suspend timeout (Linux 6.13)".to_owned()));
        }
        let guard = apply(&plan, Lifetime::Process, &config.journals)?;
        if let Some(failed) = guard.applied().iter().find(|applied: &&Applied| !applied.outcome.is_ok()) {
            return Err(refused(failed.to_string()));
        }
        let epolls = guard.epoll_journal();
        let requests = Arc::new(QueueRequests::new().map_err(Error::kernel("open an eventfd"))?);
        let hooks = SupervisorHooks {
            requests: Arc::clone(&requests),
            delegate: None,
            on_tick: Box::new(|_| {}),
            // The attachment takes the queues of an interface that is back.
            takes_back: false,
        };
        let queue = name.clone();
        let on_change = move |change: &crate::supervise::Change| {
            // The attachment may have ended.
            let _ = events.send(AttachEvent::Queue { queue: queue.clone(), change: change.clone() });
        };
        let supervisor = Supervisor::start(guard, Affinity::None, on_change, hooks)
            .map_err(Error::kernel("start a supervisor"))?;
        let limits = ControllerLimits { polls_always: config.polls_always, ..limits_of(&interface) };
        let controller = PollingController::new(config.poll_interval.max(PollInterval::MIN), limits);
        Ok(Self {
            name: name.clone(),
            instances: BTreeMap::new(),
            epolls,
            change: QueueChange::new(name.queue, Some(requests), *controller.settings()),
            begun: Instant::now(),
            limits,
            controller,
            plain_until: None,
            meter: LoadMeter::new(),
            watchdog: Watchdog::new(),
            _supervisor: supervisor,
        })
    }

    /// Follows what the device has become: a reopened link may have another ring.
    pub(super) fn reread(&mut self, interface: &Interface) {
        let limits = ControllerLimits { polls_always: self.limits.polls_always, ..limits_of(interface) };
        if limits != self.limits {
            self.limits = limits;
            // What was measured under the old ones holds no longer.
            self.hold_back(Duration::ZERO, Reason::Start);
        }
    }

    pub(super) fn status(&self) -> QueueStatus {
        QueueStatus::new(&self.change.in_effect())
    }

    /// Attaches an instance that has the kernel's default parameters.
    pub(super) fn attach(&mut self, key: InstanceKey, name: InstanceName) -> std::io::Result<()> {
        let (process, descriptor) = &key;
        self.epolls.record(process, *descriptor, EpollParams::default(), QueueSettings::BUSY_POLL_BUDGET)?;
        if self.change.in_effect().polls() {
            self.epolls.set(process, *descriptor, params(&self.change.in_effect()))?;
        }
        let attached = Attached { name, threads: BTreeSet::new(), candidates: Vec::new(), leaving: None };
        self.instances.insert(key, attached);
        Ok(())
    }

    /// Detaches an instance. While the queue polls, it first has to go back to interrupts.
    pub(super) fn detach(&mut self, key: &InstanceKey, reason: &str) -> Vec<AttachEvent> {
        if let Some(instance) = self.instances.get_mut(key) {
            instance.leaving = Some(reason.to_owned());
        }
        if !self.change.in_effect().polls() {
            return self.release_leaving(|_| true);
        }
        if key.0.is_alive() {
            self.hold_back(PAUSE_AFTER_LEAVING, Reason::Start);
            return Vec::new();
        }
        // Others that are leaving wait until the queue is plain: its interrupts may be suspended,
        // and only their waits would resume them.
        self.release_leaving(|other| other == key)
    }

    /// Gives back the instances that are leaving, as far as they are `released`.
    fn release_leaving(&mut self, released: impl Fn(&InstanceKey) -> bool) -> Vec<AttachEvent> {
        let mut events = Vec::new();
        let epolls = &self.epolls;
        self.instances.retain(|key, instance| {
            let (process, descriptor) = key;
            if !released(key) {
                return true;
            }
            let Some(reason) = instance.leaving.take() else { return true };
            let outcome = epolls.give_back(process, *descriptor);
            let reason = match outcome {
                RestoreOutcome::Failed { .. } | RestoreOutcome::ChangedMeanwhile { .. } => {
                    format!("{reason} ({outcome})")
                }
                _ => reason,
            };
            events.push(AttachEvent::Detached { instance: instance.name.clone(), reason });
            false
        });
        events
    }

    pub(super) fn threads(&self) -> BTreeSet<(u32, i32)> {
        let mut threads = BTreeSet::new();
        for ((process, _), instance) in &self.instances {
            let seen = instance.threads.iter().copied();
            let all = instance.candidates.iter().copied().filter(|_| instance.threads.is_empty());
            threads.extend(seen.chain(all).map(|thread| (process.pid, thread)));
        }
        threads
    }

    /// Goes back to interrupts for a time.
    fn hold_back(&mut self, pause: Duration, why: Reason) {
        let end = Instant::now() + pause;
        let later = self.plain_until.filter(|(present, _)| *present > end);
        self.plain_until = later.or(Some((end, why)));
        // The controller's measurements led to what is given up here.
        self.controller.restart(self.limits);
    }

    /// Measures, asks the controller, and applies the settings that it has chosen. Called every 50
    /// ms.
    pub(super) fn step(&mut self, packets: u64, polled_share: f64, drops: u64) -> (Load, Vec<AttachEvent>) {
        let mut events = Vec::new();
        let threads = self.threads();
        let in_effect = self.change.in_effect();
        let load = self.meter.measure(packets, &threads);
        // In deferral mode no wait has to poll.
        let polled_share = if in_effect.mode == QueueMode::Deferral { 1.0 } else { polled_share };
        let polled = (load.epoch.packets as f64 * polled_share) as u64;
        let seen = Step { delay: load.delay, drops, packets: load.epoch.packets, polled };
        let harm = self.watchdog.take(!in_effect.is_by_interrupts(), seen);
        if let Some(back) = harm {
            self.hold_back(back.pause, Reason::Failed);
            events.push(AttachEvent::SteppedBack { queue: self.name.clone(), reason: back.reason });
        }
        let begun = Instant::now();
        events.extend(self.advance(&load.epoch));
        while self.change.is_requested() && begun.elapsed() < AWAITED {
            thread::sleep(BETWEEN_LOOKS);
            events.extend(self.advance(&load.epoch));
        }
        (load, events)
    }

    /// Advances a change of settings that is under way by one step, or asks the controller for one.
    fn advance(&mut self, epoch: &Epoch) -> Vec<AttachEvent> {
        let mut events = Vec::new();
        let in_effect = self.change.in_effect();
        // Others wait on the instances, so it is not known whether the interrupt is suspended.
        match self.change.step(self.begun.elapsed(), true) {
            ChangeStep::Wait => {}
            ChangeStep::Choose { retries } => {
                if retries {
                    self.controller.release();
                }
                let chosen = match self.plain_until {
                    // The controller that begins with interrupts waits until they are in
                    // effect.
                    Some((end, why)) if Instant::now() < end || !in_effect.is_by_interrupts() => {
                        (!in_effect.is_by_interrupts() && !self.change.is_paused()).then(|| QueueSettings {
                            suspend_timeout: in_effect.suspend_timeout,
                            ..QueueSettings::interrupts(why)
                        })
                    }
                    _ => {
                        self.plain_until = None;
                        self.controller.step(epoch)
                    }
                };
                let settings = *self.controller.settings();
                match chosen {
                    Some(settings) => events.extend(self.start(settings)),
                    // Another reason for the same values.
                    None if self.plain_until.is_none() && settings.equals_but_reason(&in_effect) => {
                        self.change.set_reason(settings.why)
                    }
                    None => {}
                }
            }
            ChangeStep::ValuesSet(settings) => events.extend(self.set_waiting(settings)),
            ChangeStep::ValuesSetLate(settings) => {
                self.controller.resume(settings);
                events.extend(self.set_waiting(settings));
            }
            // The supervisor has reported the reason. The queue keeps the values in effect for now.
            ChangeStep::Refused(_) => {
                self.controller.fix(QueueSettings { why: Reason::Fixed, ..self.change.in_effect() });
            }
            ChangeStep::Unanswered(_) => {
                let why = Reason::Unsupervised;
                // In deferral mode the timer polls, whatever waits do.
                let mode = if in_effect.polls() { QueueMode::Interrupts } else { in_effect.mode };
                let unpolled = QueueSettings { mode, spin: Duration::ZERO, why, ..in_effect };
                self.controller.fix(unpolled);
                if !in_effect.is_by_interrupts() {
                    events.extend(self.set_waiting(unpolled));
                }
            }
            ChangeStep::Unsupervised => self.controller.supervisor_ended(self.change.in_effect()),
            ChangeStep::SetWaits(settings) => events.extend(self.finish(settings)),
        }
        events
    }

    /// First the queue's values, then the waits.
    fn start(&mut self, settings: QueueSettings) -> Vec<AttachEvent> {
        if self.change.needs_values(&settings) {
            self.change.request(self.begun.elapsed(), settings);
            return Vec::new();
        }
        self.set_waiting(settings)
    }

    /// With the new values polls complete with the interrupt enabled. When the suspend timeout is
    /// over, so is the last suspension from before, which a wait that no longer polls would not
    /// end.
    fn set_waiting(&mut self, settings: QueueSettings) -> Vec<AttachEvent> {
        let end = self.begun.elapsed() + self.change.in_effect().suspend_timeout;
        match self.change.values_set(settings, Some(end)) {
            ChangeStep::SetWaits(settings) => self.finish(settings),
            _ => Vec::new(),
        }
    }

    fn finish(&mut self, settings: QueueSettings) -> Vec<AttachEvent> {
        self.change.finish(settings);
        for ((process, descriptor), instance) in &mut self.instances {
            let reason = match self.epolls.set(process, *descriptor, params(&settings)) {
                Ok(true) => continue,
                Ok(false) => "the process has set it to something else, or opened another one".to_owned(),
                // A process that has ended, or closed the instance, is noticed with the next scan.
                Err(_) if !process.is_alive() => continue,
                Err(error) => error.to_string(),
            };
            instance.leaving.get_or_insert(reason);
        }
        if settings.polls() { Vec::new() } else { self.release_leaving(|_| true) }
    }
}

/// What an interface's ring allows the controller.
pub(super) fn limits_of(interface: &Interface) -> ControllerLimits {
    let ring_slots = interface.rx_ring.map_or(ControllerLimits::default().ring_slots, |ring| ring.size);
    ControllerLimits { ring_slots, ..ControllerLimits::default() }
}

fn params(settings: &QueueSettings) -> EpollParams {
    if settings.polls() {
        let micros = u32::try_from(settings.spin.as_micros()).unwrap_or(u32::MAX);
        EpollParams::polling(micros, QueueSettings::BUSY_POLL_BUDGET)
    } else {
        EpollParams::default()
    }
}
