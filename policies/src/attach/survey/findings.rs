//! What is seen of a server: its processes, their epoll instances, the queues of their sockets. And
//! what it means: what prevents kernel polling from outside, and what would fix it.

use std::io;

use serde::Serialize;

use super::waits::{ThreadWaits, Waits};
use crate::attach::instance::{QueueMap, QueueName};
use crate::epoll_params::EpollParams;
use crate::explain::{Finding, Severity};
use crate::host::machine::{has_net_admin, in_initial_user_namespace};
use crate::journal::JournalSummary;

#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ObservedProcess {
    pub pid: u32,
    /// Its name, of at most 15 bytes (`/proc/PID/comm`).
    pub name: String,
    pub rings: usize,
    pub instances: Vec<ObservedInstance>,
}

#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ObservedInstance {
    pub descriptor: i32,
    pub sockets: usize,
    /// The queues that their packets come from, with the number of sockets of each.
    pub queues: Vec<(QueueName, usize)>,
    /// Its parameters; `None` before Linux 6.9.
    pub params: Option<EpollParams>,
    pub threads: Vec<i32>,
    pub fitness: Fitness,
}

/// Whether an epoll instance can be attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Fitness {
    /// All sockets with packets from a queue have the same one.
    Aligned,
    /// No packets come from a queue: there are no connections, or only local ones.
    NoQueue,
    /// Packets come from several queues. Its wait would poll one of them, and the others would wait
    /// for up to the suspend timeout.
    SeveralQueues,
    /// It is in another epoll instance, whose wait never polls.
    Nested,
    PollsItself,
    Unreadable,
}

/// What could not be looked at, and why.
#[derive(Debug)]
pub(super) struct AccessError {
    pub(super) pid: u32,
    /// The step that failed, for example `read the descriptors`: "of process PID" follows.
    pub(super) step: &'static str,
    pub(super) error: io::Error,
}

#[derive(Debug)]
pub(super) struct Survey {
    pub(super) processes: Vec<ObservedProcess>,
    /// The first thing that could not be looked at.
    pub(super) access: Option<AccessError>,
    pub(super) waits: Waits,
    pub(super) queues: QueueMap,
    /// Of other processes that hold queues.
    pub(super) holders: Vec<JournalSummary>,
    /// Whether the server is in another network namespace than this process.
    pub(super) other_namespace: bool,
}

pub(super) fn explain(survey: &Survey, interface: Option<&str>) -> Vec<Finding> {
    let mut findings = Findings(Vec::new());
    findings.check_kernel(survey);
    findings.check_access(survey);
    findings.check_waits(survey);
    findings.check_restless(survey);
    findings.check_instances(survey, interface);
    findings.check_queues(survey);
    findings.0
}

struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, severity: Severity, summary: String, remedy: Option<&str>) {
        self.0.push(Finding { severity, summary, remedy: remedy.map(str::to_owned) });
    }

    fn prevents(&mut self, summary: impl Into<String>, remedy: &str) {
        self.add(Severity::Prevents, summary.into(), Some(remedy));
    }

    fn degrades(&mut self, summary: impl Into<String>, remedy: &str) {
        self.add(Severity::Degrades, summary.into(), Some(remedy));
    }

    fn ok(&mut self, summary: impl Into<String>) {
        self.add(Severity::Ok, summary.into(), None);
    }

    fn check_kernel(&mut self, survey: &Survey) {
        let instances = || survey.processes.iter().flat_map(|process| &process.instances);
        let unreadable = instances().any(|instance| instance.fitness == Fitness::Unreadable);
        if unreadable && survey.access.is_none() {
            self.prevents(
                "This kernel has no parameters of epoll instances, which hold whether a wait polls; they need Linux 6.9.",
                "install Linux 6.13 or later",
            );
        }
        for interface in &survey.queues.interfaces {
            let used = instances()
                .flat_map(|instance| &instance.queues)
                .any(|(queue, _)| queue.interface == interface.name);
            let suspends = interface.queues.iter().filter_map(|queue| queue.napi.as_ref());
            if used && !suspends.clone().any(|napi| napi.irq_suspend_timeout.is_some()) {
                self.prevents(
                    format!(
                        "The queues of {} have no suspend timeout: this kernel or driver has no settings of NAPIs.",
                        interface.name
                    ),
                    "install Linux 6.13 or later; `policies explain` says more about the interface",
                );
            }
        }
    }

    fn check_access(&mut self, survey: &Survey) {
        if let Some(AccessError { pid, step, error }) = &survey.access {
            let denied = error.kind() == io::ErrorKind::PermissionDenied;
            self.prevents(
                format!("Could not {step} of process {pid}: {error}."),
                if denied {
                    "run the command as root, or with CAP_SYS_PTRACE (and kernel.yama.ptrace_scope below 3)"
                } else {
                    "see the error; Linux 5.6 or later is needed (pidfd_getfd)"
                },
            );
        }
        if survey.other_namespace {
            self.ok("The server has its own network namespace; its interfaces are those meant here.");
        }
        if !in_initial_user_namespace() {
            self.prevents(
                "This process is in a user namespace. The kernel lets only the host's administrator set NAPIs.",
                "run the command on the host, outside of the container",
            );
        } else if !has_net_admin() {
            self.prevents(
                "This process may not set NAPIs.",
                "run the command as root, or with CAP_NET_ADMIN",
            );
        }
    }

    fn check_waits(&mut self, survey: &Survey) {
        let has_epoll = |process: &&ObservedProcess| !process.instances.is_empty();
        if survey.processes.is_empty() || survey.processes.iter().any(|process| has_epoll(&process)) {
            let with_rings = survey.processes.iter().find(|process| process.rings > 0);
            if let Some(process) = with_rings {
                self.degrades(
                    format!(
                        "Process {} ({}) also uses io_uring. What waits there is not attached to.",
                        process.pid, process.name
                    ),
                    "only the server itself can set its ring's NAPI polling (io_uring_register_napi)",
                );
            }
            return;
        }
        let seen = |count: fn(&ThreadWaits) -> u32| survey.waits.values().any(|waits| count(waits) > 0);
        if survey.processes.iter().any(|process| process.rings > 0) || seen(|waits| waits.rings) {
            self.prevents(
                "The server waits in io_uring. A ring's NAPI polling can't be set from outside.",
                "use the server's epoll backend, if it has one, or set its own NAPI polling (io_uring_register_napi)",
            );
        } else if seen(|waits| waits.polls) {
            self.prevents(
                "The server waits in poll or select, which can't suspend interrupts.",
                "use the server's epoll backend, if it has one",
            );
        } else {
            self.prevents(
                "The server has no epoll instance: its threads block in reads, or it is not a server.",
                "kernel polling needs a server that waits in epoll",
            );
        }
    }

    /// Whether their waits have a timeout of 0 shows when they are attached: the watchdog sees that
    /// busy polls receive nothing.
    fn check_restless(&mut self, survey: &Survey) {
        for ((pid, thread), _) in survey.waits.iter().filter(|(_, waits)| waits.never_sleeps()) {
            self.degrades(
                format!(
                    "Thread {thread} of process {pid} never sleeps: it is overloaded, or its waits have a timeout of 0 and \
                     return before they poll the queue."
                ),
                "turn off the server's busy polling, if it has such a setting",
            );
        }
    }

    fn check_instances(&mut self, survey: &Survey, interface: Option<&str>) {
        for process in &survey.processes {
            for instance in &process.instances {
                let name = format!(
                    "Process {} ({}), epoll instance {}",
                    process.pid, process.name, instance.descriptor
                );
                let queues = || {
                    let each = instance.queues.iter().map(|(queue, count)| format!("{count} of {queue}"));
                    each.collect::<Vec<_>>().join(", ")
                };
                match instance.fitness {
                    Fitness::Aligned => {
                        let elsewhere = |queue: &str| interface.is_some_and(|only| only != queue);
                        match instance.queues.first() {
                            Some((queue, _)) if elsewhere(&queue.interface) => self.ok(format!(
                                "{name}: its connections come from {queue}, not from the interface that was named."
                            )),
                            _ => self.ok(format!("{name}: all connections from one queue ({}).", queues())),
                        }
                    }
                    Fitness::SeveralQueues => self.degrades(
                        format!(
                            "{name} holds connections of several queues ({}). It is left alone: packets of all but one \
                             queue would wait for up to the suspend timeout.",
                            queues()
                        ),
                        ALIGNMENT,
                    ),
                    Fitness::Nested => self.degrades(
                        format!("{name} is in another epoll instance, whose wait never polls the queue. It is left alone."),
                        "nothing from outside; the server has to wait on this instance itself",
                    ),
                    Fitness::PollsItself => {
                        self.ok(format!("{name} busy-polls already, as its program has set it. It is left alone."));
                    }
                    Fitness::NoQueue | Fitness::Unreadable => {}
                }
            }
        }
        let mut instances = survey.processes.iter().flat_map(|process| &process.instances).peekable();
        if instances.peek().is_some() && instances.all(|instance| instance.fitness == Fitness::NoQueue) {
            self.degrades(
                "No connection comes through a queue at present: there is none, or all are local (loopback, Unix sockets).",
                "observe the server under load; `policies attach` waits for connections",
            );
        }
    }

    fn check_queues(&mut self, survey: &Survey) {
        let mut shared = std::collections::BTreeMap::new();
        let instances = survey.processes.iter().flat_map(|process| &process.instances);
        for instance in instances.filter(|instance| instance.fitness == Fitness::Aligned) {
            for (queue, _) in &instance.queues {
                *shared.entry(queue.clone()).or_insert(0) += 1;
            }
        }
        for (queue, count) in &shared {
            for holder in survey
                .holders
                .iter()
                .filter(|holder| holder.interface == queue.interface && holder.queues.contains(queue.queue))
            {
                self.prevents(
                    format!("{queue} is in use by process {} ({}).", holder.pid, holder.policy),
                    "stop that process, or attach to servers on other queues",
                );
            }
            if *count > 1 {
                self.degrades(
                    format!(
                        "{count} epoll instances share {queue}: where one finds the queue empty, it resumes the interrupt for \
                         all of them. Kernel polling saves less then."
                    ),
                    "give the interface as many queues as the server has threads (ethtool -L), or the server as many threads \
                     as there are queues",
                );
            }
        }
    }
}

/// What would give each epoll instance of a server the connections of one queue.
const ALIGNMENT: &str = "reduce the queues to 1 (ethtool -L INTERFACE combined 1); or steer the port of a server with one \
                         thread to one queue (ethtool -N INTERFACE flow-type tcp4 dst-port PORT action QUEUE), start \
                         memcached with -N and as many threads as queues, or give nginx (`reuseport`) and haproxy \
                         (`shards by-thread`) a listener for each queue and run `policies attach --steer`";
