//! The loop of an attachment: finds instances, keeps them attached, and runs the laws.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use super::config::AttachConfig;
use super::event::{AttachEvent, InstanceName};
use super::held_queue::{HeldQueue, InstanceKey};
use super::instance::{Holds, Instance, is_nested};
use super::load::{Load, PacketCounter, drops};
use super::process::{self, Descriptors, EpollReader, ThreadWait};
use super::queue_map::{QueueMap, QueueName};
use super::reporter::Reporter;
use super::steer::Steerer;
use super::target::ProcessFinder;
use crate::counters::busy_poll_rx_packets;
use crate::descriptors::EpollParams;
use crate::error::Error;
use crate::host::identity::{ProcessIdentity, network_namespace};
use crate::host::net_namespace::NetNamespace;
use crate::law::MachineCosts;

/// How often the laws are asked.
pub(super) const STEP: Duration = Duration::from_millis(50);
/// How often processes, instances and sockets are looked for, unless that takes long.
const SCAN: Duration = Duration::from_millis(250);
/// Looking may take this part of the time: one in 50.
const SCAN_COST: u32 = 50;
/// How long an instance that had connections of several queues is left alone.
const PAUSE_OF_INSTANCE: Duration = Duration::from_secs(30);
/// How long a queue that can't be used is left alone.
const PAUSE_OF_QUEUE: Duration = Duration::from_secs(5);
/// How many scans in a row must find an instance's connections on one queue.
const AGREEING_SCANS: u32 = 2;
/// More threads of a process are not looked at.
const MOST_THREADS: usize = 128;

/// An instance of the target.
struct Known {
    instance: Instance,
    name: InstanceName,
    /// The queue it was on in the last scans, and in how many of them.
    agreeing: Option<(QueueName, u32)>,
    /// The queue it is attached to.
    attached: Option<QueueName>,
    paused_until: Option<Instant>,
    /// Why it is left alone, as it was reported.
    said: Option<String>,
}

pub(super) struct Attacher {
    config: AttachConfig,
    finder: ProcessFinder,
    costs: MachineCosts,
    namespace: u64,
    reader: EpollReader,
    counter: PacketCounter,
    queue_map: QueueMap,
    instances: BTreeMap<InstanceKey, Known>,
    queues: BTreeMap<QueueName, HeldQueue>,
    refused: BTreeMap<QueueName, Instant>,
    foreign: BTreeSet<u32>,
    polled: u64,
    drops: BTreeMap<String, u64>,
    steerer: Steerer,
    pub(super) processes: usize,
    sender: Sender<AttachEvent>,
    receiver: Receiver<AttachEvent>,
    pub(super) reporter: Reporter,
    next_scan: Instant,
}

impl Attacher {
    /// In the network namespace of the target.
    pub(super) fn new(
        config: AttachConfig,
        finder: ProcessFinder,
        reporter: Reporter,
    ) -> Result<Self, Error> {
        let (sender, receiver) = std::sync::mpsc::channel();
        Ok(Self {
            costs: MachineCosts::measure(),
            namespace: network_namespace(),
            reader: EpollReader::new().map_err(Error::kernel("open a socket"))?,
            counter: PacketCounter::open().map_err(Error::kernel("use netdev netlink"))?,
            queue_map: QueueMap::read()?,
            instances: BTreeMap::new(),
            queues: BTreeMap::new(),
            refused: BTreeMap::new(),
            foreign: BTreeSet::new(),
            polled: busy_poll_rx_packets().unwrap_or(0),
            drops: BTreeMap::new(),
            steerer: Steerer::default(),
            processes: 0,
            sender,
            receiver,
            reporter,
            next_scan: Instant::now(),
            config,
            finder,
        })
    }

    /// One turn of the loop. Returns whether the target can still have processes.
    pub(super) fn turn(&mut self) -> bool {
        let now = Instant::now();
        let mut goes_on = true;
        if now >= self.next_scan {
            goes_on = self.scan();
            self.next_scan = Instant::now() + SCAN.max(now.elapsed() * SCAN_COST);
        }
        self.step();
        let events: Vec<AttachEvent> = self.receiver.try_iter().collect();
        for event in events {
            // A link that was reopened has other NAPIs.
            if matches!(&event, AttachEvent::Queue { change: crate::supervise::Change::LinkUp, .. }) {
                self.forget_queues();
            }
            self.reporter.event(&event);
        }
        if !goes_on {
            self.reporter.event(&AttachEvent::TargetEnded);
        }
        goes_on
    }

    fn say(&self, event: AttachEvent) {
        // Both ends are here.
        let _ = self.sender.send(event);
    }

    fn forget_queues(&mut self) {
        if let Ok(map) = QueueMap::read() {
            self.queue_map = map;
        }
        for (name, queue) in &mut self.queues {
            let interface = self.queue_map.interface(name);
            let found = interface.and_then(|it| it.queues.iter().find(|it| it.index == name.queue));
            queue.meter.set_kernel_thread(found.and_then(|queue| queue.napi.as_ref()?.pid));
        }
    }

    /// Looks for processes, instances and sockets. Returns whether the target can still have processes.
    fn scan(&mut self) -> bool {
        let pids = self.finder.processes();
        self.processes = pids.len();
        let mut present = BTreeSet::new();
        for pid in &pids {
            let Some(identity) = ProcessIdentity::of(*pid) else { continue };
            if !self.is_in_namespace(*pid) {
                continue;
            }
            // It may have ended. What else prevents reading was found before.
            let Ok(descriptors) = Descriptors::read(*pid) else { continue };
            for &descriptor in &descriptors.epolls {
                let key = (identity.clone(), descriptor);
                present.insert(key.clone());
                self.look(key, &descriptors);
            }
        }
        let gone: Vec<InstanceKey> =
            self.instances.keys().filter(|key| !present.contains(*key)).cloned().collect();
        for key in gone {
            let reason = if key.0.is_alive() { "it was closed" } else { "its process has ended" };
            self.leave(&key, reason);
            self.instances.remove(&key);
        }
        self.queues.retain(|_, queue| !queue.instances.is_empty());
        if self.config.steer {
            let epolls: Vec<InstanceKey> = self.instances.keys().cloned().collect();
            let only = self.config.interface.as_deref();
            let events = self.steerer.steer(&epolls, &self.reader, only, &self.config.journals);
            events.into_iter().for_each(|event| self.say(event));
        }
        self.watch_threads();
        !pids.is_empty() || self.finder.may_come_back()
    }

    fn is_in_namespace(&mut self, pid: u32) -> bool {
        let inode = NetNamespace::of_process(pid).map(|namespace| namespace.inode());
        let same = inode.is_ok_and(|inode| inode == self.namespace);
        if !same && self.foreign.insert(pid) && ProcessIdentity::of(pid).is_some() {
            let reason = "it is in another network namespace than the target's first process".to_owned();
            self.say(AttachEvent::ProcessLeftAlone { pid, reason });
        }
        same
    }

    fn look(&mut self, key: InstanceKey, descriptors: &Descriptors) {
        let (process, descriptor) = key.clone();
        let known = self.instances.entry(key.clone()).or_insert_with(|| Known {
            name: InstanceName { pid: process.pid, process: process::name(process.pid), descriptor },
            instance: Instance::new(process, descriptor),
            agreeing: None,
            attached: None,
            paused_until: None,
            said: None,
        });
        // It may have been closed.
        if known.instance.look(&self.reader).is_err() {
            return;
        }
        if known.instance.has_unknown_napi(&self.queue_map)
            && let Ok(map) = QueueMap::read()
        {
            self.queue_map = map;
        }
        let holds = known.instance.holds(&self.queue_map);
        let attached = known.attached.clone();
        match (holds, attached) {
            (Holds::Nothing, _) => {}
            (Holds::One(queue), Some(attached)) if queue == attached => {}
            (Holds::One(queue), Some(_)) => self.leave(&key, &format!("its connections are now on {queue}")),
            (Holds::One(queue), None) => self.consider(&key, queue, descriptors),
            (Holds::Several(queues), attached) => {
                let each: Vec<String> =
                    queues.iter().map(|(queue, count)| format!("{count} of {queue}")).collect();
                let reason = format!("it holds connections of several queues ({})", each.join(", "));
                known.paused_until = Some(Instant::now() + PAUSE_OF_INSTANCE);
                match attached {
                    Some(_) => self.leave(&key, &reason),
                    None => self.leave_alone(&key, "it holds connections of several queues", &reason),
                }
            }
        }
    }

    /// Attaches an instance whose connections are on one queue, if nothing speaks against it.
    fn consider(&mut self, key: &InstanceKey, queue: QueueName, descriptors: &Descriptors) {
        let now = Instant::now();
        let Some(known) = self.instances.get_mut(key) else { return };
        let before =
            known.agreeing.as_ref().filter(|(other, _)| *other == queue).map_or(0, |(_, count)| *count);
        known.agreeing = Some((queue.clone(), before + 1));
        let paused = known.paused_until.is_some_and(|end| now < end)
            || self.refused.get(&queue).is_some_and(|since| now < *since + PAUSE_OF_QUEUE);
        if before + 1 < AGREEING_SCANS || paused {
            return;
        }
        if self.config.interface.as_ref().is_some_and(|only| *only != queue.interface) {
            let reason = format!("its connections come from {queue}");
            return self.leave_alone(key, &reason, &reason);
        }
        match known.instance.params() {
            Ok(params) if params == EpollParams::default() => {}
            Ok(_) => {
                let reason = "it busy-polls already, as its program has set it";
                return self.leave_alone(key, reason, reason);
            }
            Err(error) => return self.leave_alone(key, "can't be read", &error.to_string()),
        }
        if is_nested(&self.reader, key.0.pid, key.1, &descriptors.epolls) {
            let reason = "it is in another epoll instance, whose wait never polls";
            return self.leave_alone(key, reason, reason);
        }
        self.attach(key, queue);
    }

    fn attach(&mut self, key: &InstanceKey, queue: QueueName) {
        if !self.queues.contains_key(&queue) {
            let (budget, journals) = (self.config.latency_budget, &self.config.journals);
            match HeldQueue::take(&queue, budget, self.costs, journals, self.sender.clone()) {
                Ok(held) => drop(self.queues.insert(queue.clone(), held)),
                Err(error) => {
                    if self.refused.insert(queue.clone(), Instant::now()).is_none() {
                        self.say(AttachEvent::QueueRefused { queue, reason: error.to_string() });
                    }
                    return;
                }
            }
            self.forget_queues();
        }
        let (Some(held), Some(known)) = (self.queues.get_mut(&queue), self.instances.get_mut(key)) else {
            return;
        };
        match held.attach(key.clone(), known.name.clone()) {
            Ok(()) => {
                known.attached = Some(queue.clone());
                known.said = None;
                self.say(AttachEvent::Attached { instance: self.instances[key].name.clone(), queue });
            }
            // It ended meanwhile, or says why.
            Err(error) => self.leave_alone(key, "can't be attached", &error.to_string()),
        }
    }

    /// Reports once that an instance is left alone; again if the kind of reason is another one.
    fn leave_alone(&mut self, key: &InstanceKey, kind: &str, reason: &str) {
        let Some(known) = self.instances.get_mut(key) else { return };
        if known.said.as_deref() != Some(kind) {
            known.said = Some(kind.to_owned());
            let instance = known.name.clone();
            self.say(AttachEvent::LeftAlone { instance, reason: reason.to_owned() });
        }
    }

    fn leave(&mut self, key: &InstanceKey, reason: &str) {
        let Some(known) = self.instances.get_mut(key) else { return };
        known.agreeing = None;
        let Some(queue) = known.attached.take() else { return };
        let events = self.queues.get_mut(&queue).map(|held| held.leave(key, reason)).unwrap_or_default();
        events.into_iter().for_each(|event| self.say(event));
    }

    /// Notes which threads wait on the attached instances.
    fn watch_threads(&mut self) {
        let pids: BTreeSet<u32> = self
            .queues
            .values()
            .flat_map(|queue| queue.instances.keys().map(|(process, _)| process.pid))
            .collect();
        for pid in pids {
            let mut threads = process::threads(pid).unwrap_or_default();
            threads.truncate(MOST_THREADS);
            let waits: Vec<(i32, ThreadWait)> = threads
                .iter()
                .filter_map(|thread| Some((*thread, process::thread_wait(pid, *thread).ok()?)))
                .collect();
            for ((process, descriptor), instance) in
                self.queues.values_mut().flat_map(|queue| &mut queue.instances)
            {
                if process.pid != pid {
                    continue;
                }
                let on_it = waits.iter().filter(|(_, wait)| *wait == ThreadWait::Epoll(*descriptor));
                instance.threads.extend(on_it.map(|(thread, _)| *thread));
                instance.threads.retain(|thread| threads.contains(thread));
                instance.candidates.clone_from(&threads);
            }
        }
    }

    /// Measures each queue, and lets its law choose.
    fn step(&mut self) {
        let polled = busy_poll_rx_packets().unwrap_or(self.polled);
        let newly_polled = polled.saturating_sub(std::mem::replace(&mut self.polled, polled));
        let names: Vec<QueueName> = self.queues.keys().cloned().collect();
        let mut packets = BTreeMap::new();
        self.counter.keep(&names);
        let lost = self.lost_packets(&names);
        for name in &names {
            let sharing = names.iter().filter(|other| other.ifindex == name.ifindex).count();
            packets.insert(name.clone(), self.counter.read(name, sharing as u64));
        }
        let share = self.reporter.polled_share(newly_polled, &packets);
        let mut loads: Vec<(QueueName, Load)> = Vec::new();
        let mut events = Vec::new();
        for (name, queue) in &mut self.queues {
            let count = packets.get(name).copied().unwrap_or(0);
            let lost = lost.get(&name.interface).copied().unwrap_or(0);
            let (load, said) = queue.step(count, share, lost);
            loads.push((name.clone(), load));
            events.extend(said);
        }
        events.into_iter().for_each(|event| self.say(event));
        self.reporter.loads(&loads, newly_polled);
        let instances = self.instances.len();
        self.reporter.publish(
            self.processes,
            instances,
            &self.queues,
            &self.queue_map,
            &self.config.journals,
        );
    }

    /// The packets that each interface of the queues has lost since the last step. Which of its queues lost them is not
    /// known, so that all of them are told.
    fn lost_packets(&mut self, names: &[QueueName]) -> BTreeMap<String, u64> {
        let interfaces: BTreeSet<&String> = names.iter().map(|name| &name.interface).collect();
        let now: BTreeMap<String, u64> =
            interfaces.into_iter().map(|interface| (interface.clone(), drops(interface))).collect();
        let since = |(interface, now): (&String, &u64)| {
            // An interface that is new here begins at 0.
            let before = self.drops.get(interface).unwrap_or(now);
            (interface.clone(), now.saturating_sub(*before))
        };
        let lost = now.iter().map(since).collect();
        self.drops = now;
        lost
    }

    /// Gives back all queues and epoll instances.
    pub(super) fn detach(mut self) {
        // First: the last journal that is removed removes the folder.
        self.reporter.remove_files();
        self.queues.clear();
        self.steerer = Steerer::default();
        let events: Vec<AttachEvent> = self.receiver.try_iter().collect();
        events.iter().for_each(|event| self.reporter.event(event));
    }
}
