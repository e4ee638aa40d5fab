//! Rates of an interface between two snapshots.

use policies::counters::{Delta, RxPackets, Snapshot};
use policies::status::{self, QueueStatus, WorkerStatus};
use policies::{Error, Interface, JournalDir, RxQueue, host};
use serde::Serialize;

/// The rates of a receive queue during an interval.
#[derive(Debug, Serialize)]
pub struct QueueSample {
    pub queue: u32,
    pub napi: Option<u32>,
    pub irq: Option<u32>,
    pub core: Option<u32>,
    pub interrupts_per_second: Option<f64>,
    pub packets_per_second: Option<f64>,
    pub packets_per_interrupt: Option<f64>,
    /// `None` if softirqs poll the queue.
    pub kernel_thread: Option<KernelThreadSample>,
    pub worker: Option<WorkerShares>,
}

#[derive(Debug, Serialize)]
pub struct KernelThreadSample {
    pub thread: i32,
    pub core: Option<u32>,
    /// The share of a core that it used, from 0 to 1.
    pub cpu: f64,
}

/// How a worker spent the interval, in shares from 0 to 1.
#[derive(Debug, Serialize)]
pub struct WorkerShares {
    pub worker: usize,
    pub thread: i32,
    pub running: String,
    /// How the queue is driven; `None` unless kernel polling is in effect.
    pub queue: Option<QueueStatus>,
    pub useful: f64,
    pub polling: f64,
    pub idle: f64,
}

#[derive(Debug, Serialize)]
pub struct InterfaceSample {
    pub interface: String,
    pub up: bool,
    pub seconds: f64,
    pub packets_per_second: f64,
    pub busy_poll_share: f64,
    pub net_rx_softirqs_per_second: f64,
    pub queues: Vec<QueueSample>,
}

/// Takes samples of an interface. Each covers the time since the one before.
pub struct Sampler<'a> {
    name: &'a str,
    journals: &'a JournalDir,
    before: Snapshot,
    workers: Vec<WorkerStatus>,
}

impl<'a> Sampler<'a> {
    pub fn new(name: &'a str, journals: &'a JournalDir) -> Result<Self, Error> {
        let interface = host::interface(name)?;
        let before = Snapshot::take(&interface)?;
        Ok(Self { name, journals, before, workers: status::workers(journals, interface.index) })
    }

    pub fn next_sample(&mut self) -> Result<InterfaceSample, Error> {
        // Read each time: links may be reopened, interrupts moved, queues added.
        let interface = host::interface(self.name)?;
        let now = Snapshot::take(&interface)?;
        let delta = now.since(&self.before);
        let workers = status::workers(self.journals, interface.index);
        let sample = sample(&interface, &delta, &self.workers, &workers);
        (self.before, self.workers) = (now, workers);
        Ok(sample)
    }
}

fn sample(
    interface: &Interface,
    delta: &Delta,
    before: &[WorkerStatus],
    now: &[WorkerStatus],
) -> InterfaceSample {
    let seconds = delta.elapsed.as_secs_f64();
    let packets = match &delta.rx_packets {
        RxPackets::PerQueue(queues) => queues.clone(),
        RxPackets::Interface(sum) if interface.queues.len() == 1 => {
            vec![(interface.queues[0].index, *sum)]
        }
        RxPackets::Interface(_) => Vec::new(),
    };
    let count_of = |counts: &[(u32, u64)], queue: u32| {
        counts.iter().find(|(other, _)| *other == queue).map(|(_, count)| *count as f64)
    };
    let queue_sample = |queue: &RxQueue| {
        let napi = queue.napi.as_ref();
        let (interrupts, received) = (count_of(&delta.irqs, queue.index), count_of(&packets, queue.index));
        QueueSample {
            queue: queue.index,
            napi: napi.map(|napi| napi.id),
            irq: queue.irq,
            core: queue.irq_effective.as_ref().and_then(|cpus| cpus.iter().next()),
            interrupts_per_second: interrupts.map(|count| count / seconds),
            packets_per_second: received.map(|count| count / seconds),
            packets_per_interrupt: received
                .zip(interrupts)
                .filter(|(received, _)| *received > 0.0)
                .map(|(received, interrupts)| received / interrupts),
            kernel_thread: delta.napi_threads.iter().find(|thread| thread.queue == queue.index).map(
                |thread| KernelThreadSample {
                    thread: thread.thread,
                    core: thread.core,
                    cpu: thread.cpu_time.as_secs_f64() / seconds,
                },
            ),
            worker: napi.and_then(|napi| worker_shares(napi.id, before, now)),
        }
    };
    InterfaceSample {
        interface: interface.name.clone(),
        up: interface.up,
        seconds,
        packets_per_second: delta.rx_packets.total() as f64 / seconds,
        busy_poll_share: delta.busy_poll_share(),
        net_rx_softirqs_per_second: delta.net_rx.iter().sum::<u64>() as f64 / seconds,
        queues: interface.queues.iter().map(queue_sample).collect(),
    }
}

fn worker_shares(napi: u32, before: &[WorkerStatus], now: &[WorkerStatus]) -> Option<WorkerShares> {
    let worker = now.iter().find(|worker| worker.napi == napi)?;
    let then = before.iter().find(|then| then.thread == worker.thread && then.worker == worker.worker)?;
    let spent = |now: u64, then: u64| now.saturating_sub(then) as f64;
    let useful = spent(worker.running_ns, then.running_ns);
    let polling = spent(worker.polling_ns, then.polling_ns);
    let idle = spent(worker.parked_ns, then.parked_ns);
    let all = (useful + polling + idle).max(1.0);
    Some(WorkerShares {
        worker: worker.worker,
        thread: worker.thread,
        running: worker.running.clone(),
        queue: worker.queue,
        useful: useful / all,
        polling: polling / all,
        idle: idle / all,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(thread: i32, times: [u64; 3]) -> WorkerStatus {
        let [running_ns, polling_ns, parked_ns] = times;
        let running = "kernel-polling".to_owned();
        WorkerStatus { worker: 0, thread, napi: 9, running, queue: None, running_ns, polling_ns, parked_ns }
    }

    #[test]
    fn worker_shares_cover_the_interval_and_need_the_same_thread() {
        let shares = worker_shares(9, &[worker(7, [100, 100, 100])], &[worker(7, [150, 125, 125])]).unwrap();
        assert_eq!((shares.useful, shares.polling, shares.idle), (0.5, 0.25, 0.25));
        assert!(worker_shares(9, &[worker(6, [0, 0, 0])], &[worker(7, [1, 1, 1])]).is_none());
    }
}
