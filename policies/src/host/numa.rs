//! NUMA nodes and hardware threads, and which CPUs are near a device.

use std::fs;
use std::io;
use std::path::Path;

use super::interface::Interface;
use crate::cpus::Cpus;

/// Picks up to `count` CPUs of the calling thread's affinity mask for the workers of an interface:
/// those of the device's NUMA node first, because a packet that is processed on another node
/// crosses the interconnect; and hardware threads of a core that is in the list already last, on
/// whichever node, because they share it.
pub fn nearest_cores(interface: &Interface, count: usize) -> io::Result<Vec<u32>> {
    let topology = Topology::read();
    let mut cores = topology.nearest_first(&Cpus::allowed()?, &topology.node_cpus(interface.numa_node));
    cores.truncate(count);
    Ok(cores)
}

#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct NumaNode {
    pub number: u32,
    /// Its online CPUs. Empty for a node with memory only.
    pub cpus: Cpus,
}

/// Which CPUs are of one NUMA node, and which are hardware threads of one core.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Topology {
    /// The nodes by number. Empty on a kernel without `CONFIG_NUMA`.
    pub nodes: Vec<NumaNode>,
    /// The hardware threads of each core that has several.
    cores: Vec<Cpus>,
}

impl Topology {
    /// Reads nodes and hardware threads from `/sys/devices/system`. A CPU whose siblings can't be
    /// read counts as a whole core, and a node that can't be read is left out.
    pub fn read() -> Self {
        Self::read_from(Path::new("/sys/devices/system"))
    }

    fn read_from(system: &Path) -> Self {
        let list = |path: &str| -> Option<Cpus> { fs::read_to_string(system.join(path)).ok()?.parse().ok() };
        let node = |number| NumaNode {
            number,
            cpus: list(&format!("node/node{number}/cpulist")).unwrap_or_default(),
        };
        let nodes = list("node/online").unwrap_or_default().iter().map(node).collect();
        let threads = |cpu| list(&format!("cpu/cpu{cpu}/topology/thread_siblings_list"));
        let mut cores: Vec<Cpus> =
            list("cpu/online").unwrap_or_default().iter().filter_map(threads).collect();
        cores.retain(|threads| threads.len() > 1);
        cores.sort_unstable_by_key(|threads| threads.iter().next());
        cores.dedup();
        Self { nodes, cores }
    }

    /// The CPUs of a node; empty without one.
    pub(crate) fn node_cpus(&self, node: Option<u32>) -> Cpus {
        let found = self.nodes.iter().find(|found| Some(found.number) == node);
        found.map(|node| node.cpus.clone()).unwrap_or_default()
    }

    /// Whether an earlier one of `cpus` is a hardware thread of the same core.
    fn shares_a_core(&self, cpu: u32, cpus: &Cpus) -> bool {
        let core = self.cores.iter().find(|threads| threads.contains(cpu));
        core.is_some_and(|threads| threads.iter().any(|other| other < cpu && cpus.contains(other)))
    }

    /// How many of `cpus` are no further hardware thread of a core.
    pub fn whole_cores(&self, cpus: &Cpus) -> usize {
        cpus.iter().filter(|&cpu| !self.shares_a_core(cpu, cpus)).count()
    }

    /// `cpus` in the order in which workers take them.
    pub(super) fn nearest_first(&self, cpus: &Cpus, near: &Cpus) -> Vec<u32> {
        let mut order: Vec<u32> = cpus.iter().collect();
        order.sort_by_key(|&cpu| (self.shares_a_core(cpu, cpus), !near.contains(cpu)));
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_cores_are_distinct_and_limited_to_the_allowed_ones() {
        let loopback = crate::host::interface("lo").unwrap();
        let all = nearest_cores(&loopback, usize::MAX).unwrap();
        assert_eq!(all.iter().copied().collect::<Cpus>(), Cpus::allowed().unwrap());
        assert_eq!(nearest_cores(&loopback, 1).unwrap().len(), 1);
    }

    fn cpus(list: &str) -> Cpus {
        list.parse().unwrap()
    }

    /// A folder like `/sys/devices/system` of two nodes with two cores each, of two hardware
    /// threads: as Linux numbers them, the first threads of all cores come first.
    fn two_nodes() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("node/online", "0-1\n");
        write("node/node0/cpulist", "0-1,4-5\n");
        write("node/node1/cpulist", "2-3,6-7\n");
        write("cpu/online", "0-7\n");
        for cpu in 0..8 {
            let (first, second) = (cpu % 4, cpu % 4 + 4);
            write(&format!("cpu/cpu{cpu}/topology/thread_siblings_list"), &format!("{first},{second}\n"));
        }
        folder
    }

    #[test]
    fn workers_take_the_devices_node_first_and_hardware_threads_of_taken_cores_last() {
        let folder = two_nodes();
        let topology = Topology::read_from(folder.path());
        let numbers: Vec<u32> = topology.nodes.iter().map(|node| node.number).collect();
        assert_eq!((numbers, &topology.nodes[1].cpus), (vec![0, 1], &cpus("2-3,6-7")));
        let order = |allowed: &str, near: &str| topology.nearest_first(&cpus(allowed), &cpus(near));
        assert_eq!(order("0-7", "2-3,6-7"), [2, 3, 0, 1, 6, 7, 4, 5]);
        assert_eq!(topology.whole_cores(&cpus("0-7")), 4);
        // A thread whose sibling this process may not use has the core to itself.
        assert_eq!(order("1,3-6", "2-3,6-7"), [3, 6, 1, 4, 5]);
        // A device without a node.
        assert_eq!(order("0-7", ""), [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn without_the_kernels_files_each_cpu_is_a_core_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let topology = Topology::read_from(folder.path());
        assert!(topology.nodes.is_empty());
        assert_eq!(topology.nearest_first(&cpus("0-2"), &cpus("2")), [2, 0, 1]);
    }
}
