//! Which cores of two nodes run the workers, and which the load.

use std::fmt;

use policies::{Cpus, Topology};
use serde::Serialize;

use super::super::core_assignment::CoreAssignment;
use crate::Error;

/// Where a server's workers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// All on the first node.
    First,
    /// All on the second node.
    Second,
    /// Half of them on each.
    Both,
}

impl Placement {
    /// All placements, in the order of the tables.
    pub const ALL: [Self; 3] = [Self::First, Self::Second, Self::Both];
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::First => "first node",
            Self::Second => "second node",
            Self::Both => "both nodes",
        })
    }
}

/// The most workers of a server: the paper's.
const MOST_WORKERS: usize = 8;

/// The cores of two nodes, shared out between server and load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NumaCores {
    /// The kernel's numbers of the nodes, the first one's first.
    pub nodes: [u32; 2],
    /// The workers' cores on the first node, on the second one, and on both. As many each time.
    pub workers: [Cpus; 3],
    /// The load's cores: as many as workers, half of them on each node.
    pub load: Cpus,
}

impl NumaCores {
    /// Shares out the cores that this process may use, one hardware thread of each: of the two nodes that have most.
    ///
    /// # Errors
    /// [`Error::NumaNodes`] unless two nodes have three cores each; [`Error::Io`] if the affinity can't be read.
    pub fn choose() -> Result<Self, Error> {
        let (topology, allowed) = (Topology::read(), Cpus::allowed()?);
        let cores = |cpus: &Cpus| -> Vec<u32> {
            let usable = cpus.iter().filter(|cpu| allowed.contains(*cpu)).collect();
            topology.one_per_core(&usable).iter().collect()
        };
        Self::of(topology.nodes.iter().map(|node| (node.number, cores(&node.cpus))).collect())
    }

    /// Shares out these cores of nodes.
    fn of(mut nodes: Vec<(u32, Vec<u32>)>) -> Result<Self, Error> {
        nodes.retain(|(_, cores)| !cores.is_empty());
        // Stable: nodes with as many cores stay in order.
        nodes.sort_by_key(|(_, cores)| std::cmp::Reverse(cores.len()));
        let of_node = |(node, cores): &(u32, Vec<u32>)| {
            format!("cores {} of node {node}", cores.iter().copied().collect::<Cpus>())
        };
        let seen = || match &nodes[..] {
            [] => "the kernel names no node".to_owned(),
            [only] => format!("it may use {}, and none of another", of_node(only)),
            [one, two, ..] => format!("it may use {} and {}", of_node(one), of_node(two)),
        };
        let [(first, near), (second, far), ..] = &nodes[..] else { return Err(Error::NumaNodes(seen())) };
        // An even number, and half as many cores of each node for the load.
        let workers = (near.len().min(far.len()) * 2 / 3).min(MOST_WORKERS) & !1;
        if workers == 0 {
            return Err(Error::NumaNodes(seen()));
        }
        let half = workers / 2;
        let both = |of: fn(&[u32], usize) -> &[u32], count| [of(near, count), of(far, count)].concat();
        let load = both(|cores, half| &cores[2 * half..3 * half], half);
        Ok(Self {
            nodes: [*first, *second],
            workers: [
                near[..workers].iter().copied().collect(),
                far[..workers].iter().copied().collect(),
                both(|cores, half| &cores[..half], half).into_iter().collect(),
            ],
            load: load.into_iter().collect(),
        })
    }

    /// The workers' cores under a placement.
    pub fn of_placement(&self, placement: Placement) -> &Cpus {
        &self.workers[placement as usize]
    }

    /// The number of workers of each server.
    pub fn count(&self) -> usize {
        self.load.len()
    }

    /// A worker's core on each node: their distance is the nodes'.
    pub(super) fn ends(&self) -> CoreAssignment {
        let first = |cores: &Cpus| cores.iter().next().unwrap_or_default();
        let [server, client] = [first(&self.workers[0]), first(&self.workers[1])];
        CoreAssignment { server, client, packing: client }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(nodes: &[(u32, std::ops::Range<u32>)]) -> Result<NumaCores, String> {
        let nodes = nodes.iter().map(|(node, cores)| (*node, cores.clone().collect())).collect();
        NumaCores::of(nodes).map_err(|error| error.to_string())
    }

    #[test]
    fn no_server_uses_the_loads_cores_and_each_has_as_many_workers() {
        let cores = chosen(&[(0, 0..4), (1, 4..8)]).unwrap();
        assert_eq!(cores.workers.each_ref().map(Cpus::to_string), ["0-1", "4-5", "0,4"]);
        assert_eq!((cores.load.to_string(), cores.count()), ("2,6".to_owned(), 2));
        assert_eq!(cores.of_placement(Placement::Both), &cores.workers[2]);
        assert_eq!((cores.ends().server, cores.ends().client), (0, 4));
    }

    #[test]
    fn servers_have_the_papers_eight_workers_where_there_are_cores() {
        let cores = chosen(&[(0, 0..16), (1, 16..40)]).unwrap();
        // The one with more cores is the first.
        assert_eq!(cores.nodes, [1, 0]);
        assert_eq!(cores.workers.each_ref().map(Cpus::to_string), ["16-23", "0-7", "0-3,16-19"]);
        assert_eq!(cores.load.to_string(), "8-11,24-27");
        // The paper's machine had eight cores a node, and its load on other machines.
        assert_eq!(chosen(&[(0, 0..8), (1, 8..16)]).unwrap().count(), 4);
        assert_eq!(chosen(&[(0, 0..3), (1, 8..16)]).unwrap().count(), 2);
    }

    #[test]
    fn too_few_nodes_or_cores_are_an_error_that_says_what_there_is() {
        for (nodes, words) in [
            (&[][..], "the kernel names no node"),
            (&[(0, 0..64)], "it may use cores 0-63 of node 0, and none of another"),
            // A node with memory only.
            (&[(0, 0..8), (1, 0..0)], "cores 0-7 of node 0, and none of another"),
            (&[(0, 0..8), (2, 8..10)], "it may use cores 0-7 of node 0 and cores 8-9 of node 2"),
        ] {
            let error = chosen(nodes).unwrap_err();
            assert!(
                error.contains("two NUMA nodes with three cores each") && error.contains(words),
                "{error}"
            );
        }
    }
}
