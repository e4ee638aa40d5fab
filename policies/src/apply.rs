//! Applying a plan, and putting back what was there.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use crate::journal::{Entry, Journal};
use crate::knob::Device;
use crate::signals::{self, Registration};
use crate::{Error, JournalDir, Knob, Lifetime, Plan, Policy, Value};

/// How one step of a plan went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    /// It had the value already.
    Already,
    /// It was set, and reads back as the target.
    Set,
    /// It could not be set.
    Failed {
        /// The kernel's word.
        reason: String,
    },
    /// It was set, but the kernel has something else.
    ReadsBack {
        /// What the kernel has.
        value: String,
    },
}

impl Outcome {
    /// Whether the knob now has its target value.
    pub fn is_ok(&self) -> bool {
        matches!(self, Outcome::Already | Outcome::Set)
    }
}

/// One step and how it went.
#[derive(Debug, Clone, Serialize)]
pub struct Applied {
    /// The knob.
    #[serde(flatten)]
    pub knob: Knob,
    /// The value that it was to have.
    pub target: Value,
    /// How it went.
    #[serde(flatten)]
    pub outcome: Outcome,
}

impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Outcome::Already => write!(f, "{} is {} already", self.knob, self.target),
            Outcome::Set => write!(f, "{} set to {}", self.knob, self.target),
            Outcome::Failed { reason } => {
                write!(f, "{} could not be set to {}: {reason}", self.knob, self.target)
            }
            Outcome::ReadsBack { value } => {
                write!(f, "{} was set to {} but reads back {value}", self.knob, self.target)
            }
        }
    }
}

/// What became of one knob on the way back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "restored", rename_all = "kebab-case")]
pub enum Restored {
    /// It has its old value (again).
    Restored,
    /// Someone else set it meanwhile; it was left alone.
    ChangedMeanwhile {
        /// What it has.
        value: String,
    },
    /// It went with the device, or with the knob that it hung on.
    Gone,
    /// It could not be put back.
    Failed {
        /// The kernel's word.
        reason: String,
    },
}

/// What a restore did.
#[derive(Debug, Clone, Serialize)]
pub struct RestoreReport {
    /// The interface.
    pub interface: String,
    /// The policy that was taken off.
    pub policy: Policy,
    /// Each knob, in the order in which they were put back.
    pub knobs: Vec<(Knob, Restored)>,
}

impl RestoreReport {
    /// Whether something that ought to be put back is not.
    pub fn failed(&self) -> bool {
        self.knobs.iter().any(|(_, restored)| matches!(restored, Restored::Failed { .. }))
    }
}

/// A plan that has been applied. Dropping it puts the old values back; so do SIGINT and SIGTERM, and
/// after SIGKILL the next [`apply`] or [`recover`].
#[derive(Debug)]
#[must_use = "dropping the guard restores the host at once"]
pub struct Guard {
    applied: Vec<Applied>,
    undo: Arc<Mutex<Option<Undo>>>,
    signals: Option<Registration>,
}

#[derive(Debug)]
struct Undo {
    directory: JournalDir,
    path: PathBuf,
    journal: Journal,
}

impl Guard {
    /// Each step and how it went.
    pub fn applied(&self) -> &[Applied] {
        &self.applied
    }

    /// Leaves the host as it is now. The journal stays, for `policies restore`.
    pub fn keep(mut self) -> Vec<Applied> {
        lock(&self.undo).take();
        std::mem::take(&mut self.applied)
    }

    /// Puts the old values back now, and tells how it went.
    pub fn restore(self) -> Option<Result<RestoreReport, Error>> {
        undo(&self.undo)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Unregistered first, so that a signal in between finds nothing half undone.
        self.signals.take();
        if let Some(Err(error)) = undo(&self.undo) {
            eprintln!("lull: the host's settings were not put back: {error}; run: policies restore");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn undo(undo: &Mutex<Option<Undo>>) -> Option<Result<RestoreReport, Error>> {
    let mut slot = lock(undo);
    let Undo { directory, path, journal } = slot.take()?;
    let report = put_back(&journal);
    if report.failed() {
        // Kept, so that a later restore can try again.
        return Some(Ok(report));
    }
    Some(directory.remove(&path).map(|()| report))
}

/// Applies a plan: journals the old values, then turns the knobs in order, reading each back.
///
/// A knob that can't be set doesn't stop the others; its [`Outcome`] says why. What an earlier,
/// killed process left on the interface is put back first.
///
/// # Errors
/// Where the journal can't be written (then nothing was changed), or a running process holds the
/// interface.
pub fn apply(plan: &Plan, lifetime: Lifetime, directory: &JournalDir) -> Result<Guard, Error> {
    recover(directory)?;
    for (_, journal) in directory.read()? {
        if journal.interface == plan.interface && journal.lifetime == Lifetime::Process {
            return Err(Error::Taken {
                interface: journal.interface,
                policy: journal.policy,
                pid: journal.writer.pid,
            });
        }
    }
    if lifetime == Lifetime::Host {
        // A second `policies apply` replaces the first rather than lying on top of it.
        restore_where(directory, |journal| {
            journal.interface == plan.interface && journal.lifetime == Lifetime::Host
        })?;
    }
    let device = Device::new(&plan.interface, plan.ifindex);
    let entries: Vec<Entry> = plan
        .steps
        .iter()
        .map(|step| Entry {
            knob: step.knob.clone(),
            old: step.knob.read(&device).ok(),
            new: step.target.clone(),
        })
        .filter(|entry| entry.old.as_ref() != Some(&entry.new))
        .collect();
    let undo = if entries.is_empty() {
        None
    } else {
        let journal = Journal::new(plan.policy, &plan.interface, plan.ifindex, lifetime, entries);
        let path = directory.write(&journal)?;
        Some(Undo { directory: directory.clone(), path, journal })
    };
    let undo = Arc::new(Mutex::new(undo));
    let signals = match lifetime {
        Lifetime::Process => {
            let undo = Arc::clone(&undo);
            let restore = move || drop(self::undo(&undo));
            Some(signals::on_termination(restore).map_err(Error::kernel("watch for signals"))?)
        }
        Lifetime::Host => None,
    };
    // From here on a guard exists, so that a panic in a knob restores too.
    let mut guard = Guard { applied: Vec::new(), undo, signals };
    for step in &plan.steps {
        let outcome = turn(&step.knob, &step.target, &device);
        guard.applied.push(Applied { knob: step.knob.clone(), target: step.target.clone(), outcome });
    }
    Ok(guard)
}

fn turn(knob: &Knob, target: &Value, device: &Device) -> Outcome {
    if knob.read(device).is_ok_and(|now| now == *target) {
        return Outcome::Already;
    }
    if let Err(error) = knob.write(device, target) {
        return Outcome::Failed { reason: error.to_string() };
    }
    match knob.read(device) {
        Ok(value) if value == *target => Outcome::Set,
        Ok(value) => Outcome::ReadsBack { value: value.to_string() },
        Err(error) => Outcome::ReadsBack { value: format!("nothing ({error})") },
    }
}

/// Puts back what processes that are gone left in this network namespace.
pub fn recover(directory: &JournalDir) -> Result<Vec<RestoreReport>, Error> {
    restore_where(directory, |journal| journal.lifetime == Lifetime::Process && !journal.writer.is_alive())
}

/// Puts back everything that `policies apply` set and what processes that are gone left. The
/// settings of a running process are its own and stay.
pub fn restore_all(directory: &JournalDir, interface: Option<&str>) -> Result<Vec<RestoreReport>, Error> {
    restore_where(directory, |journal| {
        interface.is_none_or(|name| name == journal.interface)
            && (journal.lifetime == Lifetime::Host || !journal.writer.is_alive())
    })
}

fn restore_where(
    directory: &JournalDir,
    select: impl Fn(&Journal) -> bool,
) -> Result<Vec<RestoreReport>, Error> {
    let mut reports = Vec::new();
    for (path, journal) in directory.read()? {
        if !select(&journal) {
            continue;
        }
        let report = put_back(&journal);
        if !report.failed() {
            directory.remove(&path)?;
        }
        reports.push(report);
    }
    Ok(reports)
}

fn put_back(journal: &Journal) -> RestoreReport {
    let device = Device::new(&journal.interface, journal.ifindex);
    let knobs = journal
        .entries
        .iter()
        .rev()
        .map(|entry| (entry.knob.clone(), put_back_one(entry, &device)))
        .collect();
    RestoreReport { interface: journal.interface.clone(), policy: journal.policy, knobs }
}

fn put_back_one(entry: &Entry, device: &Device) -> Restored {
    let now = match entry.knob.read(device) {
        Ok(now) => now,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Restored::Gone,
        Err(error) => return Restored::Failed { reason: error.to_string() },
    };
    let Some(old) = &entry.old else {
        // It didn't exist before: it goes with the knob that made it.
        return if entry.knob.vanishes_with_its_owner() {
            Restored::Gone
        } else {
            Restored::Failed { reason: "its old value could not be read".to_owned() }
        };
    };
    if now == *old {
        return Restored::Restored;
    }
    if now != entry.new {
        return Restored::ChangedMeanwhile { value: now.to_string() };
    }
    match entry.knob.write(device, old) {
        Ok(()) => Restored::Restored,
        Err(error) => Restored::Failed { reason: error.to_string() },
    }
}
