//! Looks at a server without changing anything: its epoll instances, and the queues that their
//! sockets use.

mod findings;
mod waits;

use std::collections::BTreeSet;
use std::io;
use std::thread;
use std::time::Duration;

use serde::Serialize;

use crate::attach::instance::QueueMap;
use crate::attach::instance::{Holds, Instance, is_nested};
use crate::attach::process::{self, Descriptors, EpollReader};
use crate::attach::target::{ProcessFinder, Target};
use crate::epoll_params::EpollParams;
use crate::error::Error;
use crate::explain::{Finding, Severity};
use crate::host::net_namespace::NetNamespace;
use crate::host::process::{ProcessIdentity, network_namespace};
use crate::journal::{JournalDir, summaries};
use findings::{AccessError, Survey, explain};
use waits::Waits;

pub use findings::{Fitness, ObservedInstance, ObservedProcess};

/// How often the sockets are looked at: a few looks see more sockets than one.
const LOOKS: u32 = 8;

/// A server, and whether kernel polling can be had for it from outside.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Observation {
    /// What was asked for, as `unit nginx`.
    pub target: String,
    pub processes: Vec<ObservedProcess>,
    /// What follows, in the order in which to fix it.
    pub findings: Vec<Finding>,
}

/// Looks at a server for about half a second. Changes nothing. `interface` restricts it to the
/// queues of one interface.
///
/// # Errors
/// [`Error::NoTarget`] if there is no such process, [`Error::NoInterface`] if its network namespace
/// has no such interface, [`Error::Kernel`] if its network namespace can't be entered,
/// [`Error::Journal`].
pub fn observe(
    target: &Target,
    interface: Option<&str>,
    journals: &JournalDir,
) -> Result<Observation, Error> {
    let pids = ProcessFinder::new(target)?.processes();
    let Some(first) = pids.first() else {
        let reason = "it has no processes".to_owned();
        return Err(Error::NoTarget { target: target.to_string(), reason });
    };
    let namespace = NetNamespace::of_process(*first);
    let survey = match namespace {
        Err(error) => {
            Survey::inaccessible(AccessError { pid: *first, step: "open the network namespace", error })
        }
        Ok(namespace) => {
            let step = "read the waits of the threads";
            let (waits, access) = match waits::sample(pids.iter().copied()) {
                Ok(waits) => (waits, None),
                Err(error) => (Waits::new(), Some(AccessError { pid: *first, step, error })),
            };
            let other_namespace = namespace.inode() != network_namespace();
            let survey = namespace
                .run(|| Survey::of(&pids, interface, journals))
                .map_err(Error::kernel(format!("enter the network namespace of process {first}")))??;
            Survey { waits, other_namespace, access: survey.access.or(access), ..survey }
        }
    };
    let findings = explain(&survey, interface);
    let mut processes = survey.processes;
    for process in &mut processes {
        for instance in &mut process.instances {
            instance.threads = threads_on(&survey.waits, process.pid, instance.descriptor);
        }
    }
    Ok(Observation { target: target.to_string(), processes, findings })
}

impl Observation {
    /// Whether something other than the lack of connections prevents attaching.
    pub fn is_prevented(&self) -> bool {
        self.findings.iter().any(|finding| finding.severity == Severity::Prevents)
    }

    pub fn instances(&self) -> impl Iterator<Item = &ObservedInstance> {
        self.processes.iter().flat_map(|process| &process.instances)
    }

    pub fn verdict(&self) -> String {
        let aligned = self.instances().filter(|instance| instance.fitness == Fitness::Aligned).count();
        match (self.is_prevented(), aligned) {
            (true, _) => format!("Kernel polling can't be had for {}:", self.target),
            (false, 0) => format!("Nothing of {} can be attached to at present:", self.target),
            (false, 1) => format!("Kernel polling can be had for {}, on one epoll instance:", self.target),
            (false, count) => {
                format!("Kernel polling can be had for {}, on {count} epoll instances:", self.target)
            }
        }
    }
}

fn threads_on(waits: &Waits, pid: u32, descriptor: i32) -> Vec<i32> {
    let on_it = waits.iter().filter(|((of, _), waits)| *of == pid && waits.epolls.contains_key(&descriptor));
    on_it.map(|((_, thread), _)| *thread).collect()
}

impl Survey {
    fn inaccessible(access: AccessError) -> Self {
        Self {
            processes: Vec::new(),
            access: Some(access),
            waits: Waits::new(),
            queues: QueueMap::default(),
            holders: Vec::new(),
            other_namespace: false,
        }
    }

    /// In the network namespace of the processes.
    fn of(pids: &BTreeSet<u32>, interface: Option<&str>, journals: &JournalDir) -> Result<Self, Error> {
        if let Some(name) = interface {
            crate::host::interface(name)?;
        }
        let queues = QueueMap::read()?;
        let (mut holders, _) = summaries(journals)?;
        holders.retain(|holder| holder.is_held() && holder.pid != std::process::id());
        let reader = EpollReader::new().map_err(Error::kernel("open a socket"))?;
        let mut survey = Self {
            processes: Vec::new(),
            access: None,
            waits: Waits::new(),
            queues,
            holders,
            other_namespace: false,
        };
        for pid in pids {
            survey.add_process(*pid, &reader);
        }
        Ok(survey)
    }

    fn add_process(&mut self, pid: u32, reader: &EpollReader) {
        let Some(identity) = ProcessIdentity::of(pid) else { return };
        let descriptors = match Descriptors::read(pid) {
            Ok(descriptors) => descriptors,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => {
                self.access.get_or_insert(AccessError { pid, step: "read the descriptors", error });
                return;
            }
        };
        let mut instances = Vec::new();
        for &descriptor in &descriptors.epolls {
            let mut instance = Instance::new(identity.clone(), descriptor);
            let params = match instance.params() {
                Ok(params) => Some(params),
                Err(error) => {
                    if error.raw_os_error() != Some(libc::ENOTTY) && error.raw_os_error() != Some(libc::EBADF)
                    {
                        let step = "duplicate (pidfd_getfd) the epoll instances";
                        self.access.get_or_insert(AccessError { pid, step, error });
                    }
                    None
                }
            };
            for _ in 0..LOOKS {
                // It may have been closed.
                if instance.read_sockets(reader).is_err() {
                    break;
                }
                thread::sleep(Duration::from_millis(1));
            }
            let nested = is_nested(reader, pid, descriptor, &descriptors.epolls);
            instances.push(self.describe(&instance, params, nested));
        }
        self.processes.push(ObservedProcess {
            pid,
            name: process::name(pid),
            rings: descriptors.rings,
            instances,
        });
    }

    fn describe(&self, instance: &Instance, params: Option<EpollParams>, nested: bool) -> ObservedInstance {
        let holds = instance.holds(&self.queues);
        let (sockets, known) = instance.counts();
        let fitness = match (&holds, params) {
            (_, None) => Fitness::Unreadable,
            (_, Some(params)) if params != EpollParams::default() => Fitness::PollsItself,
            (Holds::Nothing, _) => Fitness::NoQueue,
            _ if nested => Fitness::Nested,
            (Holds::One(_), _) => Fitness::Aligned,
            (Holds::Several(_), _) => Fitness::SeveralQueues,
        };
        let queues = match holds {
            Holds::Nothing => Vec::new(),
            Holds::One(queue) => vec![(queue, known)],
            Holds::Several(queues) => queues,
        };
        ObservedInstance {
            descriptor: instance.descriptor,
            sockets,
            queues,
            params,
            threads: Vec::new(),
            fitness,
        }
    }
}
