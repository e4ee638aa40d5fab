//! Plans a policy: the number of queues, coalescing, placement, then deferral and suspension.

use std::time::Duration;

use super::grace_time::nanos;
use super::settings::Settings;
use super::steps::{Plan, Step};
use crate::host::device::Device;
use crate::host::{Interface, RxQueue, TxQueue};
use crate::knob::{Knob, Value, may_set_on};
use crate::netlink::ethtool::Coalescing;
use crate::netlink::netdev::Netdev;
use crate::policy::Policy;

impl Plan {
    /// Plans a policy for an interface. Reads the host, changes nothing.
    pub fn new(policy: Policy, interface: &Interface, settings: &Settings) -> Self {
        let selected = |index: u32| settings.queues.as_ref().is_none_or(|queues| queues.contains(&index));
        let mut planner = Planner {
            device: Device::new(&interface.name, interface.index),
            policy,
            settings,
            rx: interface.queues.iter().filter(|queue| selected(queue.index)).collect(),
            tx: interface.tx_queues.iter().filter(|queue| selected(queue.index)).collect(),
            steps: Vec::new(),
            notes: interface.notes.clone(),
        };
        planner.add_all(interface);
        Self {
            policy,
            interface: interface.name.clone(),
            ifindex: interface.index,
            queues: planner.rx.iter().map(|queue| queue.index).collect(),
            settings: settings.clone(),
            steps: planner.steps,
            notes: planner.notes,
        }
    }
}

/// Collects the steps of a plan.
pub(super) struct Planner<'a> {
    device: Device,
    pub(super) policy: Policy,
    pub(super) settings: &'a Settings,
    /// The receive queues that the plan is for.
    pub(super) rx: Vec<&'a RxQueue>,
    /// The transmit queues that the plan is for.
    pub(super) tx: Vec<&'a TxQueue>,
    steps: Vec<Step>,
    pub(super) notes: Vec<String>,
}

impl Planner<'_> {
    /// Adds a step that sets `knob` to `target`.
    pub(super) fn set(&mut self, knob: Knob, target: Value, purpose: &'static str) {
        let current = knob.read(&self.device).ok();
        let forbidden = may_set_on(&knob, &self.device).err().map(|reason| reason.to_string());
        self.steps.push(Step { knob, current, target, purpose, forbidden });
    }

    /// The order matters: first the number of queues, because changing it rebuilds the device; then
    /// coalescing, placement (sysfs, interrupts) and NAPI threads; last the per-NAPI values, because
    /// writing a sysfs default overwrites every NAPI's value.
    fn add_all(&mut self, interface: &Interface) {
        let policy = self.policy;
        if self.rx.iter().all(|queue| queue.napi.is_none()) && policy != Policy::Vanilla {
            self.notes.push(format!(
                "{} has no NAPI that can be configured, so {policy} has nothing to poll or defer",
                interface.name
            ));
        }
        for queue in self.settings.queues.iter().flatten() {
            if !interface.queues.iter().any(|found| found.index == *queue) {
                self.notes.push(format!("{} has no queue {queue}", interface.name));
            }
        }
        self.set_queue_count(interface);
        if policy == Policy::Suppression {
            self.set_coalescing(interface);
        }
        self.place_processing(interface);
        if policy.busy_polls() {
            self.set_deferral();
        }
    }

    fn set_queue_count(&mut self, interface: &Interface) {
        let Some(wanted) = self.settings.channels else { return };
        match interface.channels {
            None => self.notes.push(format!(
                "{} does not support changing its number of queues (ethtool channels); it keeps {}",
                interface.name,
                interface.queues.len()
            )),
            Some(channels) if wanted == 0 || wanted > channels.max => self.notes.push(format!(
                "{} supports 1 to {} queues, not {wanted}; it keeps {}",
                interface.name, channels.max, channels.count
            )),
            Some(channels) => {
                self.set(
                    Knob::Channels { combined: channels.combined },
                    Value::Number(wanted.into()),
                    "one queue for each worker",
                );
                if channels.count != wanted {
                    self.notes.push(format!(
                        "the other steps are planned again once the device has {wanted} queues; the device \
                         drops packets while it rebuilds its queues"
                    ));
                }
            }
        }
    }

    fn set_coalescing(&mut self, interface: &Interface) {
        if interface.coalescing.is_empty() {
            self.notes.push(format!(
                "{} does not support interrupt coalescing (ethtool); only deferral delays interrupts",
                interface.name
            ));
        }
        for parameter in Coalescing::ALL {
            let supported = interface.coalescing.iter().any(|(which, _)| *which == parameter);
            if supported {
                self.set(
                    Knob::Coalesce { parameter },
                    Value::Number(self.settings.suppression.target(parameter).into()),
                    if parameter.is_switch() {
                        "the device ignores the values below while it adapts its own"
                    } else {
                        "interrupts are delayed as far as the device allows"
                    },
                );
            } else if !parameter.is_switch() && !interface.coalescing.is_empty() {
                self.notes.push(format!("{} has no {}", interface.name, parameter.name()));
            }
        }
    }

    /// A process that may not set the grace time can't tune it. It accepts a value that is within the
    /// bounds already (`policies apply` may have set it).
    fn preset_grace_time(&self, knob: &Knob, present: Option<u64>) -> Option<Value> {
        let (least, most) = self.settings.gro_flush_timeout.bounds()?;
        let present = present.filter(|nanos| (least..=most).contains(nanos))?;
        may_set_on(knob, &self.device).is_err().then_some(Value::Number(present))
    }

    fn set_deferral(&mut self) {
        let nanos = |duration: Duration| Value::Number(nanos(duration));
        let (defer, grace) =
            (Value::Number(self.settings.defer_hard_irqs), nanos(self.settings.gro_flush_timeout.initial()));
        const DEFER: &str = "after an empty poll the timer polls; the interrupt stays masked";
        const GRACE: &str = "grace time: how long the timer leaves the queue to the application (ns)";
        let per_napi =
            |queue: &RxQueue| queue.napi.as_ref().is_some_and(|napi| napi.defer_hard_irqs.is_some());
        if !self.rx.iter().any(|queue| per_napi(queue)) {
            let device_wide = self.rx.iter().any(|queue| queue.napi.is_some()) || Netdev::open().is_err();
            if device_wide && Knob::DeferHardIrqs.read(&self.device).is_ok() {
                self.set(Knob::DeferHardIrqs, defer, DEFER);
                let present = match Knob::GroFlushTimeout.read(&self.device) {
                    Ok(Value::Number(nanos)) => Some(nanos),
                    _ => None,
                };
                let grace = self.preset_grace_time(&Knob::GroFlushTimeout, present).unwrap_or(grace);
                self.set(Knob::GroFlushTimeout, grace, GRACE);
                self.notes.push(
                    "this kernel defers interrupts for the whole device; per-NAPI deferral needs Linux 6.13"
                        .to_owned(),
                );
            }
            return;
        }
        let polling = self.policy == Policy::KernelPolling;
        let suspend = if polling { self.settings.irq_suspend_timeout } else { Duration::ZERO };
        for queue in self.rx.clone().into_iter().filter(|queue| per_napi(queue)) {
            let index = queue.index;
            self.set(Knob::NapiDeferHardIrqs { queue: index }, defer.clone(), DEFER);
            let present = queue.napi.as_ref().and_then(|napi| napi.gro_flush_timeout);
            let knob = Knob::NapiGroFlushTimeout { queue: index };
            let grace = self.preset_grace_time(&knob, present).unwrap_or_else(|| grace.clone());
            self.set(knob, grace, GRACE);
            if queue.napi.as_ref().is_some_and(|napi| napi.irq_suspend_timeout.is_some()) {
                self.set(
                    Knob::NapiIrqSuspendTimeout { queue: index },
                    nanos(suspend),
                    if polling {
                        "longest time that interrupts stay suspended without a poll (ns)"
                    } else {
                        "suppression defers interrupts and does not suspend them (ns)"
                    },
                );
            } else if polling {
                self.notes.push(format!(
                    "rx-{index}: this kernel has no irq-suspend-timeout (it needs Linux 6.13)"
                ));
            }
        }
    }
}
