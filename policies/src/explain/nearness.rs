//! What is far from a device: workers and interrupts on cores of other NUMA nodes.

use super::{Finding, FindingList, Severity};
use crate::host::{Cpus, HostFacts, Interface, Pid, RxQueue};
use crate::status::WorkerStatus;

/// An interface's device, and the cores of what receives for it.
struct Nearness<'a> {
    interface: &'a str,
    node: u32,
    /// The cores of that node.
    near: Cpus,
    allowed: Cpus,
    /// The running Lull workers: number, thread, and the cores on which it may run.
    workers: Vec<(usize, i32, Cpus)>,
    /// The queues' interrupts: queue, and the cores to which they go.
    interrupts: Vec<(u32, Cpus)>,
}

impl FindingList {
    /// Nothing on a machine with one node, or if the device belongs to none.
    pub(super) fn check_nearness(
        &mut self,
        interface: &Interface,
        host: &HostFacts,
        workers: Vec<WorkerStatus>,
    ) {
        let Some(node) = interface.numa_node else { return };
        let near = host.topology.node_cpus(Some(node));
        if near.is_empty() || host.online.iter().all(|core| near.contains(core)) {
            return;
        }
        let workers = workers.into_iter();
        let cores_of = |thread: i32| Cpus::of_thread(Some(Pid::from_raw(thread)?)).ok();
        let workers =
            workers.filter_map(|worker| Some((worker.worker, worker.thread, cores_of(worker.thread)?)));
        let interrupts = interface.queues.iter().filter_map(|queue| Some((queue.index, target(queue)?)));
        let nearness = Nearness {
            interface: &interface.name,
            node,
            near,
            allowed: host.allowed.clone(),
            workers: workers.collect(),
            interrupts: interrupts.collect(),
        };
        self.0.extend(nearness.findings());
    }
}

/// The cores to which a queue's interrupt goes. `None` if it has none.
fn target(queue: &RxQueue) -> Option<Cpus> {
    let (affinity, effective) = (queue.irq_affinity.as_ref()?, queue.irq_effective.as_ref());
    // An interrupt that was moved has its old effective core until it is raised next.
    let in_effect = effective.filter(|cpus| cpus.iter().any(|core| affinity.contains(core)));
    Some(in_effect.unwrap_or(affinity).clone())
}

impl Nearness<'_> {
    fn findings(&self) -> Vec<Finding> {
        let Self { interface, node, near, .. } = self;
        let mut list = FindingList(Vec::new());
        let usable = self.allowed.iter().filter(|core| near.contains(*core)).count();
        let place = format!("{interface} is on NUMA node {node} (cores {near})");
        if usable == 0 {
            let allowed = &self.allowed;
            list.add_problem(
                Severity::Degrades,
                format!("{place}, and this process may use only cores of other nodes ({allowed})."),
                format!("taskset -c {near} …, or the control group's cpuset.cpus"),
            );
        } else {
            list.add_ok(format!("{place}; --workers N takes these cores first."));
        }
        for (worker, thread, cores) in self.workers.iter().filter(|(_, _, cores)| self.is_far(cores)) {
            list.add_problem(
                Severity::Degrades,
                format!(
                    "Worker {worker} (thread {thread}) is on core {cores} of another node: its packets cross the NUMA \
                     interconnect."
                ),
                format!("give its program cores of {interface}'s node: --cores {near}"),
            );
        }
        let far: Vec<_> = self.interrupts.iter().filter(|(_, cores)| self.is_far(cores)).collect();
        if !far.is_empty() {
            let queues: Vec<String> = far.iter().map(|(queue, _)| format!("rx-{queue}")).collect();
            let cores: Cpus = far.iter().flat_map(|(_, cores)| cores.iter()).collect();
            list.add_ok(format!(
                "The interrupts of {} go to cores {cores} of other nodes; a policy moves them to the cores of its \
                 workers, if these are pinned.",
                queues.join(", ")
            ));
        }
        list.0
    }

    fn is_far(&self, cores: &Cpus) -> bool {
        !cores.is_empty() && !cores.iter().any(|core| self.near.contains(core))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(list: &str) -> Cpus {
        list.parse().unwrap()
    }

    /// Node 1 of two, with four cores each.
    fn device() -> Nearness<'static> {
        Nearness {
            interface: "eth0",
            node: 1,
            near: cores("4-7"),
            allowed: cores("0-7"),
            workers: Vec::new(),
            interrupts: Vec::new(),
        }
    }

    fn problems(nearness: &Nearness<'_>) -> Vec<String> {
        let findings = nearness.findings().into_iter();
        let problems = findings.filter(|finding| finding.severity != Severity::Ok);
        problems.map(|finding| format!("{} {}", finding.summary, finding.remedy.unwrap())).collect()
    }

    #[test]
    fn a_worker_on_another_node_is_named_with_its_core() {
        let workers = vec![(0, 70, cores("4")), (1, 71, cores("2")), (2, 72, cores("0-7"))];
        let problems = problems(&Nearness { workers, ..device() });
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].starts_with("Worker 1 (thread 71) is on core 2 of another node"), "{problems:?}");
        assert!(problems[0].ends_with("--cores 4-7"), "{problems:?}");
    }

    #[test]
    fn interrupts_on_another_node_are_told_but_are_no_problem() {
        let interrupts = vec![(0, cores("1")), (1, cores("5")), (2, cores("0-3"))];
        let nearness = Nearness { interrupts, ..device() };
        let told = nearness.findings().last().unwrap().summary.clone();
        assert!(told.starts_with("The interrupts of rx-0, rx-2 go to cores 0-3 of other nodes"), "{told}");
        assert!(problems(&nearness).is_empty());
    }

    #[test]
    fn a_process_without_a_near_core_is_told_so() {
        let problems = problems(&Nearness { allowed: cores("0-3"), ..device() });
        assert!(problems[0].contains("only cores of other nodes (0-3)"), "{problems:?}");
    }
}
