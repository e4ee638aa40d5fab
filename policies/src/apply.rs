//! Applying a plan, and putting back what was there.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::device::Device;
use crate::grace_time::nanos;
use crate::journal::Journal;
use crate::knob::Written;
use crate::restore::{put_back, restore_where};
use crate::signals::{self, Registration};
use crate::{Error, JournalDir, Knob, Lifetime, Plan, Policy, RestoreReport, Settings, Value, host};

/// How one step of a plan went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    /// It had the value already.
    Already,
    /// It was set, and reads back as the target.
    Set,
    /// It was set to the most that the device takes.
    AtLimit {
        /// What the device has.
        value: String,
    },
    /// It was set, and takes effect with the interrupt's next one: without interrupt remapping the
    /// kernel moves an interrupt only while it handles it (`irq_move_masked_irq`).
    Pending {
        /// The CPUs that the interrupt goes to until then.
        still: String,
    },
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
    /// Whether the knob now has its target value, or what the device allows of it.
    pub fn is_ok(&self) -> bool {
        !matches!(self, Outcome::Failed { .. } | Outcome::ReadsBack { .. })
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
    /// The policy that it is for.
    pub policy: Policy,
    /// How it went.
    #[serde(flatten)]
    pub outcome: Outcome,
}

impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Outcome::Already => write!(f, "{} is {} already", self.knob, self.target),
            Outcome::Set => write!(f, "{} set to {}", self.knob, self.target),
            Outcome::Pending { still } => write!(
                f,
                "{} set to {}, from its next interrupt on (until then it goes to {still})",
                self.knob, self.target
            ),
            Outcome::AtLimit { value } => {
                write!(f, "{} set to {value}: the device takes no more ({} asked)", self.knob, self.target)
            }
            Outcome::Failed { reason } => write!(
                f,
                "{} could not be set to {}: {reason}; without it {}",
                self.knob,
                self.target,
                self.knob.without(self.policy)
            ),
            Outcome::ReadsBack { value } => write!(
                f,
                "{} was set to {} but reads back {value}; without it {}",
                self.knob,
                self.target,
                self.knob.without(self.policy)
            ),
        }
    }
}

/// A plan that has been applied. Dropping it puts the old values back; so do SIGINT and SIGTERM, and
/// after SIGKILL the next [`apply`] or [`recover`](crate::recover).
#[derive(Debug)]
#[must_use = "dropping the guard restores the host at once"]
pub struct Guard {
    plan: Plan,
    applied: Vec<Applied>,
    directory: JournalDir,
    undo: Arc<Mutex<Option<Undo>>>,
    signals: Option<Registration>,
}

#[derive(Debug)]
struct Undo {
    /// `None` where the journal could not be written, because nothing had to be.
    path: Option<PathBuf>,
    journal: Journal,
}

impl Undo {
    /// Writes the journal; from then on what it says may be done.
    fn record(&mut self, directory: &JournalDir) -> Result<(), Error> {
        match directory.write(&self.journal) {
            Ok(path) => self.path = Some(path),
            // A process that may write nothing can still run on what was prepared for it.
            Err(_) if self.journal.entries.is_empty() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl Guard {
    /// Each step and how it went.
    pub fn applied(&self) -> &[Applied] {
        &self.applied
    }

    /// The plan that holds now: the one that was given, or where the number of queues was changed, the
    /// one that was made after that.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Leaves the host as it is now. The journal stays, for `policies restore`.
    pub fn keep(mut self) -> Vec<Applied> {
        lock(&self.undo).take();
        std::mem::take(&mut self.applied)
    }

    /// Puts the old values back now, and tells how it went.
    pub fn restore(self) -> Option<Result<RestoreReport, Error>> {
        undo(&self.directory, &self.undo)
    }

    /// Turns those knobs again that have lost their value, and returns them with what they had: others
    /// have set them, or the device has forgotten them when its link was reopened. `only_forgotten`
    /// leaves those alone that have neither the value from before nor the one that was set.
    pub(crate) fn reapply(
        &mut self,
        select: impl Fn(&Knob) -> bool,
        only_forgotten: bool,
    ) -> Vec<(Applied, Option<Value>)> {
        let device = Device::new(&self.plan.interface, self.plan.ifindex);
        // Held to the end: what a signal has put back must not be turned again.
        let undo = lock(&self.undo);
        let Some(Undo { journal, .. }) = &*undo else { return Vec::new() };
        let before = |knob: &Knob| {
            journal.entries.iter().find(|entry| entry.knob == *knob).and_then(|entry| entry.old.clone())
        };
        let mut turned = Vec::new();
        for applied in self.applied.iter().filter(|applied| select(&applied.knob)) {
            let held = match &applied.outcome {
                Outcome::AtLimit { value } => value.clone(),
                Outcome::Already | Outcome::Set | Outcome::Pending { .. } => applied.target.to_string(),
                // It could not be had before.
                Outcome::Failed { .. } | Outcome::ReadsBack { .. } => continue,
            };
            let now = applied.knob.read(&device).ok();
            let kept = now.as_ref().is_none_or(|now| now.to_string() == held);
            // What it had without this process's doing may be just what it has forgotten.
            let before = before(&applied.knob);
            if kept || (only_forgotten && before.is_some() && now != before) {
                continue;
            }
            let mut again = applied.clone();
            // The limit is known by now, and not looked for again.
            let target = match (&applied.outcome, held.parse()) {
                (Outcome::AtLimit { .. }, Ok(limit)) => Value::Number(limit),
                _ => applied.target.clone(),
            };
            (again.outcome, _) = turn(&applied.knob, &target, &device);
            turned.push((again, now));
        }
        turned
    }

    /// Does something as long as the host has not been put back, and keeps that from happening meanwhile.
    pub(crate) fn while_held<R>(&self, action: impl FnOnce() -> R) -> Option<R> {
        let undo = lock(&self.undo);
        undo.is_some().then(action)
    }

    /// From now on a NAPI's grace time is meant to be this.
    pub(crate) fn settle_grace_time(&mut self, queue: u32, time: Duration) {
        for applied in &mut self.applied {
            if applied.knob == (Knob::NapiGroFlushTimeout { queue }) {
                applied.target = Value::Number(nanos(time));
            }
        }
    }

    /// Follows the interface to another name, in the journal first.
    pub(crate) fn rename(&mut self, name: &str) -> Result<(), Error> {
        name.clone_into(&mut self.plan.interface);
        let _locked = self.directory.lock();
        let mut slot = lock(&self.undo);
        let Some(undo) = slot.as_mut() else { return Ok(()) };
        name.clone_into(&mut undo.journal.interface);
        let old = undo.path.clone();
        undo.record(&self.directory)?;
        match old.filter(|old| Some(old) != undo.path.as_ref()) {
            Some(old) => self.directory.remove(&old),
            None => Ok(()),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Unregistered first, so that a signal in between finds nothing half undone.
        self.signals.take();
        if let Some(Err(error)) = undo(&self.directory, &self.undo) {
            eprintln!("lull: the host's settings were not put back: {error}; run: policies restore");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The journals are locked before the slot, as `apply` does: a signal in the middle of that waits for it.
fn undo(directory: &JournalDir, undo: &Mutex<Option<Undo>>) -> Option<Result<RestoreReport, Error>> {
    let _locked = directory.lock();
    let mut slot = lock(undo);
    let Undo { path, journal } = slot.take()?;
    let report = put_back(&journal);
    if report.failed() {
        // Kept, so that a later restore can try again.
        return Some(Ok(report));
    }
    let Some(path) = path else { return Some(Ok(report)) };
    Some(directory.remove(&path).map(|()| report))
}

/// Applies a plan: journals the old values, then turns the knobs in order, reading each back.
///
/// A knob that can't be set doesn't stop the others; its [`Outcome`] says why. What an earlier,
/// killed process left on the interface is put back first. Where the number of queues is to change,
/// that is done first, and the rest is planned anew.
///
/// # Errors
/// Where the journal can't be written (then nothing was changed), or a running process holds queues
/// that the plan is for.
pub fn apply(plan: &Plan, lifetime: Lifetime, directory: &JournalDir) -> Result<Guard, Error> {
    let locked = directory.lock();
    let turned = prepare(plan, lifetime, directory).map(|(mut guard, others)| {
        let result = guard.turn_all(&others);
        (guard, result)
    });
    // A guard that is dropped for an error locks the journals itself, to put back.
    drop(locked);
    let (guard, result) = turned?;
    result.map(|()| guard)
}

/// All that comes before the first change.
fn prepare(plan: &Plan, lifetime: Lifetime, directory: &JournalDir) -> Result<(Guard, Vec<Journal>), Error> {
    let mut restored = !restore_where(directory, Journal::is_abandoned)?.is_empty();
    let others: Vec<Journal> = directory
        .read()?
        .into_iter()
        .map(|(_, journal)| journal)
        .filter(|journal| journal.ifindex == plan.ifindex && journal.lifetime == Lifetime::Process)
        .collect();
    refuse_taken(plan, lifetime, &others)?;
    if lifetime == Lifetime::Host {
        // A second `policies apply` replaces the first rather than lying on top of it.
        let replaced = restore_where(directory, |journal| {
            journal.ifindex == plan.ifindex && journal.lifetime == Lifetime::Host
        })?;
        restored |= !replaced.is_empty();
    }
    // A plan that was made before something was put back does not know what is to be done now.
    let again = if restored {
        Some(Plan::new(plan.policy, &host::interface_at(plan.ifindex)?, &plan.settings))
    } else {
        None
    };
    let plan = again.as_ref().unwrap_or(plan);
    let device = Device::new(&plan.interface, plan.ifindex);
    let mut journal = Journal::new(plan.policy, &plan.interface, plan.ifindex, lifetime, plan.queues.clone());
    journal.note_all(plan, &device);
    if plan.rebuilds_queues().is_some() {
        journal.note_what_rebuilding_loses(&host::interface_at(plan.ifindex)?, &device);
    }
    let mut undo = Undo { path: None, journal };
    undo.record(directory)?;
    let undo = Arc::new(Mutex::new(Some(undo)));
    let signals = match lifetime {
        Lifetime::Process => {
            let undo = Arc::clone(&undo);
            let directory = directory.clone();
            let restore = move || drop(self::undo(&directory, &undo));
            Some(signals::on_termination(restore).map_err(Error::kernel("watch for signals"))?)
        }
        Lifetime::Host => None,
    };
    let guard =
        Guard { plan: plan.clone(), applied: Vec::new(), directory: directory.clone(), undo, signals };
    Ok((guard, others))
}

fn refuse_taken(plan: &Plan, lifetime: Lifetime, others: &[Journal]) -> Result<(), Error> {
    for other in others {
        // What is meant to outlive this process lies below, not beside, what running ones have set.
        let all = lifetime == Lifetime::Host;
        let conflict: crate::Cpus =
            other.queues.iter().copied().filter(|queue| all || plan.queues.contains(queue)).collect();
        if conflict.is_empty() && (lifetime == Lifetime::Process || other.entries.is_empty()) {
            continue;
        }
        let free: crate::Cpus = plan
            .queues
            .iter()
            .copied()
            .filter(|queue| !others.iter().any(|other| other.queues.contains(queue)))
            .collect();
        return Err(Error::QueuesInUse {
            interface: plan.interface.clone(),
            policy: other.policy,
            pid: other.writer.pid,
            queues: conflict,
            free: (!free.is_empty()).then_some(free),
        });
    }
    Ok(())
}

impl Guard {
    fn turn_all(&mut self, others: &[Journal]) -> Result<(), Error> {
        let device = Device::new(&self.plan.interface, self.plan.ifindex);
        if self.plan.rebuilds_queues().is_some() {
            self.rebuild(&device, others)?;
        }
        for step in self.plan.steps.clone() {
            let done = self.applied.iter().any(|applied| applied.knob == step.knob);
            if !done {
                self.turn(&step.knob, &step.target, &device, others)?;
            }
        }
        Ok(())
    }

    /// Changes the number of queues, and plans the rest for those that there are then.
    fn rebuild(&mut self, device: &Device, others: &[Journal]) -> Result<(), Error> {
        let Some(step) = self.plan.rebuilds_queues().cloned() else { return Ok(()) };
        self.turn(&step.knob, &step.target, device, others)?;
        if self.applied.last().is_some_and(|applied| !applied.outcome.is_ok()) {
            // The queues are those that the plan was made for.
            return Ok(());
        }
        device.forget();
        let settings = Settings { channels: None, ..self.plan.settings.clone() };
        let interface = settle(self.plan.ifindex, &step.target)?;
        let mut plan = Plan::new(self.plan.policy, &interface, &settings);
        if let Some(undo) = lock(&self.undo).as_mut() {
            undo.journal.queues.clone_from(&plan.queues);
            undo.journal.note_all(&plan, device);
            undo.record(&self.directory)?;
        }
        plan.steps.insert(0, step);
        self.plan = plan;
        Ok(())
    }

    fn turn(
        &mut self,
        knob: &Knob,
        target: &Value,
        device: &Device,
        others: &[Journal],
    ) -> Result<(), Error> {
        // Another number of queues takes from the others what they have set on theirs.
        let rebuilds = matches!(knob, Knob::Channels { .. });
        let holder = others.iter().find(|other| {
            let same = || other.entries.iter().any(|entry| entry.knob == *knob);
            knob.queue().is_none() && (same() || rebuilds && !other.queues.is_empty())
        });
        let (outcome, limit) = match holder {
            Some(other) if knob.read(device).ok().as_ref() != Some(target) => {
                let what =
                    if rebuilds { "has queues of the device" } else { "holds it for the whole device" };
                let reason = format!("process {} {what}", other.writer.pid);
                (Outcome::Failed { reason }, None)
            }
            _ => turn(knob, target, device),
        };
        if knob.has_limit()
            && let Some(undo) = lock(&self.undo).as_mut()
        {
            // The search is over: from now on another value is somebody else's.
            undo.journal.settle(knob, limit);
            undo.record(&self.directory)?;
        }
        let applied =
            Applied { knob: knob.clone(), target: target.clone(), policy: self.plan.policy, outcome };
        self.applied.push(applied);
        Ok(())
    }
}

/// Waits until the device has as many queues as it was told to have, or for two seconds.
fn settle(ifindex: u32, target: &Value) -> Result<host::Interface, Error> {
    let end = Instant::now() + Duration::from_secs(2);
    loop {
        let interface = host::interface_at(ifindex)?;
        let ready = Value::Number(interface.queues.len() as u64) == *target
            && interface.queues.iter().all(|queue| queue.napi.is_some());
        if ready || Instant::now() > end {
            return Ok(interface);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Turns a knob; and says what it has instead of the target, where the device has a limit.
fn turn(knob: &Knob, target: &Value, device: &Device) -> (Outcome, Option<Value>) {
    if knob.read(device).is_ok_and(|now| now == *target) {
        return (not_yet(knob, target, device).unwrap_or(Outcome::Already), None);
    }
    let written = match knob.write(device, target) {
        Ok(written) => written,
        Err(error) => return (Outcome::Failed { reason: error.to_string() }, None),
    };
    let (expected, limit) = match &written {
        Written::Whole => (target, None),
        Written::Limit(value) => (value, Some(value.clone())),
    };
    let outcome = match knob.read(device) {
        Ok(value) if value == *expected => match &limit {
            Some(limit) => Outcome::AtLimit { value: limit.to_string() },
            None => not_yet(knob, target, device).unwrap_or(Outcome::Set),
        },
        Ok(value) => Outcome::ReadsBack { value: value.to_string() },
        Err(error) => Outcome::ReadsBack { value: format!("nothing ({error})") },
    };
    (outcome, limit)
}

fn not_yet(knob: &Knob, target: &Value, device: &Device) -> Option<Outcome> {
    knob.still_goes_to(device, target).map(|cpus| Outcome::Pending { still: cpus.to_string() })
}
