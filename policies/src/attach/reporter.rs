//! What an attachment shows: events, and its status once a second.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::event::{AttachEvent, InstanceName};
use super::held_queue::HeldQueue;
use super::instance::{QueueMap, QueueName};
use super::load::Load;
use super::process;
use crate::counters::Snapshot;
use crate::journal::JournalDir;
use crate::status::{QueueStatus, StatusFile, WorkerStatus};

/// The queues that are attached, as of the last second.
#[derive(Debug, Clone, PartialEq, Serialize, Default)]
#[non_exhaustive]
pub struct AttachStatus {
    /// Over how many seconds the rates were taken; less than 1 after a change of what is attached.
    pub seconds: f64,
    pub processes: usize,
    /// The epoll instances that were found in them.
    pub instances: usize,
    pub queues: Vec<AttachedQueue>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AttachedQueue {
    #[serde(flatten)]
    pub queue: QueueName,
    pub instances: Vec<InstanceName>,
    #[serde(flatten)]
    pub status: QueueStatus,
    pub packets_per_second: f64,
    /// The share of the network namespace's packets that busy polls received, 0 to 1.
    pub busy_poll_share: f64,
    /// Interrupts per second; `None` if the queue has none.
    pub interrupts_per_second: Option<f64>,
    /// How often the server's threads woke from a sleep, by second.
    pub wakeups_per_second: f64,
    /// How many cores the server's threads took.
    pub cores: f64,
    /// Their CPU time for a packet, in microseconds; `None` without packets.
    pub cpu_us_per_packet: Option<f64>,
}

const INTERVAL: Duration = Duration::from_secs(1);

/// What a queue did since the last status.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    packets: u64,
    run: Duration,
}

pub(super) struct Reporter {
    on_event: Box<dyn FnMut(&AttachEvent) + Send>,
    status: Arc<Mutex<AttachStatus>>,
    since: Instant,
    sums: BTreeMap<QueueName, Sums>,
    polled: u64,
    packets: BTreeMap<QueueName, u64>,
    interrupts: BTreeMap<QueueName, u64>,
    /// How often each thread of a queue has gone to sleep.
    sleeps: BTreeMap<(u32, i32), u64>,
    files: BTreeMap<u32, StatusFile>,
    running: BTreeMap<QueueName, Duration>,
    start: Instant,
}

impl Reporter {
    pub(super) fn new(
        on_event: Box<dyn FnMut(&AttachEvent) + Send>,
        status: Arc<Mutex<AttachStatus>>,
    ) -> Self {
        Self {
            on_event,
            status,
            since: Instant::now(),
            sums: BTreeMap::new(),
            polled: 0,
            packets: BTreeMap::new(),
            interrupts: BTreeMap::new(),
            sleeps: BTreeMap::new(),
            files: BTreeMap::new(),
            running: BTreeMap::new(),
            start: Instant::now(),
        }
    }

    pub(super) fn event(&mut self, event: &AttachEvent) {
        tracing::debug!("{event}");
        (self.on_event)(event);
    }

    pub(super) fn polled_share(&mut self, polled: u64, packets: &BTreeMap<QueueName, u64>) -> f64 {
        let received: u64 = packets
            .iter()
            .map(|(name, now)| now.saturating_sub(self.packets.get(name).copied().unwrap_or(*now)))
            .sum();
        self.packets.clone_from(packets);
        (polled as f64 / received.max(1) as f64).min(1.0)
    }

    pub(super) fn loads(&mut self, loads: &[(QueueName, Load)], polled: u64) {
        self.polled += polled;
        for (name, load) in loads {
            let sums = self.sums.entry(name.clone()).or_default();
            sums.packets += load.epoch.packets;
            sums.run += load.run;
            *self.running.entry(name.clone()).or_default() += load.run;
        }
    }

    /// Writes the status, once a second and when other instances are attached.
    pub(super) fn publish(
        &mut self,
        processes: usize,
        instances: usize,
        queues: &BTreeMap<QueueName, HeldQueue>,
        map: &QueueMap,
        journals: &JournalDir,
    ) {
        let seconds = self.since.elapsed().as_secs_f64();
        let names: Vec<(&QueueName, usize)> =
            queues.iter().map(|(name, queue)| (name, queue.instances.len())).collect();
        let is_same = {
            let status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
            names.iter().copied().eq(status.queues.iter().map(|it| (&it.queue, it.instances.len())))
        };
        if seconds < INTERVAL.as_secs_f64() && is_same {
            return;
        }
        self.since = Instant::now();
        let sums = std::mem::take(&mut self.sums);
        let polled = std::mem::take(&mut self.polled);
        let received: u64 = sums.values().map(|sums| sums.packets).sum();
        let interrupts = interrupts(queues, map);
        let mut sleeps = BTreeMap::new();
        let mut attached = Vec::new();
        for (name, queue) in queues {
            let sums = sums.get(name).copied().unwrap_or_default();
            let before = self.interrupts.get(name);
            let rate = |(now, before): (&u64, &u64)| now.saturating_sub(*before) as f64 / seconds;
            let mut wakeups = 0;
            for (pid, thread) in queue.threads() {
                let now = process::sleeps(thread);
                // A thread that is new here begins at 0.
                wakeups += now.saturating_sub(*self.sleeps.get(&(pid, thread)).unwrap_or(&now));
                sleeps.insert((pid, thread), now);
            }
            attached.push(AttachedQueue {
                queue: name.clone(),
                instances: queue.instances.values().map(|instance| instance.name.clone()).collect(),
                status: queue.status(),
                packets_per_second: sums.packets as f64 / seconds,
                busy_poll_share: (polled as f64 / received.max(1) as f64).min(1.0),
                interrupts_per_second: interrupts.get(name).zip(before).map(rate),
                wakeups_per_second: wakeups as f64 / seconds,
                cores: sums.run.as_secs_f64() / seconds,
                cpu_us_per_packet: (sums.packets > 0)
                    .then(|| sums.run.as_secs_f64() * 1e6 / sums.packets as f64),
            });
        }
        self.interrupts = interrupts;
        self.sleeps = sleeps;
        self.write_files(queues, map, journals);
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) =
            AttachStatus { seconds, processes, instances, queues: attached };
    }

    /// For `policies watch`: an attached queue is shown as one of a worker.
    fn write_files(
        &mut self,
        queues: &BTreeMap<QueueName, HeldQueue>,
        map: &QueueMap,
        journals: &JournalDir,
    ) {
        let mut by_interface: BTreeMap<u32, Vec<WorkerStatus>> = BTreeMap::new();
        let parked = self.start.elapsed();
        for (name, queue) in queues {
            let napi = map.interface(name).and_then(|interface| {
                interface.queues.iter().find(|queue| queue.index == name.queue)?.napi.as_ref()
            });
            let running = self.running.get(name).copied().unwrap_or_default();
            let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            let workers = by_interface.entry(name.ifindex).or_default();
            workers.push(WorkerStatus {
                worker: workers.len(),
                thread: queue.threads().first().map_or(0, |(_, thread)| *thread),
                napi: napi.map_or(0, |napi| napi.id),
                running: "attached".to_owned(),
                queue: Some(queue.status()),
                running_ns: nanos(running),
                polling_ns: 0,
                parked_ns: nanos(parked.saturating_sub(running)),
            });
        }
        self.files.retain(|ifindex, _| by_interface.contains_key(ifindex));
        for (ifindex, workers) in by_interface {
            let file = self.files.entry(ifindex).or_insert_with(|| StatusFile::new(journals, ifindex));
            // Only what `policies watch` shows is missing then.
            let _ = file.write(workers);
        }
    }

    /// Removes what `policies watch` reads.
    pub(super) fn remove_files(&mut self) {
        self.files.clear();
    }
}

fn interrupts(queues: &BTreeMap<QueueName, HeldQueue>, map: &QueueMap) -> BTreeMap<QueueName, u64> {
    let mut counts = BTreeMap::new();
    for interface in &map.interfaces {
        let held: Vec<&QueueName> = queues.keys().filter(|name| name.ifindex == interface.index).collect();
        if held.is_empty() || !interface.has_interrupts() {
            continue;
        }
        let Ok(snapshot) = Snapshot::take(interface) else { continue };
        for name in held {
            let count = snapshot.irqs.iter().find(|(queue, _)| *queue == name.queue);
            counts.extend(count.map(|(_, count)| (name.clone(), *count)));
        }
    }
    counts
}
