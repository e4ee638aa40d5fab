//! What has changed on a host since a policy was applied to it.

use std::fmt;

use super::directory::JournalDir;
use super::entries::OwnedValues;
use super::record::Lifetime;
use super::restore::device_of;
use crate::error::Error;
use crate::knob::{Knob, Value};

/// A value that `policies apply` has set, and that is another by now: a driver reset, irqbalance, or
/// another person.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Drift {
    /// The interface's name when the policy was applied.
    pub interface: String,
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub knob: Knob,
    pub set: Value,
    /// `None`: it can't be read, because the link is down, for example.
    pub now: Option<Value>,
}

/// The values of policies for the host in this network namespace that are no longer as they were
/// set. Programs that hold queues set theirs again themselves. Changes nothing, and needs no
/// privilege.
///
/// # Errors
/// [`Error::Journal`] if the directory of journals can't be read.
pub fn drift(directory: &JournalDir) -> Result<Vec<Drift>, Error> {
    let mut found = Vec::new();
    for journal in directory.read()?.journals.into_iter().map(|found| found.journal) {
        if journal.lifetime != Lifetime::Host {
            continue;
        }
        let (device, _) = device_of(&journal);
        for entry in journal.entries.iter().filter(|entry| entry.own != OwnedValues::Any) {
            let now = entry.knob.read(&device).ok();
            // The old value may mean that the device has refused the new one, which `apply` has
            // reported. A NAPI refuses none; it has the old one after the driver has recreated it.
            let is_napis = matches!(
                entry.knob,
                Knob::NapiDeferHardIrqs { .. }
                    | Knob::NapiGroFlushTimeout { .. }
                    | Knob::NapiIrqSuspendTimeout { .. }
            );
            let may_be = |now: &Value| entry.owns(now) || !is_napis && entry.old.as_ref() == Some(now);
            if !now.as_ref().is_some_and(may_be) {
                let (knob, set) = (entry.knob.clone(), entry.new.clone());
                found.push(Drift { interface: journal.interface.clone(), knob, set, now });
            }
        }
    }
    Ok(found)
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { interface, knob, set, now } = self;
        match now {
            Some(now) => write!(f, "{interface}: {knob} is {now}, and was set to {set}"),
            None => write!(f, "{interface}: {knob} can't be read, and was set to {set}"),
        }
    }
}
