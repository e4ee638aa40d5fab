//! CPUs near a device, by NUMA node.

use std::fs;
use std::io;

use super::cpuset::Cpus;
use super::interface::Interface;

/// The CPUs of a NUMA node; empty if there is no such node.
pub(crate) fn node_cpus(node: u32) -> Cpus {
    fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist"))
        .ok()
        .and_then(|list| list.parse().ok())
        .unwrap_or_default()
}

/// The CPUs of the device's NUMA node; empty if it has none.
pub(crate) fn device_cpus(interface: &Interface) -> Cpus {
    interface.numa_node.map(node_cpus).unwrap_or_default()
}

/// Picks up to `count` CPUs of the calling thread's affinity mask for the workers of an interface, those
/// of the device's NUMA node first: a packet processed on another node crosses the interconnect.
///
/// # Errors
/// The error of `sched_getaffinity(2)`.
pub fn nearest_cores(interface: &Interface, count: usize) -> io::Result<Vec<u32>> {
    let near = device_cpus(interface);
    let (mut cores, far): (Vec<u32>, Vec<u32>) = Cpus::allowed()?.iter().partition(|&cpu| near.contains(cpu));
    cores.extend(far);
    cores.truncate(count);
    Ok(cores)
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
}
