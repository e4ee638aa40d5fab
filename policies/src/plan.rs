//! A policy worked out for one interface: which knobs, from what, to what, and why.

use std::time::Duration;

use serde::Serialize;

use crate::knob::Device;
use crate::permission::may_set_on;
use crate::{Cpus, Interface, Knob, Policy, RxQueue, Value};

/// What a plan is made from besides the policy and the interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Settings {
    /// The core of each worker, where workers are pinned; queue `i` belongs to worker `i` modulo
    /// their number. Empty: workers float, and interrupts stay where they are.
    pub worker_cores: Vec<u32>,
    /// The cores that packing gathers the network's work on. Empty: the highest core of the process
    /// that no worker has, or the highest one at all.
    pub packing_cores: Cpus,
    /// `napi_defer_hard_irqs` under suppression and kernel polling.
    pub defer_hard_irqs: u64,
    /// `gro_flush_timeout` under suppression and kernel polling: the grace time between an empty
    /// poll and the timer's own poll.
    pub gro_flush_timeout: Duration,
    /// `irq_suspend_timeout` under kernel polling: the net below an application that stops polling.
    pub irq_suspend_timeout: Duration,
}

impl Settings {
    /// The default grace time. The authors of the kernel series recommend 10 to 50 µs on hardware;
    /// a longer one costs latency only when traffic is thin. `lab calibrate` finds a host's own.
    pub const GRO_FLUSH_TIMEOUT: Duration = Duration::from_micros(200);
    /// The authors' value: a safety net of about the grace time times the largest batch.
    pub const IRQ_SUSPEND_TIMEOUT: Duration = Duration::from_millis(20);
    /// The authors' value.
    pub const DEFER_HARD_IRQS: u64 = 100;
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            worker_cores: Vec::new(),
            packing_cores: Cpus::none(),
            defer_hard_irqs: Self::DEFER_HARD_IRQS,
            gro_flush_timeout: Self::GRO_FLUSH_TIMEOUT,
            irq_suspend_timeout: Self::IRQ_SUSPEND_TIMEOUT,
        }
    }
}

/// One knob to turn.
#[derive(Debug, Clone, Serialize)]
pub struct Step {
    /// Which.
    #[serde(flatten)]
    pub knob: Knob,
    /// Its value now; `None` where it can't be read before an earlier step is done.
    pub now: Option<Value>,
    /// Its value to be.
    pub target: Value,
    /// What it is for.
    pub why: &'static str,
    /// Why this process may not set it; `None` where it may.
    pub forbidden: Option<String>,
}

impl Step {
    /// Whether there is nothing to do.
    pub fn is_done(&self) -> bool {
        self.now.as_ref() == Some(&self.target)
    }
}

/// The steps by which an interface gets a policy, in the order in which they are to be taken.
#[derive(Debug, Clone, Serialize)]
pub struct Plan {
    /// The policy.
    pub policy: Policy,
    /// The interface's name.
    pub interface: String,
    /// The interface's index.
    pub ifindex: u32,
    /// What to set.
    pub steps: Vec<Step>,
    /// What the policy would want and this host hasn't got.
    pub notes: Vec<String>,
}

impl Plan {
    /// Works a policy out for an interface. Reads, changes nothing.
    pub fn new(policy: Policy, interface: &Interface, settings: &Settings) -> Self {
        let mut compiler = Compiler {
            device: Device::new(&interface.name, interface.index),
            steps: Vec::new(),
            notes: interface.notes.clone(),
        };
        if interface.queues.iter().all(|queue| queue.napi.is_none()) {
            compiler.notes.push(format!(
                "{} has no NAPI that can be set: there is nothing on it for {policy} to set",
                interface.name
            ));
        }
        // Order: where packets go (sysfs, interrupts), then who polls, then the NAPI's own values,
        // because writing a sysfs default overwrites every NAPI's value.
        let placed = compiler.place(policy, interface, settings);
        if let Some(note) = placed {
            compiler.notes.push(note);
        }
        if policy.busy_polls() {
            compiler.defer(policy, interface, settings);
        }
        Self {
            policy,
            interface: interface.name.clone(),
            ifindex: interface.index,
            steps: compiler.steps,
            notes: compiler.notes,
        }
    }

    /// The steps that this process may not take.
    pub fn forbidden(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(|step| step.forbidden.is_some() && !step.is_done())
    }
}

struct Compiler {
    device: Device,
    steps: Vec<Step>,
    notes: Vec<String>,
}

impl Compiler {
    fn set(&mut self, knob: Knob, target: Value, why: &'static str) {
        let now = knob.read(&self.device).ok();
        let forbidden = may_set_on(&knob, &self.device).err();
        self.steps.push(Step { knob, now, target, why, forbidden });
    }

    /// Puts each queue's receive work on a core: the interrupt where there is one, packet steering
    /// where there is none (a veth's packets arrive on the sender's CPU).
    fn place(&mut self, policy: Policy, interface: &Interface, settings: &Settings) -> Option<String> {
        let packing = (policy == Policy::Packing).then(|| packing_cores(settings));
        if packing.is_none() && settings.worker_cores.is_empty() {
            return Some("workers are not pinned: each queue's work stays where the host has it".into());
        }
        for (position, queue) in interface.queues.iter().enumerate() {
            match &packing {
                Some(cores) => self.pack(queue, &pick(cores, position)),
                None if policy.busy_polls() && queue.irq.is_none() => self.stop_steering(queue),
                None => {
                    self.follow_worker(queue, settings.worker_cores[position % settings.worker_cores.len()])
                }
            }
        }
        None
    }

    fn follow_worker(&mut self, queue: &RxQueue, core: u32) {
        let (index, core) = (queue.index, Value::Cpus(Cpus::one(core)));
        match queue.irq {
            Some(irq) => self.set(
                Knob::IrqAffinity { queue: index, irq },
                core,
                "the queue's interrupt goes to its worker's core",
            ),
            None if queue.rps_cpus.is_some() => self.set(
                Knob::RpsCpus { queue: index },
                core,
                "a device without interrupts: its packets go to the worker's core",
            ),
            None => {}
        }
    }

    /// A worker that polls its queue receives on its own core by that: packet steering would only
    /// put each packet into a backlog first, and a softirq between the poll and the socket.
    fn stop_steering(&mut self, queue: &RxQueue) {
        if queue.rps_cpus.as_ref().is_some_and(|cpus| !cpus.is_empty()) {
            self.set(
                Knob::RpsCpus { queue: queue.index },
                Value::Cpus(Cpus::none()),
                "packets stay on the core that polled them",
            );
        }
    }

    fn pack(&mut self, queue: &RxQueue, core: &Cpus) {
        let (index, core) = (queue.index, Value::Cpus(core.clone()));
        match queue.irq {
            Some(irq) => self.set(
                Knob::IrqAffinity { queue: index, irq },
                core,
                "the queue's interrupt goes to a packing core",
            ),
            None if queue.napi.as_ref().is_some_and(|napi| napi.threaded.is_some()) => {
                self.stop_steering(queue);
                self.set(
                    Knob::NapiThreaded { queue: index },
                    Value::Number(1),
                    "a device without interrupts: a kernel thread polls the queue",
                );
                self.set(
                    Knob::NapiThreadAffinity { queue: index },
                    core,
                    "the polling thread runs on a packing core",
                );
            }
            None if queue.rps_cpus.is_some() => self.set(
                Knob::RpsCpus { queue: index },
                core,
                "a device without interrupts: its packets go to a packing core",
            ),
            None => {}
        }
    }

    fn defer(&mut self, policy: Policy, interface: &Interface, settings: &Settings) {
        let nanos =
            |duration: Duration| Value::Number(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
        let suspend = match policy {
            Policy::KernelPolling => settings.irq_suspend_timeout,
            _ => Duration::ZERO,
        };
        for queue in interface.queues.iter().filter(|queue| queue.napi.is_some()) {
            let index = queue.index;
            self.set(
                Knob::NapiDeferHardIrqs { queue: index },
                Value::Number(settings.defer_hard_irqs),
                "after an empty poll the timer polls, not the interrupt",
            );
            self.set(
                Knob::NapiGroFlushTimeout { queue: index },
                nanos(settings.gro_flush_timeout),
                "the grace time in which the application may poll first (ns)",
            );
            let napi_suspends = queue.napi.as_ref().is_some_and(|napi| napi.irq_suspend_timeout.is_some());
            if napi_suspends {
                self.set(
                    Knob::NapiIrqSuspendTimeout { queue: index },
                    nanos(suspend),
                    if policy == Policy::KernelPolling {
                        "how long interrupts stay away without a poll, at the most (ns)"
                    } else {
                        "suppression only defers; it does not suspend (ns)"
                    },
                );
            } else if policy == Policy::KernelPolling {
                self.notes.push(format!(
                    "rx-{index}: this kernel has no irq-suspend-timeout (it came with Linux 6.13)"
                ));
            }
        }
    }
}

fn packing_cores(settings: &Settings) -> Vec<u32> {
    if !settings.packing_cores.is_empty() {
        return settings.packing_cores.iter().collect();
    }
    let allowed = Cpus::allowed().unwrap_or_default();
    let free = allowed.iter().filter(|cpu| !settings.worker_cores.contains(cpu)).last();
    vec![free.or_else(|| allowed.iter().last()).unwrap_or(0)]
}

fn pick(cores: &[u32], position: usize) -> Cpus {
    Cpus::one(cores[position % cores.len()])
}
