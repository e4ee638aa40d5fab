//! A policy worked out for one interface: which knobs, from what, to what, and why.

use std::time::Duration;

use serde::Serialize;

use crate::cores::{local_to, node_cpus};
use crate::device::Device;
use crate::grace_time::nanos;
use crate::neighbours::Irqbalance;
use crate::netlink::ethtool::Coalescing;
use crate::netlink::netdev::Netdev;
use crate::permission::may_set_on;
use crate::{Cpus, GraceTime, Interface, Knob, Policy, RxQueue, TxQueue, Value};

/// How long a device may hold interrupts back under suppression. The values of Cai and Karsten (2023),
/// section 4.2.1; a device that takes less gets as much as it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SuppressionValues {
    /// Microseconds from a received packet to its interrupt.
    pub rx_usecs: u32,
    /// Received packets after which the interrupt comes at once.
    pub rx_frames: u32,
    /// Microseconds from a sent packet to the interrupt that says so.
    pub tx_usecs: u32,
    /// Sent packets after which that interrupt comes at once.
    pub tx_frames: u32,
}

impl Default for SuppressionValues {
    fn default() -> Self {
        Self { rx_usecs: 65534, rx_frames: 65534, tx_usecs: 1024, tx_frames: 256 }
    }
}

impl SuppressionValues {
    fn target(self, parameter: Coalescing) -> u32 {
        match parameter {
            Coalescing::AdaptiveRx | Coalescing::AdaptiveTx => 0,
            Coalescing::RxUsecs => self.rx_usecs,
            Coalescing::RxFrames => self.rx_frames,
            Coalescing::TxUsecs => self.tx_usecs,
            Coalescing::TxFrames => self.tx_frames,
        }
    }
}

/// What a plan is made from besides the policy and the interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Settings {
    /// How many queues the device is to receive with; `None` leaves it as it is.
    pub channels: Option<u32>,
    /// The queues that the plan is for; `None` is all. The others are not touched.
    pub queues: Option<Vec<u32>>,
    /// The device's interrupt coalescing under suppression.
    pub suppression: SuppressionValues,
    /// Whether a running irqbalance is told to leave the queues' interrupts alone.
    pub ban_irqbalance: bool,
    /// The core of each worker, where workers are pinned; queue `i` belongs to worker `i` modulo
    /// their number. Empty: workers float, and interrupts stay where they are.
    pub worker_cores: Vec<u32>,
    /// The cores that packing gathers the network's work on. Empty: the highest core of the process
    /// that no worker has, of the device's NUMA node if there is one, or the highest one at all.
    pub packing_cores: Cpus,
    /// `napi_defer_hard_irqs` under suppression and kernel polling.
    pub defer_hard_irqs: u64,
    /// `gro_flush_timeout` under suppression and kernel polling: the grace time between an empty
    /// poll and the timer's own poll. Adapted under kernel polling only, and only by a process that keeps
    /// the policy ([`Supervisor`](crate::Supervisor)).
    pub gro_flush_timeout: GraceTime,
    /// `irq_suspend_timeout` under kernel polling: the net below an application that stops polling.
    pub irq_suspend_timeout: Duration,
}

impl Settings {
    /// The default grace time. The authors of the kernel series recommend 10 to 50 µs on hardware;
    /// a longer one costs latency only when traffic is thin. `lab calibrate` compares them on a host.
    pub const GRO_FLUSH_TIMEOUT: GraceTime = GraceTime::Fixed(Duration::from_micros(200));
    /// The authors' value: a safety net of about the grace time times the largest batch.
    pub const IRQ_SUSPEND_TIMEOUT: Duration = Duration::from_millis(20);
    /// The authors' value.
    pub const DEFER_HARD_IRQS: u64 = 100;
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            channels: None,
            queues: None,
            suppression: SuppressionValues::default(),
            ban_irqbalance: false,
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
    /// The queues that it is for.
    pub queues: Vec<u32>,
    /// What it was made from.
    pub settings: Settings,
    /// What to set.
    pub steps: Vec<Step>,
    /// What the policy would want and this host hasn't got.
    pub notes: Vec<String>,
}

impl Plan {
    /// Works a policy out for an interface. Reads, changes nothing.
    pub fn new(policy: Policy, interface: &Interface, settings: &Settings) -> Self {
        let mine = |index: u32| settings.queues.as_ref().is_none_or(|queues| queues.contains(&index));
        let mut compiler = Compiler {
            device: Device::new(&interface.name, interface.index),
            policy,
            settings,
            rx: interface.queues.iter().filter(|queue| mine(queue.index)).collect(),
            tx: interface.tx_queues.iter().filter(|queue| mine(queue.index)).collect(),
            steps: Vec::new(),
            notes: interface.notes.clone(),
        };
        compiler.compile(interface);
        Self {
            policy,
            interface: interface.name.clone(),
            ifindex: interface.index,
            queues: compiler.rx.iter().map(|queue| queue.index).collect(),
            settings: settings.clone(),
            steps: compiler.steps,
            notes: compiler.notes,
        }
    }

    /// The change of the number of queues that has to come before all else is planned; `None` where the
    /// device has as many as it is to have.
    pub(crate) fn rebuilds_queues(&self) -> Option<&Step> {
        self.steps.first().filter(|step| matches!(step.knob, Knob::Channels { .. }) && !step.is_done())
    }

    /// The bounds of a step's value, in the knob's unit, where that is adapted while the policy runs.
    pub(crate) fn adapts(&self, step: &Step) -> Option<(u64, u64)> {
        let adapts = matches!(step.knob, Knob::NapiGroFlushTimeout { .. })
            && self.policy == Policy::KernelPolling
            && step.forbidden.is_none();
        self.settings.gro_flush_timeout.bounds().filter(|_| adapts)
    }

    /// The steps that this process may not take.
    pub fn forbidden(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(|step| step.forbidden.is_some() && !step.is_done())
    }
}

struct Compiler<'a> {
    device: Device,
    policy: Policy,
    settings: &'a Settings,
    rx: Vec<&'a RxQueue>,
    tx: Vec<&'a TxQueue>,
    steps: Vec<Step>,
    notes: Vec<String>,
}

impl Compiler<'_> {
    fn set(&mut self, knob: Knob, target: Value, why: &'static str) {
        let now = knob.read(&self.device).ok();
        let forbidden = may_set_on(&knob, &self.device).err();
        self.steps.push(Step { knob, now, target, why, forbidden });
    }

    /// In order: how many queues there are, because that rebuilds the device; when it interrupts; where
    /// packets go (sysfs, interrupts); who polls; then the NAPI's own values, because writing a sysfs
    /// default overwrites every NAPI's value.
    fn compile(&mut self, interface: &Interface) {
        let policy = self.policy;
        if self.rx.iter().all(|queue| queue.napi.is_none()) && policy != Policy::Vanilla {
            self.notes.push(format!(
                "{} has no NAPI that can be set: there is nothing on it for {policy} to poll or defer",
                interface.name
            ));
        }
        for queue in self.settings.queues.iter().flatten() {
            if !interface.queues.iter().any(|found| found.index == *queue) {
                self.notes.push(format!("{} has no queue {queue}", interface.name));
            }
        }
        self.count_queues(interface);
        if policy == Policy::Suppression {
            self.coalesce(interface);
        }
        self.place(interface);
        if policy.busy_polls() {
            self.defer();
        }
    }

    fn count_queues(&mut self, interface: &Interface) {
        let Some(wanted) = self.settings.channels else { return };
        match interface.channels {
            None => self.notes.push(format!(
                "{} does not let its queues be counted (ethtool channels): it keeps {}",
                interface.name,
                interface.queues.len()
            )),
            Some(channels) if wanted == 0 || wanted > channels.max => self.notes.push(format!(
                "{} may have 1 to {} queues, not {wanted}: it keeps {}",
                interface.name, channels.max, channels.count
            )),
            Some(channels) => {
                self.set(
                    Knob::Channels { combined: channels.combined },
                    Value::Number(wanted.into()),
                    "a queue for each worker",
                );
                if channels.count != wanted {
                    self.notes.push(format!(
                        "the rest is planned anew when the device has {wanted} queues; it loses packets \
                         while it is rebuilt"
                    ));
                }
            }
        }
    }

    fn coalesce(&mut self, interface: &Interface) {
        if interface.coalescing.is_empty() {
            self.notes.push(format!(
                "{} does not coalesce interrupts (ethtool): only deferral holds them back",
                interface.name
            ));
        }
        for parameter in Coalescing::ALL {
            let has = interface.coalescing.iter().any(|(which, _)| *which == parameter);
            if has {
                self.set(
                    Knob::Coalesce { parameter },
                    Value::Number(self.settings.suppression.target(parameter).into()),
                    if parameter.is_switch() {
                        "the values below are not heeded while the device chooses its own"
                    } else {
                        "interrupts put off as far as the device allows"
                    },
                );
            } else if !parameter.is_switch() && !interface.coalescing.is_empty() {
                self.notes.push(format!("{} has no {}", interface.name, parameter.name()));
            }
        }
    }

    /// Puts each queue's receive work on a core: the interrupt where there is one, packet steering
    /// where there is none (a veth's packets arrive on the sender's CPU).
    fn place(&mut self, interface: &Interface) {
        let packing = (self.policy == Policy::Packing).then(|| self.packing_cores(interface));
        if packing.is_none() && self.settings.worker_cores.is_empty() {
            self.notes.push("workers are not pinned: each queue's work stays where the host has it".into());
            return;
        }
        self.tell_far_cores(interface);
        self.face_irqbalance();
        let cores = packing.clone().unwrap_or_else(|| self.settings.worker_cores.clone());
        for (position, queue) in self.rx.clone().into_iter().enumerate() {
            if queue.irq.is_some() {
                self.stop_steering(queue);
            }
            match &packing {
                Some(cores) => self.pack(queue, &pick(cores, position)),
                None if self.policy.busy_polls() && queue.irq.is_none() => self.stop_steering(queue),
                None => self.follow_worker(queue, cores[position % cores.len()]),
            }
            if packing.is_none() {
                self.stop_thread(queue);
            }
        }
        let shared: Vec<Option<u32>> = self.rx.iter().map(|queue| queue.irq).collect();
        for (position, queue) in self.tx.clone().into_iter().enumerate() {
            if queue.xps_cpus.as_ref().is_some_and(|cpus| !cpus.is_empty()) && queue.irq.is_some() {
                self.set(
                    Knob::XpsCpus { queue: queue.index },
                    Value::Cpus(Cpus::none()),
                    "what is sent goes by flow, not by the core that happens to send",
                );
            }
            if let Some(irq) = queue.irq.filter(|irq| !shared.contains(&Some(*irq))) {
                self.set(
                    Knob::TxIrqAffinity { queue: queue.index, irq },
                    Value::Cpus(pick(&cores, position)),
                    "the end of sending is told to the core that receives for the same worker",
                );
            }
        }
    }

    /// irqbalance undoes by hand-set affinities every ten seconds.
    fn face_irqbalance(&mut self) {
        let mut irqs: Vec<u32> = self.rx.iter().filter_map(|queue| queue.irq).collect();
        irqs.extend(self.tx.iter().filter_map(|queue| queue.irq));
        irqs.sort_unstable();
        irqs.dedup();
        let Some(irqbalance) = Irqbalance::find().filter(|_| !irqs.is_empty()) else { return };
        if !self.settings.ban_irqbalance {
            self.notes.push(format!(
                "irqbalance runs (process {}) and will move these interrupts again; --ban-irqbalance has it \
                 leave them alone",
                irqbalance.pid
            ));
            return;
        }
        for irq in irqs {
            self.set(
                Knob::IrqbalanceBan { irq },
                Value::Number(1),
                "irqbalance leaves the interrupt where it is put",
            );
        }
    }

    fn tell_far_cores(&mut self, interface: &Interface) {
        let Some(node) = interface.numa_node else { return };
        let near = node_cpus(node);
        let far: Cpus =
            self.settings.worker_cores.iter().copied().filter(|&core| !near.contains(core)).collect();
        if !near.is_empty() && !far.is_empty() {
            self.notes.push(format!(
                "{} is on NUMA node {node} (cores {near}), and workers are on cores {far} of other nodes: \
                 each of their packets crosses between nodes",
                interface.name
            ));
        }
    }

    fn packing_cores(&self, interface: &Interface) -> Vec<u32> {
        if !self.settings.packing_cores.is_empty() {
            return self.settings.packing_cores.iter().collect();
        }
        let allowed = Cpus::allowed().unwrap_or_default();
        let free: Vec<u32> = allowed.iter().filter(|cpu| !self.settings.worker_cores.contains(cpu)).collect();
        let near = local_to(interface);
        let local = free.iter().rev().find(|&&cpu| near.contains(cpu));
        vec![local.or(free.last()).copied().or_else(|| allowed.iter().last()).unwrap_or(0)]
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
        if queue.rps_flow_count.is_some_and(|count| count > 0) {
            self.set(
                Knob::RpsFlowCount { queue: queue.index },
                Value::Number(0),
                "packets stay on the core that polled them",
            );
        }
    }

    /// A thread that polls would take the queue from the worker, and from the core of its interrupt.
    fn stop_thread(&mut self, queue: &RxQueue) {
        if queue.napi.as_ref().is_some_and(|napi| napi.threaded.is_some_and(|threaded| threaded > 0)) {
            self.set(
                Knob::NapiThreaded { queue: queue.index },
                Value::Number(0),
                "the queue is polled by its worker or its interrupt, not by a thread",
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

    /// Who may not set the grace time can't adapt it either, and takes one that was prepared for it.
    fn prepared_grace(&self, knob: &Knob, prepared: Option<u64>) -> Option<Value> {
        let (least, most) = self.settings.gro_flush_timeout.bounds()?;
        let prepared = prepared.filter(|nanos| (least..=most).contains(nanos))?;
        may_set_on(knob, &self.device).is_err().then_some(Value::Number(prepared))
    }

    fn defer(&mut self) {
        let nanos = |duration: Duration| Value::Number(nanos(duration));
        let (defer, grace) =
            (Value::Number(self.settings.defer_hard_irqs), nanos(self.settings.gro_flush_timeout.first()));
        const DEFER: &str = "after an empty poll the timer polls, not the interrupt";
        const GRACE: &str = "the grace time in which the application may poll first (ns)";
        let per_napi =
            |queue: &RxQueue| queue.napi.as_ref().is_some_and(|napi| napi.defer_hard_irqs.is_some());
        if !self.rx.iter().any(|queue| per_napi(queue)) {
            let older = self.rx.iter().any(|queue| queue.napi.is_some()) || Netdev::open().is_err();
            if older && Knob::DeferHardIrqs.read(&self.device).is_ok() {
                self.set(Knob::DeferHardIrqs, defer, DEFER);
                let prepared = match Knob::GroFlushTimeout.read(&self.device) {
                    Ok(Value::Number(nanos)) => Some(nanos),
                    _ => None,
                };
                let grace = self.prepared_grace(&Knob::GroFlushTimeout, prepared).unwrap_or(grace);
                self.set(Knob::GroFlushTimeout, grace, GRACE);
                self.notes.push(
                    "this kernel defers for the whole device, not for each NAPI (that came with Linux 6.13)"
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
            let prepared = queue.napi.as_ref().and_then(|napi| napi.gro_flush_timeout);
            let knob = Knob::NapiGroFlushTimeout { queue: index };
            let grace = self.prepared_grace(&knob, prepared).unwrap_or_else(|| grace.clone());
            self.set(knob, grace, GRACE);
            if queue.napi.as_ref().is_some_and(|napi| napi.irq_suspend_timeout.is_some()) {
                self.set(
                    Knob::NapiIrqSuspendTimeout { queue: index },
                    nanos(suspend),
                    if polling {
                        "how long interrupts stay away without a poll, at the most (ns)"
                    } else {
                        "suppression only defers; it does not suspend (ns)"
                    },
                );
            } else if polling {
                self.notes.push(format!(
                    "rx-{index}: this kernel has no irq-suspend-timeout (it came with Linux 6.13)"
                ));
            }
        }
    }
}

fn pick(cores: &[u32], position: usize) -> Cpus {
    Cpus::one(cores[position % cores.len()])
}
