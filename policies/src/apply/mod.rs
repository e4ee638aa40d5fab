//! Carries out a plan: journals the old values, writes and verifies each knob, restores on drop.

mod adapted_queue;
mod guard;
mod left_entries;
#[cfg(feature = "tools")]
mod other_processes;
mod outcome;

use std::sync::{Arc, Mutex};

pub use adapted_queue::{AdaptedQueue, QueueDelegate};
pub use guard::Guard;
use guard::{Undo, lock, restore_on_termination};
use left_entries::LeftEntries;
#[cfg(feature = "tools")]
pub(crate) use other_processes::{EpollJournal, Steering};
use outcome::write_verified;
pub use outcome::{Applied, Outcome};

use crate::error::Error;
use crate::host::device::Device;
use crate::host::process::network_namespace;
use crate::host::{Cpus, interface_by_index, wait_for_queues};
use crate::journal::{FoundJournal, Journal, JournalDir, Lifetime, Originals, restore_where};
use crate::knob::{Knob, Value};
use crate::plan::{Note, Plan, Settings, Step};
use crate::policy::Policy;

/// Applies a plan: journals the old values, then sets the knobs in order and reads each back.
///
/// A knob that can't be set doesn't stop the others; its [`Outcome`] has the reason. Under
/// [`KernelThread`](crate::Policy::KernelThread) a thread that can't be had ends the policy: what
/// was set is put back, and vanilla is applied ([`Guard::plan`] has its plan). What an ended
/// process left set on the interface is restored first. A change of the number of queues comes
/// first, and the other steps are planned again after it.
///
/// # Errors
/// [`Error::Journal`] if the journal can't be written, the directory of journals can't be locked,
/// or a running process has a journal that can't be read; the plan changes nothing then.
/// [`Error::QueuesInUse`] if a running process holds queues of the plan. [`Error::NoInterface`] if
/// the interface no longer exists, [`Error::Kernel`] if signals can't be watched.
pub fn apply(plan: &Plan, lifetime: Lifetime, directory: &JournalDir) -> Result<Guard, Error> {
    let (locked, refusal) = match directory.lock() {
        Ok(locked) => (Some(locked), None),
        Err(error) => (None, Some(error)),
    };
    let prepared = match refusal {
        None => prepare(plan, lifetime, directory),
        Some(error) => prepare_without_lock(plan, lifetime, directory, error),
    };
    let applied = prepared.map(|(mut guard, others)| {
        let device = Device::new(&guard.plan.interface, guard.plan.ifindex);
        let result = guard.set_steps(&device, &others);
        (guard, result)
    });
    // Unlocked before an error drops the guard, whose restore takes the lock.
    drop(locked);
    let (guard, result) = applied?;
    result.map(|()| guard)
}

/// Everything before the first change. Also returns the journals of other running processes on the
/// interface.
fn prepare(plan: &Plan, lifetime: Lifetime, directory: &JournalDir) -> Result<(Guard, Vec<Journal>), Error> {
    let mut restored = restore(directory, FoundJournal::is_abandoned)?;
    let others = others(plan, directory)?;
    check_conflicts(plan, lifetime, &others)?;
    if lifetime == Lifetime::Host {
        // A second `policies apply` replaces the first.
        restored |= restore(directory, |found| {
            found.journal.ifindex == plan.ifindex && found.journal.lifetime == Lifetime::Host
        })?;
    }
    // The restore changed values that the plan was made from.
    let new_plan = if restored {
        Some(Plan::new(plan.policy, &interface_by_index(plan.ifindex)?, &plan.settings))
    } else {
        None
    };
    let plan = new_plan.as_ref().unwrap_or(plan);
    // What could not be restored above.
    let left = LeftEntries::read(directory, plan.ifindex, |found| {
        found.is_abandoned() || lifetime == Lifetime::Host && found.journal.lifetime == Lifetime::Host
    })?;
    let mut undo = Undo::new(record(plan, lifetime, &|knob, now| left.original_of(knob, now))?);
    undo.write(directory)?;
    left.give_to(&undo.journal, directory);
    Ok((guard(plan, lifetime, directory, undo)?, others))
}

/// For a process that may not lock the directory. If there is nothing to set, it can run on an
/// interface that was configured for it; else it gets `error`.
fn prepare_without_lock(
    plan: &Plan,
    lifetime: Lifetime,
    directory: &JournalDir,
    error: Error,
) -> Result<(Guard, Vec<Journal>), Error> {
    let others = others(plan, directory)?;
    check_conflicts(plan, lifetime, &others)?;
    let undo = Undo::new(record(plan, lifetime, &|_, _| None)?);
    if !undo.journal.entries.is_empty() {
        return Err(error);
    }
    Ok((guard(plan, lifetime, directory, undo)?, others))
}

/// Restores journals of this network namespace. Returns whether there were any.
fn restore(directory: &JournalDir, select: impl Fn(&FoundJournal) -> bool) -> Result<bool, Error> {
    let recovery = restore_where(directory, select)?;
    match recovery.left.into_iter().next() {
        // It would be restored again, after this policy was applied.
        Some(left) => Err(left.into_error()),
        None => Ok(!recovery.reports.is_empty()),
    }
}

fn others(plan: &Plan, directory: &JournalDir) -> Result<Vec<Journal>, Error> {
    let contents = directory.read()?;
    let namespace = network_namespace();
    for unreadable in contents.unreadable {
        if !unreadable.may_concern(namespace, Some(plan.ifindex)) {
            continue;
        }
        if unreadable.is_held == Some(false) {
            // Its process has ended, so it holds no queues.
            tracing::warn!("{}", unreadable.left);
        } else {
            return Err(unreadable.into_error());
        }
    }
    // One whose settings could not be restored stays after its process has ended, which holds no
    // queues any more.
    let running = contents.journals.into_iter().filter(|found| !found.is_abandoned());
    Ok(running
        .map(|found| found.journal)
        .filter(|journal| journal.ifindex == plan.ifindex && journal.lifetime == Lifetime::Process)
        .collect())
}

/// A journal with the present value of each knob that the plan changes.
fn record(plan: &Plan, lifetime: Lifetime, original: Originals<'_>) -> Result<Journal, Error> {
    let device = Device::new(&plan.interface, plan.ifindex);
    let mut journal = Journal::new(plan.policy, &plan.interface, plan.ifindex, lifetime, plan.queues.clone());
    journal.record_plan_over(plan, &device, original);
    if plan.rebuilds_queues() {
        journal.record_all_queues(&interface_by_index(plan.ifindex)?, &device, original);
    }
    Ok(journal)
}

fn guard(plan: &Plan, lifetime: Lifetime, directory: &JournalDir, undo: Undo) -> Result<Guard, Error> {
    let undo = Arc::new(Mutex::new(Some(undo)));
    let signals = match lifetime {
        Lifetime::Process => Some(restore_on_termination(directory, &undo)?),
        Lifetime::Host => None,
    };
    Ok(Guard { plan: plan.clone(), applied: Vec::new(), directory: directory.clone(), undo, signals })
}

fn check_conflicts(plan: &Plan, lifetime: Lifetime, others: &[Journal]) -> Result<(), Error> {
    for other in others {
        // A policy for the host would change the values that running processes restore to, on any
        // queue.
        let all = lifetime == Lifetime::Host;
        let conflict: Cpus =
            other.queues.iter().copied().filter(|queue| all || plan.queues.contains(queue)).collect();
        if conflict.is_empty() && (lifetime == Lifetime::Process || other.entries.is_empty()) {
            continue;
        }
        let all = interface_by_index(plan.ifindex)?.queues;
        let free: Cpus = all
            .iter()
            .map(|queue| queue.index)
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
    /// Sets the knobs of the steps that have not been carried out.
    fn set_steps(&mut self, device: &Device, others: &[Journal]) -> Result<(), Error> {
        for step in self.plan.steps.clone() {
            let is_step = |applied: &Applied| applied.knob == step.knob && applied.target == step.target;
            if self.applied.iter().any(is_step) {
                continue;
            }
            self.set(&step.knob, &step.target, device, others)?;
            if self.applied.last().is_some_and(Applied::ends_policy) {
                self.step_down(device)?;
                return self.set_steps(device, others);
            }
            let outcome = self.applied.last().map(|applied| &applied.outcome);
            let is_planned_again = match step.knob {
                // Those that failed are the queues that the plan was made for.
                Knob::Channels { .. } => matches!(outcome, Some(Outcome::Set)),
                Knob::RxRing => !matches!(outcome, Some(Outcome::Already | Outcome::Set)),
                _ => false,
            };
            if is_planned_again {
                self.plan_again(&step, device)?;
                return self.set_steps(device, others);
            }
        }
        Ok(())
    }

    /// For a policy that can't run without a step that failed: puts back what the policy has set,
    /// and plans vanilla instead. The steps that failed stay among the applied ones, with their
    /// reasons; the number of queues and the size of their rings stay changed.
    fn step_down(&mut self, device: &Device) -> Result<(), Error> {
        let is_set = |knob: &Knob| self.applied.iter().any(|it| it.knob == *knob && it.outcome.is_ok());
        let mut undo = lock(&self.undo);
        if let Some(undo) = undo.as_mut() {
            undo.journal.give_up(device, is_set);
        }
        self.applied.retain(|it| !it.outcome.is_ok() || it.knob.rebuilds_queues());
        let settings = Settings { channels: None, rx_ring: None, ..self.plan.settings.clone() };
        let mut plan = Plan::new(Policy::Vanilla, &interface_by_index(self.plan.ifindex)?, &settings);
        if let Some(undo) = undo.as_mut() {
            undo.journal.policy = plan.policy;
            undo.journal.record_plan(&plan, device);
            undo.write(&self.directory)?;
        }
        let rebuilding = self.plan.steps.iter().filter(|step| step.knob.rebuilds_queues()).cloned();
        plan.steps.splice(0..0, rebuilding);
        let mut notes = std::mem::take(&mut self.plan.notes);
        notes.retain(|note| !plan.notes.contains(note));
        plan.notes.splice(0..0, notes);
        self.plan = plan;
        Ok(())
    }

    /// Plans the steps again that follow one after which the queues, or the size of their rings, are
    /// others than before.
    fn plan_again(&mut self, step: &Step, device: &Device) -> Result<(), Error> {
        device.invalidate_queues();
        let mut settings = self.plan.settings.clone();
        let interface = if step.knob == Knob::RxRing {
            // The size that the rings have counts, and not the one that was asked for.
            settings.rx_ring = None;
            interface_by_index(self.plan.ifindex)?
        } else {
            wait_for_queues(self.plan.ifindex, step.target.number())?
        };
        let mut plan = Plan::new(self.plan.policy, &interface, &settings);
        plan.settings.rx_ring = self.plan.settings.rx_ring;
        let end = self.plan.steps.iter().position(|other| other.knob == step.knob).map_or(0, |at| at + 1);
        let done = &self.plan.steps[..end];
        plan.steps.retain(|planned| done.iter().all(|done| done.knob != planned.knob));
        if let Some(undo) = lock(&self.undo).as_mut() {
            undo.journal.queues.clone_from(&plan.queues);
            for planned in &plan.steps {
                undo.journal.retarget(&planned.knob, &planned.target);
            }
            undo.journal.record_plan(&plan, device);
            undo.write(&self.directory)?;
        }
        plan.steps.splice(0..0, done.iter().cloned());
        let stays = |note: &&Note| matches!(note, Note::RingsRebuilt) && !plan.notes.contains(note);
        let notes: Vec<Note> = self.plan.notes.iter().filter(stays).cloned().collect();
        plan.notes.extend(notes);
        self.plan = plan;
        Ok(())
    }

    /// Sets one knob and records the result, unless another process holds the knob.
    fn set(&mut self, knob: &Knob, target: &Value, device: &Device, others: &[Journal]) -> Result<(), Error> {
        let (outcome, owned) = match self.refusal_of_others(knob, target, device, others) {
            Some(refusal) => (refusal, Some(target.clone())),
            None => write_verified(knob, target, device),
        };
        if (knob.has_limit() || knob.is_rounded())
            && let Some(owned) = owned
            && let Some(undo) = lock(&self.undo).as_mut()
        {
            // What the device makes of the target is known: any other value is somebody else's.
            undo.journal.finalize(knob, &owned);
            undo.write(&self.directory)?;
        }
        // Also for a size that reads back as another: the rings may have been rebuilt.
        let rebuilds = *knob == Knob::RxRing && !matches!(outcome, Outcome::Already | Outcome::Failed { .. });
        let applied =
            Applied { knob: knob.clone(), target: target.clone(), policy: self.plan.policy, outcome };
        tracing::debug!(interface = self.plan.interface, "{applied}");
        self.applied.push(applied);
        if rebuilds {
            device.invalidate_queues();
            wait_for_queues(self.plan.ifindex, None)?;
        }
        Ok(())
    }

    /// Why a knob is not set: another process holds it.
    fn refusal_of_others(
        &self,
        knob: &Knob,
        target: &Value,
        device: &Device,
        others: &[Journal],
    ) -> Option<Outcome> {
        // Rebuilding the queues would reset what other processes have set on theirs.
        let changes_queues = knob.rebuilds_queues();
        let holder = others.iter().find(|other| {
            let has_entry = || other.entries.iter().any(|entry| entry.knob == *knob);
            knob.queue().is_none() && (has_entry() || changes_queues && !other.queues.is_empty())
        });
        let holder = holder.filter(|_| knob.read(device).ok().as_ref() != Some(target))?;
        let what =
            if changes_queues { "holds queues of the device" } else { "has set it for the whole device" };
        Some(Outcome::Failed { reason: format!("process {} {what}", holder.writer.pid) })
    }
}
