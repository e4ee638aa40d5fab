//! Places receive processing on cores: interrupt affinity, packet steering, NAPI threads.

use super::planner::Planner;
use crate::host::irqbalance::Irqbalance;
use crate::host::{Cpus, Interface, RxQueue, numa};
use crate::knob::{Knob, Value};
use crate::policy::Policy;

impl Planner<'_> {
    /// Assigns each queue's receive processing to a core: by interrupt affinity, or by packet steering on
    /// a device without interrupts (a veth's packets arrive on the sender's CPU).
    pub(super) fn place_processing(&mut self, interface: &Interface) {
        let packing = (self.policy == Policy::Packing).then(|| self.packing_cores(interface));
        if packing.is_none() && self.settings.worker_cores.is_empty() {
            self.notes
                .push("workers are not pinned, so interrupts and packet steering stay unchanged".into());
            return;
        }
        self.note_remote_workers(interface);
        self.handle_irqbalance();
        let cores = packing.clone().unwrap_or_else(|| self.settings.worker_cores.clone());
        for (position, queue) in self.rx.clone().into_iter().enumerate() {
            if queue.irq.is_some() {
                self.stop_steering(queue);
            }
            match &packing {
                Some(cores) => self.pack_queue(queue, &core_for(cores, position)),
                None if self.policy.busy_polls() && queue.irq.is_none() => self.stop_steering(queue),
                None => self.follow_worker(queue, cores[position % cores.len()]),
            }
            if packing.is_none() {
                self.stop_napi_thread(queue);
            }
        }
        let rx_irqs: Vec<Option<u32>> = self.rx.iter().map(|queue| queue.irq).collect();
        for (position, queue) in self.tx.clone().into_iter().enumerate() {
            if queue.xps_cpus.as_ref().is_some_and(|cpus| !cpus.is_empty()) && queue.irq.is_some() {
                self.set(
                    Knob::XpsCpus { queue: queue.index },
                    Value::Cpus(Cpus::none()),
                    "packets are sent by flow, not by the sending core",
                );
            }
            if let Some(irq) = queue.irq.filter(|irq| !rx_irqs.contains(&Some(*irq))) {
                self.set(
                    Knob::TxIrqAffinity { queue: queue.index, irq },
                    Value::Cpus(core_for(&cores, position)),
                    "transmit completions go to the core that receives for the same worker",
                );
            }
        }
    }

    /// irqbalance rebalances every ten seconds and overwrites the affinities that the plan sets.
    fn handle_irqbalance(&mut self) {
        let mut irqs: Vec<u32> = self.rx.iter().filter_map(|queue| queue.irq).collect();
        irqs.extend(self.tx.iter().filter_map(|queue| queue.irq));
        irqs.sort_unstable();
        irqs.dedup();
        let Some(irqbalance) = Irqbalance::find().filter(|_| !irqs.is_empty()) else { return };
        if !self.settings.ban_irqbalance {
            self.notes.push(format!(
                "irqbalance runs (process {}) and will move these interrupts again; --ban-irqbalance prevents \
                 that",
                irqbalance.pid
            ));
            return;
        }
        for irq in irqs {
            self.set(Knob::IrqbalanceBan { irq }, Value::Number(1), "irqbalance does not move the interrupt");
        }
    }

    fn note_remote_workers(&mut self, interface: &Interface) {
        let Some(node) = interface.numa_node else { return };
        let near = numa::node_cpus(node);
        let far: Cpus =
            self.settings.worker_cores.iter().copied().filter(|&core| !near.contains(core)).collect();
        if !near.is_empty() && !far.is_empty() {
            self.notes.push(format!(
                "{} is on NUMA node {node} (cores {near}), and workers are on cores {far} of other nodes; \
                 their packets cross the NUMA interconnect",
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
        let near = numa::device_cpus(interface);
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
                "the device has no interrupts; packets are steered to the worker's core",
            ),
            None => {}
        }
    }

    /// A worker that polls its queue already receives on its own core. Packet steering would only put each
    /// packet into a backlog, and a softirq between the poll and the socket.
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

    /// A NAPI thread would compete with the worker for the queue, and move processing away from the
    /// interrupt's core.
    fn stop_napi_thread(&mut self, queue: &RxQueue) {
        if queue.napi.as_ref().is_some_and(|napi| napi.threaded.is_some_and(|threaded| threaded > 0)) {
            self.set(
                Knob::NapiThreaded { queue: queue.index },
                Value::Number(0),
                "the worker or the interrupt polls the queue, not a kernel thread",
            );
        }
    }

    fn pack_queue(&mut self, queue: &RxQueue, core: &Cpus) {
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
                    "the device has no interrupts; a kernel thread polls the queue",
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
                "the device has no interrupts; packets are steered to a packing core",
            ),
            None => {}
        }
    }
}

/// The core for the queue at `position`, round robin.
fn core_for(cores: &[u32], position: usize) -> Cpus {
    Cpus::one(cores[position % cores.len()])
}
