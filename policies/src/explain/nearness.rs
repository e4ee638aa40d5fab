//! What is far from a device: workers on cores of other NUMA nodes.

use super::{FindingList, Severity};
use crate::host::{Cpus, HostFacts, Interface, Pid};
use crate::status::WorkerStatus;

impl FindingList {
    /// Nothing on a machine with one node, or if the device belongs to none.
    pub(super) fn check_nearness(
        &mut self,
        interface: &Interface,
        host: &HostFacts,
        workers: &[WorkerStatus],
    ) {
        let Some(node) = interface.numa_node else { return };
        let near = host.topology.node_cpus(Some(node));
        let is_far = |cores: &Cpus| !cores.is_empty() && !cores.iter().any(|core| near.contains(core));
        if near.is_empty() || host.online.iter().all(|core| near.contains(core)) {
            return;
        }
        let (name, allowed) = (&interface.name, &host.allowed);
        let place = format!("{name} is on NUMA node {node} (cores {near})");
        if is_far(allowed) {
            self.add_problem(
                Severity::Degrades,
                format!("{place}, and this process may use only cores of other nodes ({allowed})."),
                format!("taskset -c {near} …, or the control group's cpuset.cpus"),
            );
        } else {
            self.add_ok(format!("{place}; --workers N takes these cores first."));
        }
        for WorkerStatus { worker, thread, .. } in workers {
            let cores = Pid::from_raw(*thread).and_then(|id| Cpus::of_thread(Some(id)).ok());
            let Some(cores) = cores.filter(is_far) else { continue };
            self.add_problem(
                Severity::Degrades,
                format!(
                    "Worker {worker} (thread {thread}) is on core {cores} of another node: its packets cross the NUMA \
                     interconnect."
                ),
                format!("give its program cores of {name}'s node: --cores {near}"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::Finding;

    /// For a device on node 1, whose cores no test runs on, and a worker that is this thread.
    fn findings(allowed: &str) -> Vec<Finding> {
        let topology = serde_json::json!({ "nodes": [{ "number": 1, "cpus": "5000-5003" }], "cores": [] });
        let topology = serde_json::from_value(topology).unwrap();
        let host = HostFacts { topology, allowed: allowed.parse().unwrap(), ..HostFacts::read() };
        let device = Interface { numa_node: Some(1), ..crate::host::interface("lo").unwrap() };
        let worker = WorkerStatus {
            worker: 1,
            thread: rustix::thread::gettid().as_raw_nonzero().get(),
            napi: 0,
            running: String::new(),
            queue: None,
            running_ns: 0,
            polling_ns: 0,
            parked_ns: 0,
        };
        let mut list = FindingList(Vec::new());
        list.check_nearness(&device, &host, &[worker]);
        list.0
    }

    #[test]
    fn a_worker_on_another_node_is_named_with_its_core() {
        let findings = findings("0,5000");
        assert_eq!(findings[0].severity, Severity::Ok, "{findings:?}");
        assert!(findings[1].summary.starts_with("Worker 1 (thread "), "{findings:?}");
        assert!(findings[1].remedy.as_ref().unwrap().ends_with("--cores 5000-5003"), "{findings:?}");
    }

    #[test]
    fn a_process_without_a_near_core_is_told_so() {
        let summary = &findings("0-3")[0].summary;
        assert!(summary.contains("only cores of other nodes (0-3)"), "{summary}");
    }
}
