//! Which cores are near a device.

use std::fs;
use std::io;

use crate::{Cpus, Interface};

/// The CPUs of a NUMA node; empty where there is no such node.
pub(crate) fn node_cpus(node: u32) -> Cpus {
    fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist"))
        .ok()
        .and_then(|list| list.parse().ok())
        .unwrap_or_default()
}

/// The CPUs of the device's NUMA node; empty where it has none.
pub(crate) fn local_to(interface: &Interface) -> Cpus {
    interface.numa_node.map(node_cpus).unwrap_or_default()
}

/// So many cores of this process for the workers of an interface, those of the device's NUMA node
/// first: a packet that is received on another node crosses between them. Fewer where there are fewer.
pub fn nearest_cores(interface: &Interface, count: usize) -> io::Result<Vec<u32>> {
    let near = local_to(interface);
    let (mut cores, far): (Vec<u32>, Vec<u32>) = Cpus::allowed()?.iter().partition(|&cpu| near.contains(cpu));
    cores.extend(far);
    cores.truncate(count);
    Ok(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_cores_are_found_than_there_are_and_none_twice() {
        let loopback = crate::host::interface("lo").unwrap();
        let all = nearest_cores(&loopback, usize::MAX).unwrap();
        assert_eq!(all.iter().copied().collect::<Cpus>(), Cpus::allowed().unwrap());
        assert_eq!(nearest_cores(&loopback, 1).unwrap().len(), 1);
    }
}
