//! The loop of an attachment: finds instances, keeps them attached, and runs the controllers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use super::event::{AttachEvent, InstanceName};
use super::held_queue::{HeldQueue, InstanceKey};
use super::instance::{Holds, Instance, is_nested};
use super::instance::{QueueMap, QueueName};
use super::load::{Load, Traffic};
use super::process::{self, Descriptors, EpollReader, ThreadWait};
use super::reporter::Reporter;
use super::steer::Steerer;
use super::target::{AttachConfig, ProcessFinder};
use crate::epoll_params::EpollParams;
use crate::error::Error;
use crate::host::net_namespace::NetNamespace;
use crate::host::process::{ProcessIdentity, network_namespace};
use crate::supervise::Change;

/// How often the controllers are asked.
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

struct Known {
    instance: Instance,
    name: InstanceName,
    /// The queue that its connections were on in the last scans, and in how many of them.
    seen_on: Option<(QueueName, u32)>,
    attached: Option<QueueName>,
    paused_until: Option<Instant>,
    /// Why it is left alone, as it was reported.
    reported: Option<String>,
}

/// The target's processes, of which those in one network namespace are attached.
struct TargetProcesses {
    finder: ProcessFinder,
    namespace: u64,
    /// How many there were in the last scan.
    count: usize,
    /// Those in other namespaces, which were reported.
    foreign: BTreeSet<u32>,
}

/// The queues of the network namespace, and those of them that this process holds.
struct Queues {
    map: QueueMap,
    held: BTreeMap<QueueName, HeldQueue>,
    /// Those that could not be used, and since when.
    refused: BTreeMap<QueueName, Instant>,
}

impl Queues {
    fn reread_map(&mut self) {
        if let Ok(map) = QueueMap::read() {
            self.map = map;
        }
    }

    /// Reads which NAPIs the queues have now, and what else of the card the controller has to know.
    fn reread_napis(&mut self) {
        self.reread_map();
        for (name, queue) in &mut self.held {
            if let Some(interface) = self.map.interface(name) {
                queue.reread(interface);
            }
        }
    }
}

/// Events on their way to the reporter. Supervisors of queues send them from their threads.
struct Events {
    sender: Sender<AttachEvent>,
    receiver: Receiver<AttachEvent>,
}

impl Events {
    fn send(&self, event: AttachEvent) {
        // Both ends are here.
        let _ = self.sender.send(event);
    }

    fn send_all(&self, events: impl IntoIterator<Item = AttachEvent>) {
        events.into_iter().for_each(|event| self.send(event));
    }

    fn take(&self) -> Vec<AttachEvent> {
        self.receiver.try_iter().collect()
    }
}

pub(super) struct Attacher {
    config: AttachConfig,
    target: TargetProcesses,
    epolls: EpollReader,
    instances: BTreeMap<InstanceKey, Known>,
    queues: Queues,
    traffic: Traffic,
    steerer: Steerer,
    events: Events,
    reporter: Reporter,
    next_scan: Instant,
}

impl Attacher {
    /// In the network namespace of the target.
    pub(super) fn new(
        config: AttachConfig,
        finder: ProcessFinder,
        reporter: Reporter,
    ) -> Result<Self, Error> {
        let (sender, receiver) = channel();
        let namespace = network_namespace();
        Ok(Self {
            config,
            target: TargetProcesses { finder, namespace, count: 0, foreign: BTreeSet::new() },
            epolls: EpollReader::new().map_err(Error::kernel("open a socket"))?,
            instances: BTreeMap::new(),
            traffic: Traffic::open().map_err(Error::kernel("use netdev netlink"))?,
            queues: Queues { map: QueueMap::read()?, held: BTreeMap::new(), refused: BTreeMap::new() },
            steerer: Steerer::default(),
            events: Events { sender, receiver },
            reporter,
            next_scan: Instant::now(),
        })
    }

    /// One turn of the loop. Returns whether the target can still have processes.
    pub(super) fn turn(&mut self) -> bool {
        let now = Instant::now();
        let mut goes_on = true;
        if now >= self.next_scan {
            goes_on = self.scan_target();
            self.next_scan = Instant::now() + SCAN.max(now.elapsed() * SCAN_COST);
        }
        self.run_controllers();
        for event in self.events.take() {
            // A link that was reopened has other NAPIs.
            if matches!(&event, AttachEvent::Queue { change: Change::LinkUp, .. }) {
                self.queues.reread_napis();
            }
            self.reporter.event(&event);
        }
        if !goes_on {
            self.reporter.event(&AttachEvent::TargetEnded);
        }
        goes_on
    }

    /// Looks for processes, instances and sockets. Returns whether the target can still have
    /// processes.
    fn scan_target(&mut self) -> bool {
        let pids = self.target.finder.processes();
        self.target.count = pids.len();
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
                self.follow_instance(key, &descriptors);
            }
        }
        let gone: Vec<InstanceKey> =
            self.instances.keys().filter(|key| !present.contains(*key)).cloned().collect();
        for key in gone {
            let reason = if key.0.is_alive() { "it was closed" } else { "its process has ended" };
            self.detach_instance(&key, reason);
            self.instances.remove(&key);
        }
        self.queues.held.retain(|_, queue| !queue.instances.is_empty());
        if self.config.steer {
            let epolls: Vec<InstanceKey> = self.instances.keys().cloned().collect();
            let only = self.config.interface.as_deref();
            let events = self.steerer.steer(&epolls, &self.epolls, only, &self.config.journals);
            self.events.send_all(events);
        }
        self.note_waiting_threads();
        !pids.is_empty() || self.target.finder.may_come_back()
    }

    fn is_in_namespace(&mut self, pid: u32) -> bool {
        let inode = NetNamespace::of_process(pid).map(|namespace| namespace.inode());
        let same = inode.is_ok_and(|inode| inode == self.target.namespace);
        if !same && self.target.foreign.insert(pid) && ProcessIdentity::of(pid).is_some() {
            let reason = "it is in another network namespace than the target's first process".to_owned();
            self.events.send(AttachEvent::ProcessLeftAlone { pid, reason });
        }
        same
    }

    /// Reads which queues an instance's connections are on now, and attaches or detaches it
    /// accordingly.
    fn follow_instance(&mut self, key: InstanceKey, descriptors: &Descriptors) {
        let (process, descriptor) = key.clone();
        let known = self.instances.entry(key.clone()).or_insert_with(|| Known {
            name: InstanceName { pid: process.pid, process: process::name(process.pid), descriptor },
            instance: Instance::new(process, descriptor),
            seen_on: None,
            attached: None,
            paused_until: None,
            reported: None,
        });
        // It may have been closed.
        if known.instance.read_sockets(&self.epolls).is_err() {
            return;
        }
        if known.instance.has_unknown_napi(&self.queues.map) {
            self.queues.reread_map();
        }
        let holds = known.instance.holds(&self.queues.map);
        let attached = known.attached.clone();
        match (holds, attached) {
            (Holds::Nothing, _) => {}
            (Holds::One(queue), Some(attached)) if queue == attached => {}
            (Holds::One(queue), Some(_)) => {
                self.detach_instance(&key, &format!("its connections are now on {queue}"));
            }
            (Holds::One(queue), None) => self.attach_if_suitable(&key, queue, descriptors),
            (Holds::Several(queues), attached) => {
                let each: Vec<String> =
                    queues.iter().map(|(queue, count)| format!("{count} of {queue}")).collect();
                let reason = format!("it holds connections of several queues ({})", each.join(", "));
                known.paused_until = Some(Instant::now() + PAUSE_OF_INSTANCE);
                match attached {
                    Some(_) => self.detach_instance(&key, &reason),
                    None => self.report_left_alone(&key, "it holds connections of several queues", &reason),
                }
            }
        }
    }

    /// Attaches an instance whose connections are on one queue, if nothing speaks against it.
    fn attach_if_suitable(&mut self, key: &InstanceKey, queue: QueueName, descriptors: &Descriptors) {
        let now = Instant::now();
        let Some(known) = self.instances.get_mut(key) else { return };
        let before =
            known.seen_on.as_ref().filter(|(other, _)| *other == queue).map_or(0, |(_, count)| *count);
        known.seen_on = Some((queue.clone(), before + 1));
        let paused = known.paused_until.is_some_and(|end| now < end)
            || self.queues.refused.get(&queue).is_some_and(|since| now < *since + PAUSE_OF_QUEUE);
        if before + 1 < AGREEING_SCANS || paused {
            return;
        }
        if self.config.interface.as_ref().is_some_and(|only| *only != queue.interface) {
            let reason = format!("its connections come from {queue}");
            return self.report_left_alone(key, &reason, &reason);
        }
        match known.instance.params() {
            Ok(params) if params == EpollParams::default() => {}
            Ok(_) => {
                let reason = "it busy-polls already, as its program has set it";
                return self.report_left_alone(key, reason, reason);
            }
            Err(error) => return self.report_left_alone(key, "can't be read", &error.to_string()),
        }
        if is_nested(&self.epolls, key.0.pid, key.1, &descriptors.epolls) {
            let reason = "it is in another epoll instance, whose wait never polls";
            return self.report_left_alone(key, reason, reason);
        }
        self.attach_instance(key, queue);
    }

    fn attach_instance(&mut self, key: &InstanceKey, queue: QueueName) {
        if !self.queues.held.contains_key(&queue) {
            match HeldQueue::take(&queue, &self.config, self.events.sender.clone()) {
                Ok(held) => drop(self.queues.held.insert(queue.clone(), held)),
                Err(error) => {
                    if self.queues.refused.insert(queue.clone(), Instant::now()).is_none() {
                        self.events.send(AttachEvent::QueueRefused { queue, reason: error.to_string() });
                    }
                    return;
                }
            }
            self.queues.reread_napis();
        }
        let (Some(held), Some(known)) = (self.queues.held.get_mut(&queue), self.instances.get_mut(key))
        else {
            return;
        };
        match held.attach(key.clone(), known.name.clone()) {
            Ok(()) => {
                known.attached = Some(queue.clone());
                known.reported = None;
                self.events.send(AttachEvent::Attached { instance: self.instances[key].name.clone(), queue });
            }
            // It ended meanwhile, or says why.
            Err(error) => self.report_left_alone(key, "can't be attached", &error.to_string()),
        }
    }

    /// Reports once that an instance is left alone; again if the kind of reason is another one.
    fn report_left_alone(&mut self, key: &InstanceKey, kind: &str, reason: &str) {
        let Some(known) = self.instances.get_mut(key) else { return };
        if known.reported.as_deref() != Some(kind) {
            known.reported = Some(kind.to_owned());
            let instance = known.name.clone();
            self.events.send(AttachEvent::LeftAlone { instance, reason: reason.to_owned() });
        }
    }

    fn detach_instance(&mut self, key: &InstanceKey, reason: &str) {
        let Some(known) = self.instances.get_mut(key) else { return };
        known.seen_on = None;
        let Some(queue) = known.attached.take() else { return };
        let events = self.queues.held.get_mut(&queue).map(|held| held.detach(key, reason));
        self.events.send_all(events.unwrap_or_default());
    }

    fn note_waiting_threads(&mut self) {
        let pids: BTreeSet<u32> = self
            .queues
            .held
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
                self.queues.held.values_mut().flat_map(|queue| &mut queue.instances)
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

    /// Measures each queue, and lets its controller choose.
    fn run_controllers(&mut self) {
        let names: Vec<QueueName> = self.queues.held.keys().cloned().collect();
        let traffic = self.traffic.measure(&names);
        let share = self.reporter.polled_share(traffic.busy_polled, &traffic.packets);
        let mut loads: Vec<(QueueName, Load)> = Vec::new();
        let mut events = Vec::new();
        for (name, queue) in &mut self.queues.held {
            let packets = traffic.packets.get(name).copied().unwrap_or(0);
            let lost = traffic.lost.get(&name.interface).copied().unwrap_or(0);
            let (load, changes) = queue.step(packets, share, lost);
            loads.push((name.clone(), load));
            events.extend(changes);
        }
        self.events.send_all(events);
        self.reporter.loads(&loads, traffic.busy_polled);
        self.reporter.publish(
            self.target.count,
            self.instances.len(),
            &self.queues.held,
            &self.queues.map,
            &self.config.journals,
        );
    }

    /// Gives back all queues and epoll instances.
    pub(super) fn detach_all(mut self) {
        // First: the last journal that is removed removes the folder.
        self.reporter.remove_files();
        self.queues.held.clear();
        self.steerer = Steerer::default();
        self.events.take().iter().for_each(|event| self.reporter.event(event));
    }
}
