//! Runs an experiment.

use policies::Policy;
use serde::Serialize;

use super::bed::Bed;
use super::contender::Contender;
use super::plan::{Experiment, Load, STEAL_LIMIT};
use super::running::RunningContender;
use crate::Error;
use crate::cores::CoreAssignment;
use crate::fleet::{FleetLoad, FleetPacing};
use crate::processes::RunningPolicy;
use crate::rounds::{LoadKind, LoadPlan, Results, Runner, Status};
use crate::testbed::Receiver;

/// The seed of the first contender's due times and requests; the others' follow.
const SEED: u64 = 1;

#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Outcome {
    pub results: Results,
    pub servers: Vec<Option<RunningPolicy>>,
}

/// The thread of kernel-thread polls from the start to the end of the comparison.
fn check_polling_threads(contenders: &[Contender], cores: &CoreAssignment) -> Result<(), Error> {
    let refuse = |reason| {
        let core = cores.packing;
        Err(format!(
            "under a fleet the kernel thread of kernel-thread keeps core {core} busy all the time, also while other servers \
             are measured, and {reason}"
        )
        .into())
    };
    match contenders.iter().filter(|contender| contender.runs(Policy::KernelThread)).count() {
        0 => Ok(()),
        _ if cores.packing_is_shared() => {
            refuse("the fleet runs there; allow lab a third core, or leave kernel-thread out")
        }
        1 => Ok(()),
        _ => refuse("a second one would share it; name kernel-thread once"),
    }
}

/// The contenders that run: on testbeds all of them from the start to the end, on a card one after the
/// other.
struct Running<'a> {
    experiment: &'a Experiment,
    bed: &'a Bed,
    contenders: Vec<Option<RunningContender>>,
    policies: Vec<Option<RunningPolicy>>,
}

impl<'a> Running<'a> {
    fn start(experiment: &'a Experiment, bed: &'a Bed) -> Result<Self, Error> {
        let count = experiment.contenders.len();
        let contenders = (0..count).map(|_| None).collect();
        let mut running = Self { experiment, bed, contenders, policies: vec![None; count] };
        let first = experiment.receivers.first().copied().unwrap_or_default();
        let all = if bed.card.is_none() { 0..count } else { 0..0 };
        all.into_iter().try_for_each(|index| running.get(index, first).map(drop))?;
        Ok(running)
    }

    fn get(&mut self, index: usize, receiver: Receiver) -> Result<&mut RunningContender, Error> {
        if self.bed.card.is_some() {
            let others = self.contenders.iter_mut().enumerate().filter(|(other, _)| *other != index);
            others.for_each(|(_, other)| *other = None);
        }
        let slot = &mut self.contenders[index];
        let contender = match slot {
            Some(contender) => contender,
            None => {
                let Self { experiment, bed, .. } = self;
                let contender = &experiment.contenders[index];
                slot.insert(RunningContender::start(contender, bed, experiment, SEED + index as u64)?)
            }
        };
        self.policies[index].clone_from(&contender.policy);
        contender.receive_by(receiver);
        Ok(contender)
    }
}

impl Experiment {
    /// Measures everything, on a testbed or on a card. Calls `progress` before each turn.
    pub fn run(&self, bed: &Bed, progress: &mut dyn FnMut(&str)) -> Result<Outcome, Error> {
        let cores = &bed.cores;
        if bed.card.is_none() && cores.used().len() < 2 {
            return Err("server and load need a core each, and this process may use one core only".into());
        }
        check_polling_threads(&self.contenders, cores)?;
        let mut running = Running::start(self, bed)?;
        let names: Vec<String> = self.contenders.iter().map(Contender::name).collect();
        let mut runner = Runner::new(cores, progress);
        for (load, receiver) in self.loads_by_receiver() {
            let (mut plan, load) = self.plan(load);
            plan.receiver = Some(receiver);
            if self.receivers.len() > 1 {
                plan.name = format!("{}, {receiver}", plan.name);
            }
            runner.measure(plan, &names, |index| {
                let contender = running.get(index, receiver)?;
                contender.settle(load.pacing, self.settle)?;
                contender.measure(&load)
            })?;
        }
        let mut results = runner.finish(&self.references);
        for load in &mut results.loads {
            for (index, row) in load.rows.iter_mut().enumerate() {
                if let Some(reason) = self.not_comparable(index, cores) {
                    row.status = Status::NotComparable(reason);
                }
            }
        }
        let servers = running.policies;
        Ok(Outcome { results, servers })
    }

    fn plan(&self, load: Load) -> (LoadPlan, FleetLoad) {
        let (name, kind, at, pacing) = match load {
            Load::Rate(rate) => (format!("{rate:.0}/s"), LoadKind::Open, rate, FleetPacing::Open { rate }),
            Load::Closed => {
                let pacing = FleetPacing::Closed;
                ("closed loop".to_owned(), LoadKind::Closed, self.connections as f64, pacing)
            }
        };
        let plan = LoadPlan {
            pacing: Some(pacing),
            steal_limit: STEAL_LIMIT,
            ..LoadPlan::new(name, kind, at, self.rounds, self.time_limit())
        };
        (plan, FleetLoad { pacing, warm_up: self.warm_up, duration: self.duration })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_thread_needs_a_third_core_for_itself() {
        let check = |named: &[&str], packing| {
            let contenders: Vec<Contender> = named.iter().map(|it| it.parse().unwrap()).collect();
            let cores = CoreAssignment { servers: vec![0], clients: vec![1], packing };
            check_polling_threads(&contenders, &cores).map_err(|error| error.to_string())
        };
        let (vanilla, thread, packing) =
            (Policy::Vanilla.name(), Policy::KernelThread.name(), Policy::Packing.name());
        assert_eq!(check(&[vanilla, thread], 2), Ok(()));
        assert_eq!(check(&[vanilla, packing], 1), Ok(()));
        let error = check(&[vanilla, thread], 1).unwrap_err();
        assert!(error.contains("core 1") && error.contains("a third core"), "{error}");
        let error = check(&[thread, thread], 2).unwrap_err();
        assert!(error.contains("name kernel-thread once"), "{error}");
    }
}
