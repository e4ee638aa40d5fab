//! Which fixed grace time is best on this machine.

use std::time::Duration;

use loadgen::interleaved_rounds::{Conditions, figures, ratios};
use loadgen::medians::{Interval, median, median_interval};
use policies::{GraceTime, Policy};
use serde::Serialize;

use super::policy_comparison::PolicyComparison;
use super::turn_conditions::ConditionsGuard;
use crate::Error;
use crate::experiment_process::GraceTimeTurns;
use crate::polling_config::PollingConfig;

/// A grace time counts as equal to the best from this ratio on. Of equal ones the shortest is chosen, because it
/// delays sparse traffic least.
const EQUAL_TO_BEST: f64 = 0.99;
/// Seconds of load before anything is counted.
const WARM_UP: f64 = 0.3;
/// How often a run is repeated in which the distance of the cores changed.
const REPEATS: usize = 3;

/// One grace time, tried.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct GraceTimeTrial {
    /// The grace time.
    pub grace_time: Duration,
    /// Requests a second, median.
    pub qps: f64,
    /// Throughput over that of the best fixed grace time in the same round.
    pub ratio_to_best: Interval,
}

/// Grace times compared in one server under one load.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct GraceTimeCalibration {
    /// The grace times.
    pub trials: Vec<GraceTimeTrial>,
    /// The shortest fixed grace time within 1 % of the best.
    pub best: Option<Duration>,
    /// The number of rounds.
    pub rounds: usize,
    /// CPU time that the hypervisor took (steal), as a share of the core that lost most.
    pub steal: f64,
    /// The distance of the cores before and after the run that counts, and the steal of all cores.
    pub conditions: Conditions,
    /// The conditions of earlier runs that were left out because the distance changed meanwhile.
    pub left_out: Vec<Conditions>,
    /// Whether the distance changed in the last run too, which counts nevertheless.
    pub distance_changed: bool,
}

/// Compares grace times under kernel polling at saturation, in rounds in which each is in force for `duration`. `None` without a testbed, without kernel polling
/// among the contestants, or without fixed grace times.
///
/// # Errors
/// If the server or the load can't be run.
pub fn calibrate(
    comparison: &PolicyComparison,
    fixed: &[Duration],
    rounds: usize,
    duration: Duration,
) -> Result<Option<GraceTimeCalibration>, Error> {
    let contestants = &comparison.config.contestants;
    let polling = contestants.iter().find(|contestant| contestant.policy == Policy::KernelPolling);
    let Some(&polling) = polling.filter(|_| comparison.has_testbed() && !fixed.is_empty()) else {
        return Ok(None);
    };
    let turns = GraceTimeTurns { grace_times: fixed.to_vec(), rounds, duration };
    let polling_config = PollingConfig { grace_time: GraceTime::Fixed(fixed[0]), ..PollingConfig::default() };
    // The load has to outlast the turns, each of which oversleeps a little.
    let load_duration = turns.total_duration().as_secs_f64() * 1.1 + 0.5;
    // All turns are within one run of server and load, whose cores are busy until it ends. So the distance is measured
    // before and after the run only, and a change spoils all of it.
    let mut left_out = Vec::new();
    let (measurement, conditions) = loop {
        let guard = ConditionsGuard::begin(comparison.cores)?;
        let turns = Some(turns.clone());
        let measurement = comparison.measure(polling, polling_config, WARM_UP, load_duration, turns)?;
        let conditions = guard.end()?;
        if !conditions.distance_changed() || left_out.len() == REPEATS {
            break (measurement, conditions);
        }
        left_out.push(conditions);
    };
    let measured = measurement.server.grace_time_rounds.ok_or(Error::NoGraceTimes)?;
    let qps = |index: usize| median(&figures(&measured, index, |rate| *rate));
    let best = (0..fixed.len()).max_by(|&a, &b| qps(a).total_cmp(&qps(b))).unwrap_or(0);
    let trial = |index: usize| GraceTimeTrial {
        grace_time: fixed[index],
        qps: qps(index),
        ratio_to_best: median_interval(&ratios(&measured, index, best, |rate| *rate)),
    };
    let trials: Vec<GraceTimeTrial> = (0..fixed.len()).map(trial).collect();
    let equal_to_best = trials.iter().filter(|trial| trial.ratio_to_best.median >= EQUAL_TO_BEST);
    Ok(Some(GraceTimeCalibration {
        best: equal_to_best.map(|trial| trial.grace_time).min(),
        trials,
        rounds,
        steal: measurement.server.steal,
        distance_changed: conditions.distance_changed(),
        conditions,
        left_out,
    }))
}
