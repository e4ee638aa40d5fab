//! The capabilities of the calling process.

use std::fs;

use rustix::process::Pid;
use rustix::thread::CapabilitySet;

/// The capabilities that some knob needs and this process lacks: `CAP_NET_ADMIN`, `CAP_SYS_NICE`.
pub fn missing_capabilities() -> Vec<&'static str> {
    [(CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"), (CapabilitySet::SYS_NICE, "CAP_SYS_NICE")]
        .into_iter()
        .filter(|(capability, _)| !has_capability(*capability))
        .map(|(_, name)| name)
        .collect()
}

pub(crate) fn has_capability(capability: CapabilitySet) -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(capability))
}

pub(crate) fn has_net_admin() -> bool {
    has_capability(CapabilitySet::NET_ADMIN)
}

pub(crate) fn may_set_napis(thread: Pid) -> bool {
    let sets = rustix::thread::capabilities(Some(thread));
    sets.is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN)) && in_initial_user_namespace()
}

pub(crate) fn in_initial_user_namespace() -> bool {
    // The initial namespace maps every id to itself; no other may map the last one.
    fs::read_to_string("/proc/self/uid_map")
        .is_ok_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]))
}
