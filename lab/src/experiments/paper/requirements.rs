//! What a part needs of the machine.

use std::fs;
use std::io;

use crate::engine::CoreAssignment;
use crate::testbed::Testbed;

/// NUMA nodes with cores. At least 1.
pub(super) fn numa_nodes() -> usize {
    let nodes = fs::read_to_string("/sys/devices/system/node/has_cpu").unwrap_or_default();
    let count = nodes.trim().parse::<policies::Cpus>().map_or(0, |nodes| nodes.iter().count());
    count.max(1)
}

/// Why no part can be measured, if none can.
pub(super) fn prevented(cores: CoreAssignment) -> Option<String> {
    if cores.server == cores.client {
        return Some("needs two cores: one for the server, and one for the load".to_owned());
    }
    match Testbed::new(1) {
        Ok(_) => None,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Some(format!("needs root ({error}): policies are settings of a queue, and loopback has none"))
        }
        Err(error) => Some(format!("the testbed can't be created: {error}")),
    }
}
