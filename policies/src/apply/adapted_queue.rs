//! Sets an adapted queue's values for another process, which has given up its privileges.

use std::fmt;
use std::io;
use std::str::FromStr;

use crate::controller::QueueSettings;
use crate::grace_time::nanos;
use crate::host::device::Device;
use crate::journal::{JournalDir, Lifetime};
use crate::json::json_object;
use crate::knob::{Knob, Value};
use crate::netlink::netdev::{NapiSetting, Netdev};

/// The values of a queue that a process adapts, as a message to a process that may set them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdaptedQueue {
    ifindex: u32,
    queue: u32,
    defer_hard_irqs: u64,
    gro_flush_timeout: u64,
    irq_suspend_timeout: u64,
}

json_object!(AdaptedQueue: ifindex, queue, defer_hard_irqs, gro_flush_timeout, irq_suspend_timeout);

impl AdaptedQueue {
    pub(super) fn new(ifindex: u32, queue: u32, settings: &QueueSettings) -> Self {
        Self {
            ifindex,
            queue,
            defer_hard_irqs: settings.defer_hard_irqs,
            gro_flush_timeout: nanos(settings.grace_time),
            irq_suspend_timeout: nanos(settings.suspend_timeout),
        }
    }

    /// Each value with its knob, in the order in which they are set.
    pub(super) fn values(&self) -> [(Knob, NapiSetting, u64); 3] {
        let queue = self.queue;
        [
            (Knob::NapiIrqSuspendTimeout { queue }, NapiSetting::IrqSuspendTimeout, self.irq_suspend_timeout),
            (Knob::NapiGroFlushTimeout { queue }, NapiSetting::GroFlushTimeout, self.gro_flush_timeout),
            (Knob::NapiDeferHardIrqs { queue }, NapiSetting::DeferHardIrqs, self.defer_hard_irqs),
        ]
    }

    /// Sets the values for the process `pid`, if its journal says that it adapts this queue, within
    /// the journal's bounds.
    ///
    /// # Errors
    /// `PermissionDenied` if the process has no such journal or a value is out of bounds; else the
    /// kernel's error.
    pub fn set_for(&self, pid: u32, journals: &JournalDir) -> io::Result<()> {
        let contents = journals.read().map_err(io::Error::other)?;
        // One that its process has left may be of another with the same id.
        let held = contents.journals.into_iter().filter(|found| !found.is_abandoned());
        let mut journals = held.map(|found| found.journal);
        let journal = journals
            .find(|journal| {
                journal.writer.has_id(pid)
                    && journal.lifetime == Lifetime::Process
                    && journal.ifindex == self.ifindex
                    && journal.queues.contains(&self.queue)
            })
            .ok_or_else(|| denied(&format!("process {pid} does not hold rx-{}", self.queue)))?;
        for (knob, _, number) in self.values() {
            let entry = journal.entries.iter().find(|entry| entry.knob == knob);
            if !entry.is_some_and(|entry| entry.is_adapted() && entry.owns(&Value::Number(number))) {
                return Err(denied(&format!("process {pid} may not set {knob} to {number}")));
            }
        }
        self.write(&Device::new(&journal.interface, self.ifindex))
    }

    /// Sets the values that differ from the queue's present ones. The kernel is asked for those,
    /// because an earlier call may have failed after it had set some.
    pub(super) fn write(&self, device: &Device) -> io::Result<()> {
        let id = device.napi(self.queue)?.id;
        let mut netdev = Netdev::open()?;
        let present = netdev.napi(id)?;
        for (_, setting, number) in self.values() {
            if present.value(setting) != Some(number) {
                netdev.set_napi(id, setting, number)?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for AdaptedQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

impl FromStr for AdaptedQueue {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Self> {
        Ok(serde_json::from_str(text)?)
    }
}

/// Sets an adapted queue's values on behalf of a process that may not ([`AdaptedQueue::set_for`]).
///
/// `TimedOut` says that it may still set them. It is asked for the same values again each second
/// then, until the error is another one or other values are chosen.
pub type QueueDelegate = dyn FnMut(&AdaptedQueue) -> io::Result<()> + Send;

fn denied(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, reason)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::controller::Reason;
    use crate::journal::{Entry, Journal, OwnedValues};
    use crate::policy::Policy;

    fn directory() -> (tempfile::TempDir, JournalDir) {
        let folder = tempfile::tempdir().unwrap();
        let journals = JournalDir::at(folder.path().join("lull"));
        fs::create_dir(journals.path()).unwrap();
        (folder, journals)
    }

    #[test]
    fn a_process_without_a_journal_for_the_queue_is_refused() {
        let (_folder, journals) = directory();
        let queue = AdaptedQueue::new(1, 0, &QueueSettings::interrupts(Reason::Start));
        assert_eq!(queue.to_string().parse::<AdaptedQueue>().unwrap(), queue);
        let error = queue.set_for(std::process::id(), &journals).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
    }

    #[test]
    fn values_out_of_the_journals_bounds_and_knobs_that_are_not_adapted_are_refused() {
        let (_folder, journals) = directory();
        // No interface has this index, so what is allowed fails at the device.
        let ifindex = u32::MAX;
        let allowed = AdaptedQueue {
            ifindex,
            queue: 0,
            defer_hard_irqs: 5,
            gro_flush_timeout: 1_000_000,
            irq_suspend_timeout: 20_000_000,
        };
        let mut journal =
            Journal::new(Policy::KernelPolling, "nonesuch", ifindex, Lifetime::Process, vec![0]);
        for (knob, _, most) in allowed.values() {
            let owned = OwnedValues::Within { least: 0, most };
            journal.entries.push(Entry { knob, old: None, new: Value::Number(0), own: owned, left: None });
        }
        let _held = journals.write(&mut journal).unwrap();
        let refused = |queue: AdaptedQueue| {
            let error = queue.set_for(std::process::id(), &journals).unwrap_err();
            error.kind() == io::ErrorKind::PermissionDenied
        };
        assert!(!refused(allowed));
        for queue in [
            AdaptedQueue { defer_hard_irqs: 6, ..allowed },
            AdaptedQueue { gro_flush_timeout: 1_000_001, ..allowed },
            AdaptedQueue { irq_suspend_timeout: u64::MAX, ..allowed },
            AdaptedQueue { queue: 1, ..allowed },
            AdaptedQueue { ifindex: 1, ..allowed },
        ] {
            assert!(refused(queue), "{queue}");
        }
        // A knob with one target value is not adapted, whatever the value.
        for entry in &mut journal.entries {
            entry.own = OwnedValues::Any;
        }
        let _held = journals.write(&mut journal).unwrap();
        assert!(refused(allowed));
    }

    #[test]
    fn the_format_is_the_same_as_ever() {
        let text = r#"{"ifindex":3,"queue":1,"defer_hard_irqs":1,"gro_flush_timeout":2000000,"irq_suspend_timeout":18446744073709551615}"#;
        assert_eq!(text.parse::<AdaptedQueue>().unwrap().to_string(), text);
        assert!("{}".parse::<AdaptedQueue>().is_err());
    }
}
