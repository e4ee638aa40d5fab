//! Places receive processing on cores: interrupt affinity, packet steering, kernel threads.

use std::collections::BTreeSet;

use super::note::Note;
use super::planner::Planner;
use crate::host::{Cpus, RxQueue};
use crate::knob::{Knob, Value};
use crate::netlink::netdev::{Napi, THREADED_BUSY_POLL};
use crate::policy::Processing;

impl Planner<'_> {
    /// Assigns each queue's receive processing to a core: by interrupt affinity; for a queue
    /// without an interrupt by the affinity of the kernel thread that polls it; or by packet
    /// steering, where it has none.
    pub(super) fn place_processing(&mut self) {
        let interface = self.interface;
        let processing = self.policy.processing();
        let packing = match processing {
            Processing::WorkerCores => None,
            Processing::PackingCores => Some(self.packing_cores(1)),
            Processing::PollingThreads => self.place_polling_threads(),
        };
        if packing.is_none() && self.settings.worker_cores.is_empty() {
            return self.notes.push(Note::WorkersNotPinned);
        }
        self.note_remote_workers();
        self.note_irqbalance();
        let cores = packing.clone().unwrap_or_else(|| self.settings.worker_cores.clone());
        let mut placed: Vec<u32> = Vec::new();
        for (position, queue) in self.rx.clone().into_iter().enumerate() {
            let core = core_for(&cores, position);
            match queue.irq {
                Some(irq) => {
                    self.stop_steering(queue);
                    // One interrupt of several queues goes to the core of the first of them.
                    if !placed.contains(&irq) {
                        placed.push(irq);
                        self.place_interrupt(queue, irq, core);
                    }
                    // Packing leaves a thread that packets wake; one that polls all the time is
                    // another policy.
                    let polls = queue.napi.as_ref().is_some_and(Napi::has_polling_thread);
                    if packing.is_none() || polls && processing == Processing::PackingCores {
                        self.stop_napi_thread(queue);
                    }
                }
                // It may have one. A note says so.
                None if interface.irq_is_unknown(queue) => {}
                None if packing.is_some() && processing == Processing::PollingThreads => {
                    self.stop_steering(queue)
                }
                None => self.place_without_interrupt(queue, core),
            }
        }
        self.note_shared_interrupts();
        for (position, queue) in self.tx.clone().into_iter().enumerate() {
            if queue.xps_cpus.is_some() && queue.irq.is_some() && !self.settings.worker_cores.is_empty() {
                self.set(
                    Knob::XpsCpus { queue: queue.index },
                    Value::Cpus(core_for(&self.settings.worker_cores, position)),
                    "the worker sends by its own queue, so that no other worker's poll reaps its completions",
                );
            }
            if let Some(irq) = queue.irq.filter(|irq| !placed.contains(irq)) {
                placed.push(irq);
                self.set(
                    Knob::TxIrqAffinity { queue: queue.index, irq },
                    Value::Cpus(core_for(&cores, position)),
                    "transmit completions go to the core that receives for the same worker",
                );
            }
        }
    }

    /// Plans a polling thread for each queue, and returns the threads' cores. Without a queue that
    /// can have one plans nothing: the placement is vanilla's then.
    ///
    /// These steps come before the rest of the placement, because where one of them fails vanilla
    /// runs instead.
    fn place_polling_threads(&mut self) -> Option<Vec<u32>> {
        let can_have_thread =
            |queue: &&RxQueue| queue.napi.as_ref().is_some_and(|napi| napi.threaded.is_some());
        let queues: Vec<&RxQueue> = self.rx.iter().copied().filter(can_have_thread).collect();
        if queues.is_empty() {
            if self.rx.iter().any(|queue| queue.napi.is_some()) {
                self.prevent(Note::NoPollingThreads);
            }
            return None;
        }
        if self.host.kernel_version().is_some_and(|version| version < (6, 19)) {
            self.prevent(Note::NoPollingThreads);
        }
        let cores = self.packing_cores(queues.len());
        self.note_shared_cores(&cores, queues.len());
        for queue in queues {
            let position = self.rx.iter().position(|other| other.index == queue.index).unwrap_or(0);
            self.start_polling_thread(queue, core_for(&cores, position));
        }
        Some(cores)
    }

    /// The first interrupt after this wakes the thread, which then polls without an end:
    /// `napi_complete_done` returns early while it does (`NAPI_STATE_IN_BUSY_POLL`), so that the
    /// driver never enables the interrupt.
    fn start_polling_thread(&mut self, queue: &RxQueue, core: Cpus) {
        let index = queue.index;
        // The thread is an ordinary one. A real-time thread that never sleeps would leave its core
        // to nothing else until real-time throttling stops it, for 50 ms of each second by default,
        // in which it polls nothing. A thread from before the policy may be real-time, and must not
        // poll so for one moment.
        if queue.napi.as_ref().is_some_and(|napi| napi.pid.is_some()) {
            self.set(
                Knob::NapiThreadPriority { queue: index },
                Value::Number(0),
                "an ordinary thread: a real-time one that polls all the time would keep its core to itself",
            );
        }
        self.set(
            Knob::NapiThreaded { queue: index },
            Value::Number(THREADED_BUSY_POLL),
            "a kernel thread polls the queue all the time; the interrupt stays masked",
        );
        self.set(
            Knob::NapiThreadAffinity { queue: index },
            Value::Cpus(core),
            "the thread polls on a packing core, and keeps it busy",
        );
    }

    fn note_shared_cores(&mut self, cores: &[u32], threads: usize) {
        let all: Cpus = cores.iter().copied().collect();
        if cores.len() < threads {
            self.notes.push(Note::SharedPollingCores { threads, cores: all });
        }
        let shared: Cpus =
            cores.iter().copied().filter(|core| self.settings.worker_cores.contains(core)).collect();
        if !shared.is_empty() {
            self.notes.push(Note::PollingOnWorkers { cores: shared });
        }
    }

    /// irqbalance rebalances every ten seconds and overwrites the affinities that the plan sets.
    fn note_irqbalance(&mut self) {
        let Some(pid) = self.host.irqbalance else { return };
        let rx = self.rx.iter().filter_map(|queue| queue.irq);
        let irqs: BTreeSet<u32> = rx.chain(self.tx.iter().filter_map(|queue| queue.irq)).collect();
        if !irqs.is_empty() {
            self.notes.push(Note::Irqbalance { pid, irqs: irqs.into_iter().collect() });
        }
    }

    fn note_shared_interrupts(&mut self) {
        let irqs: Vec<u32> = self.rx.iter().filter_map(|queue| queue.irq).collect();
        let distinct: BTreeSet<u32> = irqs.iter().copied().collect();
        if distinct.len() < irqs.len() {
            self.notes.push(Note::SharedInterrupts { queues: irqs.len(), interrupts: distinct.len() });
        }
    }

    fn note_remote_workers(&mut self) {
        let interface = self.interface;
        let Some(node) = interface.numa_node else { return };
        let near = self.host.topology.node_cpus(Some(node));
        let far: Cpus =
            self.settings.worker_cores.iter().copied().filter(|&core| !near.contains(core)).collect();
        if !near.is_empty() && !far.is_empty() {
            self.notes.push(Note::RemoteWorkers { interface: interface.name.clone(), node, near, far });
        }
    }

    /// The packing cores of the settings, or up to `count` cores without a worker, those of the
    /// device's NUMA node first; without such a core the highest one.
    fn packing_cores(&self, count: usize) -> Vec<u32> {
        if !self.settings.packing_cores.is_empty() {
            return self.settings.packing_cores.iter().collect();
        }
        let allowed = self.host.allowed.clone();
        let free = allowed.iter().filter(|cpu| !self.settings.worker_cores.contains(cpu));
        let near = self.host.topology.node_cpus(self.interface.numa_node);
        let (mut cores, far): (Vec<u32>, Vec<u32>) = free.partition(|cpu| near.contains(*cpu));
        cores.reverse();
        cores.extend(far.into_iter().rev());
        cores.truncate(count);
        if cores.is_empty() {
            cores.push(allowed.iter().last().unwrap_or(0));
        }
        cores
    }

    fn place_interrupt(&mut self, queue: &RxQueue, irq: u32, core: Cpus) {
        self.set(
            Knob::IrqAffinity { queue: queue.index, irq },
            Value::Cpus(core),
            match self.policy.processing() {
                Processing::WorkerCores => "the queue's interrupt goes to its worker's core",
                Processing::PackingCores => "the queue's interrupt goes to a packing core",
                Processing::PollingThreads => {
                    "the interrupt that starts the thread's polling goes to its core"
                }
            },
        );
    }

    /// A queue without an interrupt is polled on the core that sends (a veth's `ndo_start_xmit`
    /// raises NET_RX there), or by a kernel thread that somebody has started and packets wake. That
    /// goes to the core where an interrupt would go.
    fn place_without_interrupt(&mut self, queue: &RxQueue, core: Cpus) {
        let napi = queue.napi.as_ref();
        let polls_always = napi.is_some_and(Napi::has_polling_thread);
        if napi.is_some_and(|napi| napi.threaded.is_some_and(|on| on > 0)) && !polls_always {
            self.stop_steering(queue);
            self.set(
                Knob::NapiThreadAffinity { queue: queue.index },
                Value::Cpus(core),
                match self.policy.processing() {
                    Processing::PackingCores => "the thread polls the queue on a packing core",
                    _ => "the thread polls the queue on its worker's core",
                },
            );
            return;
        }
        if polls_always {
            self.stop_napi_thread(queue);
        }
        match self.policy.busy_polls() {
            true => self.stop_steering(queue),
            false => self.steer(queue, core),
        }
    }

    /// Without a thread, packet steering at least moves protocol processing off the sender's core.
    fn steer(&mut self, queue: &RxQueue, core: Cpus) {
        if queue.rps_cpus.is_some() {
            self.set(
                Knob::RpsCpus { queue: queue.index },
                Value::Cpus(core),
                if self.policy.processing() == Processing::PackingCores {
                    "the queue has neither interrupt nor thread; packets are steered to a packing core"
                } else {
                    "the queue has neither interrupt nor thread; packets are steered to the worker's core"
                },
            );
        }
    }

    /// The queue is polled on the right core already. Packet steering would only put each packet
    /// into a backlog, and a softirq between the poll and the socket.
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

    /// A queue with an interrupt needs no thread: it would add a wake-up to each interrupt, and
    /// move the processing away from the interrupt's core.
    fn stop_napi_thread(&mut self, queue: &RxQueue) {
        if queue.napi.as_ref().is_some_and(|napi| napi.threaded.is_some_and(|threaded| threaded > 0)) {
            self.set(
                Knob::NapiThreaded { queue: queue.index },
                Value::Number(0),
                "the worker or the interrupt polls the queue, not a kernel thread",
            );
        }
    }
}

/// The core for the queue at `position`, round robin.
fn core_for(cores: &[u32], position: usize) -> Cpus {
    Cpus::one(cores[position % cores.len()])
}
