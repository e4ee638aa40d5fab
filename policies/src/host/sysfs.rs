//! Paths of an interface below `/sys/class/net`.

use std::path::{Path, PathBuf};

/// The interface's directory. Valid only if `/sys` was mounted in this thread's network namespace:
/// sysfs shows the namespace of its mount.
pub(crate) fn class_net(interface: &str) -> PathBuf {
    Path::new("/sys/class/net").join(interface)
}

pub(crate) fn rps_cpus(interface: &str, queue: u32) -> PathBuf {
    class_net(interface).join(format!("queues/rx-{queue}/rps_cpus"))
}

pub(crate) fn rps_flow_count(interface: &str, queue: u32) -> PathBuf {
    class_net(interface).join(format!("queues/rx-{queue}/rps_flow_cnt"))
}

pub(crate) fn xps_cpus(interface: &str, queue: u32) -> PathBuf {
    class_net(interface).join(format!("queues/tx-{queue}/xps_cpus"))
}
