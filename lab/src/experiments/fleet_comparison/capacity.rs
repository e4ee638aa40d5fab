//! The highest rate at which a server keeps its 99th percentile within a bound.

use serde::Serialize;

use super::measurement::STEAL_LIMIT;
use super::running_contender::RunningContender;
use crate::Error;
use crate::fleet::{FleetLoad, FleetPacing};

/// The share of the requested rate that must have been answered: a backlog that grows is no capacity.
const ANSWERED_SHARE: f64 = 0.97;
/// By how much a search steps until it has a rate on either side of the capacity: the first one, and those that begin
/// where an earlier one ended.
const FIRST_STEP: f64 = 1.5;
const STEP: f64 = 1.12;
/// The ratio of the rates on either side at which the search ends.
const RESOLUTION: f64 = 1.06;
/// How often a disturbed trial is repeated.
const STOLEN_TRIALS: usize = 1;
/// How often a rate is tried before it counts as too high: a pause of the machine can fail a rate that is within the capacity.
const ATTEMPTS: usize = 2;
/// Lowest and highest rate that are tried.
const RATES: (f64, f64) = (2_000.0, 3_000_000.0);

/// A rate that was tried.
#[derive(Debug, Clone, Copy, Serialize)]
#[non_exhaustive]
pub struct CapacityTrial {
    /// Requests per second that were due.
    pub rate: f64,
    /// Replies per second.
    pub qps: f64,
    /// 99th percentile of the latency, µs.
    pub p99: f64,
    /// CPU time that the hypervisor took (steal), as a share of one core.
    pub steal: f64,
    /// Whether the rate is within the capacity; `None` if the trial was disturbed, and repeated.
    pub holds: Option<bool>,
}

/// One search.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Capacity {
    /// Requests per second: between the highest rate that held and the lowest that did not.
    pub rate: f64,
    /// The rates that were tried, in order.
    pub trials: Vec<CapacityTrial>,
    /// Why the search is not valid, if a trial was disturbed again and again.
    pub invalid: Option<String>,
}

impl Capacity {
    /// The most steal of a trial that counts, as a share of one core.
    pub(super) fn steal(&self) -> f64 {
        self.trials.iter().filter(|trial| trial.holds.is_some()).map(|trial| trial.steal).fold(0.0, f64::max)
    }
}

/// Where a search begins, in requests per second.
#[derive(Debug, Clone, Copy)]
pub(super) enum Start {
    /// Anywhere.
    Guess(f64),
    /// Where an earlier search ended.
    Found(f64),
}

/// What a rate has to hold, and for how long it is tried.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trials {
    /// The highest 99th percentile, µs.
    pub(super) p99_us: f64,
    /// Seconds of load before each trial.
    pub(super) warm_up: f64,
    /// Seconds of a trial.
    pub(super) duration: f64,
}

/// Searches from `start` on, moved by a share of a step between 0 and 1.
pub(super) fn search(
    contender: &mut RunningContender,
    start: Start,
    shift: f64,
    limits: Trials,
) -> Result<Capacity, Error> {
    let Trials { p99_us, warm_up, duration } = limits;
    let (mut trials, mut not_valid) = (Vec::new(), None);
    let mut trial = |rate: f64| -> Result<bool, Error> {
        let load = FleetLoad { pacing: FleetPacing::Open { rate }, warm_up, duration };
        for attempt in 0..=STOLEN_TRIALS {
            let measurement = contender.measure(&load)?;
            let steal = measurement.steal;
            let invalid = measurement.invalid();
            let disturbed = steal > STEAL_LIMIT || invalid.is_some();
            let counts = !disturbed || attempt == STOLEN_TRIALS;
            let (qps, p99) = (measurement.fleet.qps, measurement.fleet.latency.p99);
            let holds = p99 <= p99_us && qps >= rate * ANSWERED_SHARE;
            trials.push(CapacityTrial { rate, qps, p99, steal, holds: counts.then_some(holds) });
            if counts {
                not_valid = not_valid.take().or(invalid);
                return Ok(holds);
            }
        }
        Ok(false)
    };
    let mut holds = |rate: f64| -> Result<bool, Error> {
        for _ in 0..ATTEMPTS {
            if trial(rate)? {
                return Ok(true);
            }
        }
        Ok(false)
    };
    let rate = match start {
        Start::Guess(rate) => bisect(rate, FIRST_STEP, &mut holds)?,
        // Elsewhere within the step each time: otherwise all results would lie on one grid.
        Start::Found(rate) => bisect(rate * STEP.powf(shift - 0.5), STEP, &mut holds)?,
    };
    Ok(Capacity { rate, trials, invalid: not_valid })
}

/// The rate from which on `holds` is false.
fn bisect(start: f64, step: f64, holds: &mut impl FnMut(f64) -> Result<bool, Error>) -> Result<f64, Error> {
    let (lowest, highest) = RATES;
    let mut rate = start.clamp(lowest, highest);
    let begins = holds(rate)?;
    let (mut low, mut high) = (rate, rate);
    // Until there is a rate on either side.
    loop {
        rate = if begins { rate * step } else { rate / step };
        if !(lowest..=highest).contains(&rate) {
            return Ok(rate.clamp(lowest, highest));
        }
        if holds(rate)? != begins {
            if begins {
                high = rate
            } else {
                low = rate
            }
            break;
        }
        if begins { low = rate } else { high = rate }
    }
    while high / low > RESOLUTION {
        let middle = (low * high).sqrt();
        if holds(middle)? { low = middle } else { high = middle }
    }
    Ok((low * high).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_ends_near_the_capacity_from_either_side() {
        for capacity in [5_000.0, 123_456.0, 900_000.0] {
            for (start, step) in [(10.0, 1.5), (3_000.0, 1.12), (100_000.0, 1.12), (1e9, 1.5)] {
                let found = bisect(start, step, &mut |rate| Ok(rate <= capacity)).unwrap();
                assert!((found / capacity).ln().abs() < RESOLUTION.ln(), "{capacity} from {start}: {found}");
            }
        }
    }

    #[test]
    fn a_capacity_beyond_the_range_gives_its_end() {
        assert_eq!(bisect(1e5, STEP, &mut |_| Ok(true)).unwrap(), RATES.1);
        assert_eq!(bisect(1e5, STEP, &mut |_| Ok(false)).unwrap(), RATES.0);
    }
}
