//! The content of a journal: the policy on an interface, and the old value of each knob.

use std::time::SystemTime;

use super::entries::{Entry, EpollEntry, ListenerEntry, OwnedValues};
use crate::host::Interface;
use crate::host::device::Device;
use crate::host::process::{ProcessIdentity, boot_id, network_namespace};
use crate::json::{json_object, json_text};
use crate::knob::{Knob, Value};
use crate::names;
use crate::plan::Plan;
use crate::policy::Policy;

pub(super) const VERSION: u32 = 2;

/// How long an applied plan stays in effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// As long as the process that applied it runs.
    Process,
    /// Until `policies restore` or a reboot.
    Host,
}

names!(Lifetime, "lifetime": Process = "process", Host = "host");
json_text!(Lifetime);

#[derive(Debug, Clone)]
pub(crate) struct Journal {
    version: u32,
    pub(crate) policy: Policy,
    pub(crate) interface: String,
    pub(crate) ifindex: u32,
    pub(crate) lifetime: Lifetime,
    /// Higher than that of each journal that was in the directory before; 0 until it is written.
    pub(super) sequence: u64,
    pub(crate) queues: Vec<u32>,
    pub(crate) writer: ProcessIdentity,
    /// When the policy was applied, in seconds since 1970.
    pub(super) since: u64,
    boot: String,
    pub(super) namespace: u64,
    /// In the order of the plan's steps.
    pub(crate) entries: Vec<Entry>,
    /// Epoll instances of other processes that poll the queues.
    pub(crate) epolls: Vec<EpollEntry>,
    /// Listeners of other processes that are steered by queue.
    pub(crate) listeners: Vec<ListenerEntry>,
}

json_object!(
    Journal: version, policy, interface, ifindex, lifetime, sequence, queues, writer, since, boot, namespace, entries;
    optional epolls, listeners
);

/// The value that a knob had before ended processes have left it at its present value, if they
/// have.
pub(crate) type Originals<'a> = &'a dyn Fn(&Knob, &Value) -> Option<Value>;

/// The entry of a knob that is to be set to `target`, or that a change of the queues may lose
/// (`None`). `None` if it needs none. `original`: see [`Originals`].
fn entry(
    knob: Knob,
    target: Option<&Value>,
    owned: OwnedValues,
    present: Option<Value>,
    original: Option<Value>,
) -> Option<Entry> {
    if let Some(original) = original {
        let new = target.unwrap_or(&original).clone();
        return Some(Entry { knob, old: Some(original), new, own: owned, left: present });
    }
    let new = match (target, &present) {
        // A tuned value changes later, even if it starts with the old value.
        (Some(target), present)
            if present.as_ref() != Some(target) || matches!(owned, OwnedValues::Within { .. }) =>
        {
            target.clone()
        }
        (None, Some(present)) => present.clone(),
        _ => return None,
    };
    Some(Entry { knob, old: present, new, own: owned, left: None })
}

impl Journal {
    pub(crate) fn new(
        policy: Policy,
        interface: &str,
        ifindex: u32,
        lifetime: Lifetime,
        queues: Vec<u32>,
    ) -> Self {
        Self {
            version: VERSION,
            policy,
            interface: interface.to_owned(),
            ifindex,
            lifetime,
            sequence: 0,
            queues,
            writer: ProcessIdentity::current(),
            since: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs(),
            boot: boot_id(),
            namespace: network_namespace(),
            entries: Vec::new(),
            epolls: Vec::new(),
            listeners: Vec::new(),
        }
    }

    /// Whether it records nothing of other processes.
    pub(crate) fn is_own(&self) -> bool {
        self.epolls.is_empty() && self.listeners.is_empty()
    }

    /// Records the present value of each knob that the plan changes and that has no entry yet.
    pub(crate) fn record_plan(&mut self, plan: &Plan, device: &Device) {
        self.record_plan_over(plan, device, &|_, _| None);
    }

    /// As [`Journal::record_plan`]. Takes over the knobs that ended processes have left, with their
    /// original values.
    pub(crate) fn record_plan_over(&mut self, plan: &Plan, device: &Device, original: Originals<'_>) {
        for step in &plan.steps {
            let owned = match plan.tuning_bounds(step) {
                Some((least, most)) => OwnedValues::Within { least, most },
                None if step.knob.has_limit() => OwnedValues::UpToNew,
                // To what it is rounded is not known before.
                None if step.knob.is_rounded() => OwnedValues::Any,
                None => OwnedValues::New,
            };
            self.record(step.knob.clone(), Some(&step.target), owned, device, original);
        }
    }

    /// Records the per-queue knobs of all queues. A device that rebuilds its queues loses the
    /// settings of the queues that it removes; some devices lose those of all queues.
    pub(crate) fn record_all_queues(
        &mut self,
        interface: &Interface,
        device: &Device,
        original: Originals<'_>,
    ) {
        for queue in &interface.queues {
            let index = queue.index;
            let mut knobs = vec![Knob::RpsCpus { queue: index }, Knob::RpsFlowCount { queue: index }];
            if queue.napi.is_some() {
                knobs.extend([
                    Knob::NapiDeferHardIrqs { queue: index },
                    Knob::NapiGroFlushTimeout { queue: index },
                    Knob::NapiIrqSuspendTimeout { queue: index },
                    Knob::NapiThreaded { queue: index },
                ]);
            }
            knobs.extend(queue.irq.map(|irq| Knob::IrqAffinity { queue: index, irq }));
            for knob in knobs {
                self.record(knob, None, OwnedValues::Any, device, original);
            }
        }
        for queue in &interface.tx_queues {
            let index = queue.index;
            self.record(Knob::XpsCpus { queue: index }, None, OwnedValues::Any, device, original);
            if let Some(irq) = queue.irq {
                self.record(
                    Knob::TxIrqAffinity { queue: index, irq },
                    None,
                    OwnedValues::Any,
                    device,
                    original,
                );
            }
        }
    }

    fn record(
        &mut self,
        knob: Knob,
        target: Option<&Value>,
        owned: OwnedValues,
        device: &Device,
        original: Originals<'_>,
    ) {
        let rebuilt = self.entries.iter().any(|entry| entry.knob.rebuilds_queues());
        let owned = if rebuilt && knob.queue().is_some() { OwnedValues::Any } else { owned };
        if self.entries.iter().any(|entry| entry.knob == knob) {
            return;
        }
        let present = knob.read(device).ok();
        let original = present.as_ref().and_then(|present| original(&knob, present));
        self.entries.extend(entry(knob, target, owned, present, original));
    }

    /// Records that a knob has its final value: the target, or what the device made of it.
    pub(crate) fn finalize(&mut self, knob: &Knob, value: &Value) {
        for entry in self.entries.iter_mut().filter(|entry| entry.knob == *knob) {
            entry.own = OwnedValues::New;
            entry.new.clone_from(value);
        }
    }

    /// Records the new target of a knob that has not been set yet.
    pub(crate) fn retarget(&mut self, knob: &Knob, target: &Value) {
        for entry in self.entries.iter_mut().filter(|entry| entry.knob == *knob) {
            entry.new.clone_from(target);
        }
    }
}
