//! The rounds of a comparison under a fleet.

use std::time::Instant;

use loadgen::interleaved_rounds::{ClassRounds, Conditions, RepeatPolicy, Round, Rounds, figures};
use loadgen::medians::median;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

use super::super::core_assignment::CoreAssignment;
use super::super::turn_conditions::{ConditionsGuard, MeasuredRounds, border};
use super::capacity::{Capacity, Start, Trials, search};
use super::config::{FleetComparisonConfig, LOWEST_RATE, rounded};
use super::contender::Contender;
use super::measurement::{STEAL_LIMIT, TurnMeasurement};
use super::rows::{CapacityRow, ClassRows, FleetRow, capacity_rows, fleet_rows};
use super::running_contender::RunningContender;
use super::running_server::{RunningPolicy, ServerMemory};
use crate::Error;
use crate::fleet::{FleetLoad, FleetPacing};
use crate::user_level_server::LostFrames;

/// The first rate that the search for the capacity tries, requests per second.
const FIRST_RATE: f64 = 100_000.0;
/// The seed of the first contender's due times and requests; the others' follow.
const SEED: u64 = 1;

/// All contenders under one load.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct LoadResult<R, T> {
    /// When requests were due; `None` for the search for the capacity.
    pub pacing: Option<FleetPacing>,
    /// The share of the reference's capacity, for rates of the open loop.
    pub share: Option<f64>,
    /// Rows, a table for each class of distance, that with more rounds first.
    pub classes: Vec<ClassRows<R>>,
    /// Every turn.
    pub measured: MeasuredRounds<T>,
    /// The turns that are not valid.
    pub invalid: Vec<InvalidTurn<T>>,
}

/// A turn whose measurement is not valid.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct InvalidTurn<T> {
    /// The index of the contender.
    pub contender: usize,
    /// Why it is not valid.
    pub reason: String,
    /// Steal and the distance of the cores.
    pub conditions: Conditions,
    /// What was measured.
    pub value: T,
}

/// The result of a comparison under a fleet.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct FleetComparisonResult {
    /// The highest rate at which each contender keeps its 99th percentile within the bound.
    pub capacity: LoadResult<CapacityRow, Capacity>,
    /// The open loop at each rate, and the closed one.
    pub loads: Vec<LoadResult<FleetRow, TurnMeasurement>>,
    /// What each contender's worker runs, if it is Lull's.
    pub servers: Vec<Option<RunningPolicy>>,
    /// What each contender and the kernel held for its connections.
    pub memory: Vec<ServerMemory>,
    /// CPU time over elapsed time of each contender, and of the kernel thread that receives for it, while its connections were
    /// idle, 0 to 1. Empty if it was not measured.
    pub idle_cpu: Vec<f64>,
    /// What each contender on a network stack in user space has lost. `None` for the others.
    pub lost_frames: Vec<Option<LostFrames>>,
}

/// What a turn measured.
struct Measured<T> {
    value: T,
    /// Why it is not valid, if it is not.
    invalid: Option<String>,
    /// Steal of the cores that work for the server.
    steal: f64,
}

/// One of the loads.
struct Pace {
    pacing: FleetPacing,
    /// The share of the first contender's capacity.
    share: Option<f64>,
    /// Seconds of a measurement.
    duration: f64,
}

/// All loads, in the order in which they are measured. Shares are of `capacity`, and left out without it.
fn paces(config: &FleetComparisonConfig, capacity: Option<f64>) -> Vec<Pace> {
    let open = |rate, share| Pace { pacing: FleetPacing::Open { rate }, share, duration: config.duration };
    let mut paces: Vec<Pace> = config.rates.iter().map(|&rate| open(rate, None)).collect();
    if let Some(capacity) = capacity {
        let rate = |share: f64| rounded(capacity * share).max(LOWEST_RATE);
        paces.extend(config.shares.iter().map(|&share| open(rate(share), Some(share))));
        paces.extend(config.alternations.iter().map(|alternation| Pace {
            pacing: FleetPacing::Alternating(alternation.rate(capacity)),
            share: None,
            duration: alternation.duration(),
        }));
    }
    if config.closed_loop {
        let pacing = FleetPacing::Closed { think_us: config.think_us };
        paces.push(Pace { pacing, share: None, duration: config.duration });
    }
    paces
}

/// The thread of kernel-thread polls from the start to the end of the comparison.
fn check_polling_threads(contenders: &[Contender], cores: CoreAssignment) -> Result<(), Error> {
    let refuse = |reason| Err(Error::PollingThread { core: cores.packing, reason });
    match contenders.iter().filter(|contender| contender.has_polling_thread()).count() {
        0 => Ok(()),
        _ if cores.packing == cores.client => {
            refuse("the fleet runs there; name a third core with --packing-cores, or leave kernel-thread out")
        }
        1 => Ok(()),
        _ => refuse("a second one would share it; name kernel-thread once"),
    }
}

/// A comparison under a fleet. Each contender runs in its own testbed from the start to the end of the comparison.
#[derive(Debug)]
pub struct FleetComparison {
    config: FleetComparisonConfig,
    cores: CoreAssignment,
    running: Vec<RunningContender>,
    deadline: Instant,
    /// Loads that are still to be measured.
    left: usize,
}

impl FleetComparison {
    /// Starts the contenders.
    ///
    /// # Errors
    /// Without the permission to create network namespaces, or if a server or its fleet can't be started.
    pub fn start(config: FleetComparisonConfig, cores: CoreAssignment) -> Result<Self, Error> {
        if config.contenders.iter().any(Contender::spins) && config.contenders.len() > 1 {
            return Err(Error::SpinningContenders);
        }
        check_polling_threads(&config.contenders, cores)?;
        let start = |(index, contender)| {
            let seed = SEED + index as u64;
            let FleetComparisonConfig { connections, depth, requests, .. } = &config;
            RunningContender::start(contender, cores, *connections, *depth, requests, seed)
        };
        let running = config.contenders.iter().enumerate().map(start).collect::<Result<Vec<_>, _>>()?;
        let (deadline, left) = (Instant::now() + config.time_limit, config.loads());
        Ok(Self { config, cores, running, deadline, left })
    }

    /// Measures everything. Calls `progress` before each turn.
    ///
    /// # Errors
    /// If a server or a fleet exits.
    pub fn run(mut self, mut progress: impl FnMut(&str)) -> Result<FleetComparisonResult, Error> {
        let FleetComparisonConfig { settle, warm_up, rounds, capacity_rounds, .. } = self.config;
        let trials = Trials {
            p99_us: self.config.capacity_p99_us,
            warm_up: self.config.trial_warm_up,
            duration: self.config.trial_duration,
        };
        let mut random = SmallRng::seed_from_u64(SEED);
        let idle_cpu = self.idle_cpu(&mut progress)?;
        let search_capacity = self.config.searches_capacity();
        let capacity_rounds = if search_capacity { capacity_rounds } else { 0 };
        let mut starts = vec![Start::Guess(FIRST_RATE); self.running.len()];
        let (mut capacity, capacity_invalid) =
            self.rounds(capacity_rounds, "capacity", &mut progress, |contender, index| {
                let capacity = search(contender, starts[index], random.random(), trials)?;
                // The next search begins where this one ended.
                starts[index] = Start::Found(capacity.rate);
                let (invalid, steal) = (capacity.invalid.clone(), capacity.steal());
                Ok(Measured { value: capacity, invalid, steal })
            })?;
        let leading = &capacity.finished.leading().rounds;
        let capacities = figures(leading, 0, |capacity: &Capacity| capacity.rate);
        if search_capacity && capacities.is_empty() {
            let mut reasons = vec![capacity.summary()];
            reasons.extend(capacity_invalid.into_iter().map(|turn| turn.reason));
            return Err(Error::NoCapacity(reasons.join("; ")));
        }
        let reference = match self.config.given_capacity {
            Some(capacity) => Some(capacity),
            None => search_capacity.then(|| median(&capacities)),
        };
        let paces = paces(&self.config, reference);
        let (mut measured, mut invalid) = (Vec::new(), Vec::new());
        for &Pace { pacing, duration, .. } in &paces {
            let load = FleetLoad { pacing, warm_up, duration };
            let name = match pacing {
                FleetPacing::Open { rate } => format!("{rate:.0}/s"),
                FleetPacing::Alternating(rate) => rate.to_string(),
                FleetPacing::Closed { .. } => "closed loop".to_owned(),
            };
            let (turns, left_out) = self.rounds(rounds, &name, &mut progress, |contender, _| {
                contender.settle(pacing, settle)?;
                let measurement = contender.measure(&load)?;
                let (invalid, steal) = (measurement.invalid(), measurement.steal);
                Ok(Measured { value: measurement, invalid, steal })
            })?;
            measured.push(turns);
            invalid.push(left_out);
        }
        let ranges = measured.iter().flat_map(MeasuredRounds::ranges).chain(capacity.ranges());
        if let Some(border) = border(ranges.collect::<Vec<_>>().into_iter()) {
            measured.iter_mut().for_each(|measured| measured.name_classes(border));
            capacity.name_classes(border);
        }
        let config = &self.config;
        let loads = paces.into_iter().zip(measured).zip(invalid);
        let loads = loads.map(|((pace, measured), invalid)| LoadResult {
            pacing: Some(pace.pacing),
            share: pace.share,
            classes: class_rows(&measured, |rounds| fleet_rows(config, rounds)),
            measured,
            invalid,
        });
        let loads = loads.collect();
        let capacity = LoadResult {
            pacing: None,
            share: None,
            classes: class_rows(&capacity, |rounds| capacity_rows(config, rounds)),
            measured: capacity,
            invalid: capacity_invalid,
        };
        let servers = self.running.iter().map(|running| running.policy.clone()).collect();
        let memory = self.running.iter().map(|running| running.memory).collect();
        let lost_frames = self.running.iter_mut().map(RunningContender::end_user_level).collect();
        Ok(FleetComparisonResult { capacity, loads, servers, memory, idle_cpu, lost_frames })
    }

    fn idle_cpu(&mut self, progress: &mut impl FnMut(&str)) -> Result<Vec<f64>, Error> {
        let idle = self.config.idle;
        let contenders = self.config.contenders.iter().zip(&mut self.running).filter(|_| idle > 0.0);
        let measure = |(contender, running): (&Contender, &mut RunningContender)| {
            progress(&format!("idle: {}", contender.name()));
            running.idle_cpu(idle)
        };
        contenders.map(measure).collect()
    }

    /// Measures all contenders in rounds, within the load's share of the time that is left.
    fn rounds<T>(
        &mut self,
        count: usize,
        load: &str,
        progress: &mut impl FnMut(&str),
        mut measure: impl FnMut(&mut RunningContender, usize) -> Result<Measured<T>, Error>,
    ) -> Result<(MeasuredRounds<T>, Vec<InvalidTurn<T>>), Error> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let share = if self.left == self.config.loads() && self.config.searches_capacity() {
            left.mul_f64(self.config.capacity_share)
        } else {
            left / u32::try_from(self.left.max(1)).unwrap_or(u32::MAX)
        };
        self.left -= usize::from(count > 0);
        let mut rounds = Rounds::new(self.running.len(), count)
            .time_limit(share)
            .repeat_above(STEAL_LIMIT, RepeatPolicy::Within(share / 2));
        let mut not_valid = Vec::new();
        while let Some(turn) = rounds.next_turn() {
            let contender = turn.contestant();
            let name = self.config.contenders[contender].name();
            progress(&format!("{load}: {name}, round {} of {count}", turn.round() + 1));
            let guard = ConditionsGuard::begin(self.cores)?;
            let Measured { value, invalid, steal } = measure(&mut self.running[contender], contender)?;
            let mut conditions = guard.end()?;
            // The fleet's own core looks after itself: it leaves its pauses out.
            conditions.steal = steal;
            let value = match invalid {
                None => Some(value),
                Some(reason) => {
                    not_valid.push(InvalidTurn { contender, reason, conditions, value });
                    None
                }
            };
            rounds.finish_turn(turn, value, conditions);
        }
        let contestants = self.config.contenders.iter().map(Contender::name).collect();
        Ok((MeasuredRounds { load: load.to_owned(), contestants, finished: rounds.finish() }, not_valid))
    }
}

fn class_rows<R, T>(measured: &MeasuredRounds<T>, rows: impl Fn(&[Round<T>]) -> Vec<R>) -> Vec<ClassRows<R>> {
    let classes = measured.finished.classes.iter().filter(|class| !class.rounds.is_empty());
    let class_rows = |class: &ClassRounds<T>| ClassRows {
        class: class.class,
        low: class.low,
        high: class.high,
        rounds: class.rounds.len(),
        rows: rows(&class.rounds),
    };
    classes.map(class_rows).collect()
}

#[cfg(test)]
mod tests {
    use policies::Policy;
    use runtime::{DriverKind, WaitStrategy};

    use super::super::super::contestant::Contestant;
    use super::*;
    use crate::polling_config::PollingConfig;

    #[test]
    fn kernel_thread_needs_a_third_core_for_itself() {
        let check = |named: &[Policy], packing| {
            let contestant = |&policy: &Policy| Contestant { policy, driver: DriverKind::Epoll };
            let contestants: Vec<Contestant> = named.iter().map(contestant).collect();
            let contenders = Contender::lull(&contestants, &[PollingConfig::default()], WaitStrategy::Block);
            check_polling_threads(&contenders, CoreAssignment { server: 0, client: 1, packing })
                .map_err(|error| error.to_string())
        };
        let (vanilla, thread) = (Policy::Vanilla, Policy::KernelThread);
        assert_eq!(check(&[vanilla, thread], 2), Ok(()));
        assert_eq!(check(&[vanilla, Policy::Packing], 1), Ok(()));
        let error = check(&[vanilla, thread], 1).unwrap_err();
        assert!(error.contains("core 1") && error.contains("--packing-cores"), "{error}");
        let error = check(&[thread, thread], 2).unwrap_err();
        assert!(error.contains("name kernel-thread once"), "{error}");
    }
}
