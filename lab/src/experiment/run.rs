//! Runs an experiment.

use std::time::{Duration, Instant};

use policies::Policy;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

use super::bed::Bed;
use super::capacity::{FIRST, STEP, search};
use super::contender::Contender;
use super::plan::{Experiment, Load, STEAL_LIMIT};
use super::running::RunningContender;
use crate::Error;
use crate::cores::CoreAssignment;
use crate::fleet::{FleetLoad, FleetPacing};
use crate::processes::RunningPolicy;
use crate::rounds::{Figure, LEAST_ROUNDS, LoadKind, LoadPlan, Results, Runner, Status, share_of_time};
use crate::testbed::Receiver;

/// The seed of the first contender's due times and requests; the others' follow.
const SEED: u64 = 1;

#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Outcome {
    pub results: Results,
    /// The capacity that shares refer to, requests per second. `None` without shares.
    pub capacity: Option<f64>,
    /// Why no capacity was found, if one was searched.
    pub no_capacity: Option<String>,
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
        let deadline = Instant::now() + self.time_limit;
        let mut runner = Runner::new(cores, progress);
        let (mut capacity, mut no_capacity) = (self.given_capacity, None);
        let mut receiver = self.receivers.first().copied().unwrap_or_default();
        if self.searches_capacity() {
            let limit = self.time_limit.mul_f64(self.capacity_share);
            let name = format!("capacity (p99 of at most {:.0} µs)", self.capacity_p99_us);
            let plan = LoadPlan {
                receiver: Some(receiver),
                steal_limit: STEAL_LIMIT,
                ..LoadPlan::new(name, LoadKind::Capacity, 0.0, self.capacity_rounds, limit)
            };
            let mut random = SmallRng::seed_from_u64(SEED);
            let mut starts = vec![FIRST; names.len()];
            let measured = runner.measure(plan, &names, |index| {
                let turn = search(running.get(index, receiver)?, starts[index], self)?;
                // The next search begins where this one ended, but elsewhere within a step:
                // otherwise all results would lie on one grid.
                if let Some(rate) = turn.figures.get(&Figure::Capacity) {
                    starts[index] = (rate * STEP.powf(random.random::<f64>() - 0.5), STEP);
                }
                Ok(turn)
            })?;
            let least = LEAST_ROUNDS.min(self.capacity_rounds);
            let median = |&it: &usize| measured.median(it, Figure::Capacity, least);
            let medians = self.references.iter().filter_map(median);
            capacity = medians.reduce(f64::max);
            if capacity.is_none() && self.given_capacity.is_none() {
                let mut turns =
                    measured.turns.iter().filter(|turn| self.references.contains(&turn.contender));
                let reason = turns
                    .find_map(|it| Some(format!(": {}: {}", names[it.contender], it.turn.invalid.as_ref()?)))
                    .unwrap_or_default();
                no_capacity = Some(format!("no capacity was found that rates could be shares of{reason}"));
            }
        }
        capacity = self.given_capacity.or(capacity);
        let has_rate = |load: &&Load| capacity.is_some() || !load.needs_capacity();
        let mut loads = self.loads_by_receiver();
        loads.retain(|(load, _)| has_rate(&load));
        // What came before may have taken twice its time.
        let searched = if self.searches_capacity() { self.capacity_share } else { 0.0 };
        let least = self.time_limit.mul_f64((1.0 - searched) / loads.len().max(1) as f64);
        for (index, &(load, its)) in loads.iter().enumerate() {
            receiver = its;
            let limit = share_of_time(deadline, loads.len() - index).max(least);
            let (mut plan, load) = self.plan(load, capacity.unwrap_or(0.0), limit);
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
        Ok(Outcome { results, capacity, no_capacity, servers })
    }

    fn plan(&self, load: Load, capacity: f64, limit: Duration) -> (LoadPlan, FleetLoad) {
        let open = |rate: f64| (format!("{rate:.0}/s"), LoadKind::Open, rate, FleetPacing::Open { rate });
        // To hundreds, for legibility, and not less than a hundred requests per second.
        let of_capacity = |share: f64| (capacity * share / 100.0).round().max(1.0) * 100.0;
        let mut share = None;
        let (name, kind, at, pacing) = match load {
            Load::Share(it) => {
                share = Some(it);
                open(of_capacity(it))
            }
            Load::Rate(rate) => open(rate),
            Load::Closed => {
                let pacing = FleetPacing::Closed;
                ("closed loop".to_owned(), LoadKind::Closed, self.connections as f64, pacing)
            }
        };
        let plan = LoadPlan {
            share,
            pacing: Some(pacing),
            steal_limit: STEAL_LIMIT,
            ..LoadPlan::new(name, kind, at, self.rounds, limit)
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
