//! Who may set what.

use std::fs;

use rustix::fs::{Access, access};
use rustix::thread::CapabilitySet;

use crate::device::Device;
use crate::{Knob, irq};

/// Why this process may not set `knob` on `interface`; `None` where it may.
///
/// Capabilities are looked at rather than tried, so that asking changes nothing.
pub fn may_set(knob: &Knob, interface: &str) -> Result<(), String> {
    may_set_on(knob, &Device::new(interface, 0))
}

pub(crate) fn may_set_on(knob: &Knob, device: &Device) -> Result<(), String> {
    let needs = |capability: CapabilitySet, name: &str| {
        if has(capability) { Ok(()) } else { Err(format!("needs {name}")) }
    };
    let writable = |path: std::path::PathBuf| {
        access(&path, Access::WRITE_OK).map_err(|error| format!("{}: {error}", path.display()))
    };
    match knob {
        Knob::NapiDeferHardIrqs { .. }
        | Knob::NapiGroFlushTimeout { .. }
        | Knob::NapiIrqSuspendTimeout { .. }
        | Knob::NapiThreaded { .. } => {
            needs(CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN")?;
            // napi-set checks the initial user namespace (GENL_ADMIN_PERM), not that of the network.
            if in_initial_user_namespace() {
                Ok(())
            } else {
                Err("needs CAP_NET_ADMIN in the initial user namespace".to_owned())
            }
        }
        Knob::NapiThreadAffinity { .. } => needs(CapabilitySet::SYS_NICE, "CAP_SYS_NICE"),
        Knob::Channels { .. } | Knob::Coalesce { .. } => needs(CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
        Knob::IrqbalanceBan { .. } => {
            let root = rustix::process::geteuid().is_root();
            root.then_some(()).ok_or_else(|| "irqbalance listens to root alone".to_owned())
        }
        Knob::IrqAffinity { irq, .. } | Knob::TxIrqAffinity { irq, .. } => {
            if irq::is_managed(*irq) {
                return Err(format!("the kernel manages the affinity of irq {irq}; nobody may set it"));
            }
            writable(irq::affinity_path(*irq))
        }
        Knob::RpsCpus { .. }
        | Knob::RpsFlowCount { .. }
        | Knob::XpsCpus { .. }
        | Knob::DeferHardIrqs
        | Knob::GroFlushTimeout => {
            needs(CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN")?;
            knob.file(device).map_or(Ok(()), writable)
        }
    }
}

/// The capabilities that some knob needs and this process lacks.
pub fn missing_capabilities() -> Vec<&'static str> {
    [(CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"), (CapabilitySet::SYS_NICE, "CAP_SYS_NICE")]
        .into_iter()
        .filter(|(capability, _)| !has(*capability))
        .map(|(_, name)| name)
        .collect()
}

fn has(capability: CapabilitySet) -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(capability))
}

pub(crate) fn has_net_admin() -> bool {
    has(CapabilitySet::NET_ADMIN)
}

pub(crate) fn in_initial_user_namespace() -> bool {
    // The initial namespace maps every id to itself; no other may map the last one.
    fs::read_to_string("/proc/self/uid_map")
        .is_ok_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]))
}
