//! The limit of open files.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors of the process: standard streams, files of the host's settings, netlink sockets.
const PROCESS_DESCRIPTORS: u64 = 128;
/// Descriptors of a worker: epoll instances, rings, eventfds, and connections that wait to be refused.
const WORKER_DESCRIPTORS: u64 = 16;

/// Raises the limit of open files: so many for connections and files, and some for each worker, which also has a TCP and a
/// UDP socket for each address.
pub fn raise_descriptor_limit(descriptors: u64, workers: u64, addresses: u64) {
    let others = PROCESS_DESCRIPTORS + workers * (WORKER_DESCRIPTORS + 2 * addresses);
    let wanted = descriptors.saturating_add(others);
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return;
    }
    let maximum = limit.maximum.map(|maximum| maximum.max(wanted));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).or_else(|_| {
        let current = limit.maximum.map(|maximum| maximum.min(wanted));
        setrlimit(Resource::Nofile, Rlimit { current, maximum: limit.maximum })
    });
    let now = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if raised.is_err() || now < wanted {
        tracing::warn!("the limit of open files (ulimit -n) is {now}, and up to {wanted} may be open");
    }
}
