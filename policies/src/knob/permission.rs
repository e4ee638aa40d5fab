//! Whether this process may set a knob.

use std::io;
use std::path::PathBuf;

use rustix::fs::{Access, access};
use rustix::thread::CapabilitySet;

use super::Knob;
use crate::host::device::Device;
use crate::host::irq;
use crate::host::machine::{has_capability, in_initial_user_namespace};

/// Why a process may not set a knob.
#[derive(Debug)]
#[non_exhaustive]
pub enum NotPermitted {
    MissingCapability(&'static str),
    /// The process has a capability only in its own user namespace.
    UserNamespace(&'static str),
    ManagedIrq(u32),
    /// The knob's file can't be written.
    File {
        path: PathBuf,
        source: io::Error,
    },
}

crate::error_text!(
    NotPermitted, source of File:
    Self::MissingCapability(name) => "needs {name}";
    Self::UserNamespace(name) => "needs {name} in the initial user namespace";
    Self::ManagedIrq(irq) => "the kernel manages the affinity of irq {irq}; user space can't set it";
    Self::File { path, source } => "{}: {source}", path.display()
);

/// Checks whether this process may set `knob` on `interface`. Inspects capabilities and file
/// permissions; changes nothing.
///
/// # Errors
/// [`NotPermitted`] with the reason.
pub fn may_set(knob: &Knob, interface: &str) -> Result<(), NotPermitted> {
    may_set_on(knob, &Device::new(interface, 0))
}

pub(crate) fn may_set_on(knob: &Knob, device: &Device) -> Result<(), NotPermitted> {
    match knob {
        Knob::NapiDeferHardIrqs { .. }
        | Knob::NapiGroFlushTimeout { .. }
        | Knob::NapiIrqSuspendTimeout { .. }
        | Knob::NapiThreaded { .. } => {
            needs_net_admin()?;
            // napi-set checks the initial user namespace (GENL_ADMIN_PERM), not that of the
            // network.
            needs_initial_user_namespace("CAP_NET_ADMIN")
        }
        Knob::NapiThreadAffinity { .. } | Knob::NapiThreadPriority { .. } => {
            needs(CapabilitySet::SYS_NICE, "CAP_SYS_NICE")?;
            // Kernel threads belong to the initial user namespace.
            needs_initial_user_namespace("CAP_SYS_NICE")
        }
        Knob::Channels { .. } | Knob::RxRing | Knob::Coalesce { .. } => needs_net_admin(),
        Knob::IrqAffinity { irq, .. } | Knob::TxIrqAffinity { irq, .. } => {
            if irq::is_managed(*irq) {
                return Err(NotPermitted::ManagedIrq(*irq));
            }
            is_writable(irq::affinity_path(*irq))
        }
        Knob::RpsCpus { .. }
        | Knob::RpsFlowCount { .. }
        | Knob::XpsCpus { .. }
        | Knob::DeferHardIrqs
        | Knob::GroFlushTimeout => {
            needs_net_admin()?;
            knob.file(device).map_or(Ok(()), is_writable)
        }
    }
}

fn needs(capability: CapabilitySet, name: &'static str) -> Result<(), NotPermitted> {
    if has_capability(capability) { Ok(()) } else { Err(NotPermitted::MissingCapability(name)) }
}

fn needs_initial_user_namespace(name: &'static str) -> Result<(), NotPermitted> {
    if in_initial_user_namespace() { Ok(()) } else { Err(NotPermitted::UserNamespace(name)) }
}

fn needs_net_admin() -> Result<(), NotPermitted> {
    needs(CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN")
}

fn is_writable(path: PathBuf) -> Result<(), NotPermitted> {
    access(&path, Access::WRITE_OK).map_err(|errno| NotPermitted::File { path, source: errno.into() })
}
