//! Plans a policy: the number of queues, coalescing, placement, then deferral and suspension.

use std::time::Duration;

use super::note::Note;
use super::ring::{bounded_suspend_timeout, frames_note, suspend_timeout_note, within_ring};
use super::settings::Settings;
use super::{Plan, Step};
use crate::controller::{QueueMode, QueueSettings, Reason};
use crate::grace_time::{GraceTime, nanos};
use crate::host::device::Device;
use crate::host::{HostFacts, Interface, RxQueue, TxQueue};
use crate::knob::permission::{NotPermitted, may_set_on};
use crate::knob::{Knob, Value};
use crate::netlink::ethtool::Coalescing;
use crate::policy::{Policy, Processing, WorkerWait};

impl Plan {
    /// Plans a policy for an interface. Reads the host, changes nothing.
    pub fn new(policy: Policy, interface: &Interface, settings: &Settings) -> Self {
        let device = Device::new(&interface.name, interface.index);
        let forbids = |knob: &Knob| may_set_on(knob, &device).err();
        Self::on(&forbids, &HostFacts::read(), policy, interface, settings)
    }

    /// Plans a policy for a recorded interface. The steps say nothing of what this process may set.
    #[cfg(feature = "tools")]
    pub fn for_recording(policy: Policy, recording: &crate::host::Recording, settings: &Settings) -> Self {
        let interface = recording.interface();
        let forbids = |knob: &Knob| knob.managed_irq(&interface);
        Self::on(&forbids, &recording.host, policy, &interface, settings)
    }

    fn on(
        forbids: Forbids<'_>,
        host: &HostFacts,
        policy: Policy,
        interface: &Interface,
        settings: &Settings,
    ) -> Self {
        let selected = |index: u32| settings.queues.as_ref().is_none_or(|queues| queues.contains(&index));
        let mut planner = Planner {
            forbids,
            host,
            interface,
            policy,
            settings,
            rx: interface.queues.iter().filter(|queue| selected(queue.index)).collect(),
            tx: interface.tx_queues.iter().filter(|queue| selected(queue.index)).collect(),
            steps: Vec::new(),
            notes: interface.notes.iter().cloned().map(Note::Interface).collect(),
            is_prevented: false,
        };
        planner.add_all();
        Self {
            policy,
            interface: interface.name.clone(),
            ifindex: interface.index,
            queues: planner.rx.iter().map(|queue| queue.index).collect(),
            settings: settings.clone(),
            steps: planner.steps,
            notes: planner.notes,
            is_prevented: planner.is_prevented,
        }
    }
}

/// Why a knob can't be set. What another process than that of a recording may do is not known.
type Forbids<'a> = &'a dyn Fn(&Knob) -> Option<NotPermitted>;

pub(super) struct Planner<'a> {
    forbids: Forbids<'a>,
    pub(super) interface: &'a Interface,
    pub(super) host: &'a HostFacts,
    pub(super) policy: Policy,
    pub(super) settings: &'a Settings,
    pub(super) rx: Vec<&'a RxQueue>,
    pub(super) tx: Vec<&'a TxQueue>,
    steps: Vec<Step>,
    pub(super) notes: Vec<Note>,
    is_prevented: bool,
}

impl Planner<'_> {
    /// Notes what keeps the policy from running in full.
    pub(super) fn prevent(&mut self, note: Note) {
        self.notes.push(note);
        self.is_prevented = true;
    }

    /// Adds a step that sets `knob` to `target`.
    pub(super) fn set(&mut self, knob: Knob, target: Value, purpose: &'static str) {
        let current = knob.recorded(self.interface);
        let forbidden = (self.forbids)(&knob).map(|reason| reason.to_string());
        self.steps.push(Step { knob, current, target, purpose, forbidden });
    }

    /// The order matters: first the number of queues and the size of their rings, because changing
    /// them rebuilds the device; then coalescing, placement (sysfs, interrupts) and NAPI threads;
    /// last the per-NAPI values, because writing a sysfs default overwrites every NAPI's value.
    fn add_all(&mut self) {
        let interface = self.interface;
        let policy = self.policy;
        let name = || interface.name.clone();
        if self.rx.iter().all(|queue| queue.napi.is_none()) && policy != Policy::Vanilla {
            self.prevent(Note::NothingToPoll { interface: name(), policy });
        }
        if interface.hides_napis() && policy.suspends_interrupts() {
            self.prevent(Note::LroHidesNapis { interface: name() });
        }
        if interface.ignores_deferral() && policy.busy_polls() {
            let driver = interface.driver.clone().unwrap_or_default();
            let note = Note::DriverIgnoresDeferral { driver };
            match policy.suspends_interrupts() {
                true => self.prevent(note),
                // The device's coalescing is left.
                false => self.notes.push(note),
            }
        }
        self.notes.extend(interface.note_on_lower().map(Note::Interface));
        self.note_more_queues_than_workers();
        for &queue in self.settings.queues.iter().flatten() {
            if !interface.queues.iter().any(|found| found.index == queue) {
                self.notes.push(Note::NoSuchQueue { interface: name(), queue });
            }
        }
        self.set_queue_count();
        self.set_rx_ring();
        match policy.worker_wait() {
            WorkerWait::Blocks => {}
            WorkerWait::Polls => self.set_coalescing(),
            // Coalescing is of the whole device, and stays. Where interrupts are on, at low load, the
            // device's own delay is part of each request's latency.
            WorkerWait::Suspends => {
                let moderation = interface.moderation();
                self.notes.extend(moderation.map(|(what, remedy)| Note::Moderation {
                    interface: name(),
                    what,
                    remedy,
                }));
            }
        }
        self.place_processing();
        if policy.busy_polls() {
            self.set_deferral();
        }
    }

    fn note_more_queues_than_workers(&mut self) {
        let interface = self.interface;
        let all = self.settings.channels.map_or(interface.queues.len(), |count| count as usize);
        let can_have =
            |count: usize| interface.channels.is_some_and(|channels| channels.max as usize >= count);
        if let (true, Some(own)) = (self.policy.busy_polls(), &self.settings.queues) {
            if own.len() < all {
                let (queues, polled) = (all, own.len());
                let can_have_fewer = can_have(polled);
                self.notes.push(Note::QueuesNotPolled { queues, polled, can_have_fewer });
            }
            return;
        }
        let workers = self.settings.worker_cores.len();
        let queues = self.settings.channels.map_or(self.rx.len(), |count| count as usize);
        let on_workers = self.policy.processing() == Processing::WorkerCores;
        if on_workers && workers > 0 && queues > workers {
            let can_have_fewer = self.settings.queues.is_none() && can_have(workers);
            self.notes.push(Note::MoreQueuesThanWorkers { queues, workers, can_have_fewer });
        }
    }

    fn set_queue_count(&mut self) {
        let interface = self.interface;
        let Some(wanted) = self.settings.channels else { return };
        let name = interface.name.clone();
        let Some(channels) = interface.channels else {
            let count = interface.queues.len();
            return self.notes.push(Note::FixedQueueCount { interface: name, count });
        };
        let (most, present) = (channels.max, channels.count);
        if wanted == 0 || wanted > most {
            return self.notes.push(Note::QueueCountRefused { interface: name, wanted, most, present });
        }
        let knob = Knob::Channels { combined: channels.combined };
        self.set(knob, Value::Number(wanted.into()), "one queue for each worker");
        if present != wanted {
            self.notes.push(Note::PlannedAgain { queues: wanted });
        }
    }

    fn set_rx_ring(&mut self) {
        let interface = self.interface;
        let Some(wanted) = self.settings.rx_ring else { return };
        let name = interface.name.clone();
        let Some(ring) = interface.rx_ring else {
            return self.notes.push(Note::FixedRings { interface: name });
        };
        let (most, present) = (ring.max, ring.size);
        if wanted == 0 || wanted > most {
            return self.notes.push(Note::RingSizeRefused { interface: name, wanted, most, present });
        }
        let purpose = "packets that the device can keep during a pause of the application";
        self.set(Knob::RxRing, Value::Number(wanted.into()), purpose);
        if present != wanted {
            self.notes.push(Note::RingsRebuilt);
        }
    }

    /// Delays interrupts as far as the device allows.
    fn set_coalescing(&mut self) {
        let interface = self.interface;
        if interface.coalescing.is_empty() {
            return self.notes.push(Note::NoCoalescing { interface: interface.name.clone() });
        }
        let others = interface.queues.len() - self.rx.len();
        if others > 0 {
            return self.notes.push(Note::CoalescingOfOtherQueues { others });
        }
        for parameter in Coalescing::ALL {
            let supported = interface.coalescing.iter().any(|(which, _)| *which == parameter);
            if supported {
                let wanted = self.settings.suppression.target(parameter);
                let target = within_ring(parameter, wanted, self.planned_ring());
                self.notes.extend(frames_note(target, wanted));
                self.set(
                    Knob::Coalesce { parameter },
                    Value::Number(target.into()),
                    if parameter.is_switch() {
                        "the device ignores the values below while it adapts its own"
                    } else {
                        "interrupts are delayed as far as the device allows"
                    },
                );
            } else if !parameter.is_switch() {
                self.notes.push(Note::NoParameter { interface: interface.name.clone(), parameter });
            }
        }
    }

    /// The size of the receive rings once the plan is applied.
    fn planned_ring(&self) -> Option<u32> {
        let size = self.steps.iter().find_map(|step| match (&step.knob, &step.target) {
            (Knob::RxRing, Value::Number(size)) => u32::try_from(*size).ok(),
            _ => None,
        });
        self.interface.rx_ring.map(|ring| size.unwrap_or(ring.size))
    }

    /// Whether the controller of the application's workers sets the queues' values.
    fn adapts(&self) -> bool {
        self.policy.adapts(self.settings.gro_flush_timeout)
    }

    /// The values of deferral, grace time and suspension.
    fn queue_settings(&self) -> QueueSettings {
        let settings = self.settings;
        match settings.gro_flush_timeout {
            GraceTime::Adaptive if self.adapts() => QueueSettings::interrupts(Reason::Start),
            // Suppression has no controller.
            GraceTime::Adaptive => QueueSettings {
                defer_hard_irqs: settings.defer_hard_irqs,
                ..QueueSettings::grace(Settings::SUPPRESSION_GRACE_TIME, Reason::Fixed)
            },
            GraceTime::Fixed(time) => {
                QueueSettings::preset(settings.defer_hard_irqs, time, settings.irq_suspend_timeout)
            }
        }
    }

    /// Adds a step for a value of deferral. A process that adapts it but may not set it keeps the
    /// present one: `policies apply` may have prepared the queue.
    fn set_value(&mut self, knob: Knob, wanted: u64, purpose: &'static str) {
        let keeps = self.adapts() && (self.forbids)(&knob).is_some();
        let present = knob.recorded(self.interface).filter(|_| keeps);
        self.set(knob, present.unwrap_or(Value::Number(wanted)), purpose);
    }

    fn set_deferral(&mut self) {
        let (interface, adapts) = (self.interface, self.adapts());
        let wanted = self.queue_settings();
        let per_napi =
            |queue: &RxQueue| queue.napi.as_ref().is_some_and(|napi| napi.defer_hard_irqs.is_some());
        let polling = self.policy.suspends_interrupts();
        if !self.rx.iter().any(|queue| per_napi(queue)) {
            // Without the netdev family no NAPI is known.
            let device_wide = self.rx.iter().any(|queue| queue.napi.is_some()) || !self.host.has_netdev;
            if device_wide && interface.defer_hard_irqs.is_some() {
                // Device-wide values affect other processes, so nobody adapts them.
                let wanted = if adapts { QueueSettings::fixed(self.settings.poll_interval) } else { wanted };
                let purposes = Purposes::of(wanted.mode);
                self.set_value(Knob::DeferHardIrqs, wanted.defer_hard_irqs, purposes.defer);
                self.set_value(Knob::GroFlushTimeout, nanos(wanted.grace_time), purposes.grace);
                self.notes.push(Note::DeviceWideDeferral { suspends: polling });
                self.is_prevented |= polling;
            }
            return;
        }
        let purposes = if adapts { Purposes::ADAPTED } else { Purposes::of(wanted.mode) };
        let (suspend, purpose) = if polling {
            let ring = self.planned_ring();
            let suspend = if adapts {
                wanted.suspend_timeout
            } else {
                self.notes.extend(suspend_timeout_note(self.settings, ring));
                bounded_suspend_timeout(self.settings, ring)
            };
            (suspend, "longest time that interrupts stay suspended without a poll (ns)")
        } else {
            (Duration::ZERO, "suppression defers interrupts and does not suspend them (ns)")
        };
        for queue in self.rx.clone().into_iter().filter(|queue| per_napi(queue)) {
            let can_suspend = queue.napi.as_ref().is_some_and(|napi| napi.irq_suspend_timeout.is_some());
            let queue = queue.index;
            self.set_value(Knob::NapiDeferHardIrqs { queue }, wanted.defer_hard_irqs, purposes.defer);
            self.set_value(Knob::NapiGroFlushTimeout { queue }, nanos(wanted.grace_time), purposes.grace);
            if can_suspend {
                self.set_value(Knob::NapiIrqSuspendTimeout { queue }, nanos(suspend), purpose);
            } else if polling {
                self.prevent(Note::NoSuspendTimeout { queue });
            }
        }
    }
}

/// What the values of deferral achieve in a mode.
struct Purposes {
    defer: &'static str,
    grace: &'static str,
}

impl Purposes {
    const ADAPTED: Self = {
        let purpose = "interrupts at first; adapted to the load while the application runs";
        Self { defer: purpose, grace: purpose }
    };

    /// As `napi_complete_done` treats the values.
    fn of(mode: QueueMode) -> Self {
        match mode {
            QueueMode::Interrupts => Self {
                defer: "every poll unmasks the interrupt",
                grace: "without deferral the timer only flushes packets that GRO holds (ns)",
            },
            // No plan has timed mode.
            QueueMode::Grace | QueueMode::Deferral | QueueMode::Timed => Self {
                defer: "after an empty poll the timer polls; the interrupt stays masked",
                grace: "grace time: how long the timer leaves the queue to the application (ns)",
            },
        }
    }
}
