//! The highest rate at which a server keeps its 99th percentile within a bound.

use super::plan::{Experiment, STEAL_LIMIT};
use super::running::RunningContender;
use crate::Error;
use crate::fleet::{FleetLoad, FleetPacing};
use crate::rounds::{ANSWERED, Figure, Turn};

/// The rate at which a contender's first search begins, in requests per second, and by how much it
/// steps until it has a rate on either side of the capacity.
pub(super) const FIRST: (f64, f64) = (100_000.0, 1.5);
/// By how much searches step that begin where an earlier one ended.
pub(super) const STEP: f64 = 1.12;
/// The ratio of the rates on either side at which the search ends.
const RESOLUTION: f64 = 1.06;
/// A rate holds if it does in as many of three windows: a pause of the machine can fail a rate that
/// is within the capacity, and luck can hold one that is not.
const OF_THREE: usize = 2;
/// Windows of a rate at most; those in which the machine was disturbed don't count.
const MOST_WINDOWS: usize = 6;
/// Seconds of load before the second and third window of a rate.
const BETWEEN: f64 = 0.05;
/// Lowest and highest rate that are tried.
const RATES: (f64, f64) = (2_000.0, 3_000_000.0);

/// Searches from a rate on, in these steps.
pub(super) fn search(
    contender: &mut RunningContender,
    (start, step): (f64, f64),
    experiment: &Experiment,
) -> Result<Turn, Error> {
    let Experiment { capacity_p99_us, trial_warm_up, trial_duration: duration, .. } = *experiment;
    let (mut invalid, mut steal) = (None, 0.0f64);
    let mut window = |rate: f64, warm_up: f64| -> Result<Option<bool>, Error> {
        let turn = contender.measure(&FleetLoad { pacing: FleetPacing::Open { rate }, warm_up, duration })?;
        let stolen = turn.steal.unwrap_or(0.0);
        let counts = stolen <= STEAL_LIMIT && turn.invalid.is_none();
        let holds = turn.get(Figure::P99) <= capacity_p99_us && turn.get(Figure::Answered) >= ANSWERED;
        if counts {
            steal = steal.max(stolen);
        }
        invalid = turn.invalid.or(invalid.take());
        Ok(counts.then_some(holds))
    };
    let mut undecided = false;
    let mut holds = |rate: f64| {
        let holds = two_of_three(|first| window(rate, if first { trial_warm_up } else { BETWEEN }))?;
        undecided |= holds.is_none();
        Ok(holds.unwrap_or(false))
    };
    let mut turn = match bisect(start, step, &mut holds)? {
        Ok(rate) => Turn::new([(Figure::Capacity, rate)]),
        Err(end) => Turn::invalid(format!(
            "it keeps its p99 within {capacity_p99_us:.0} µs and answers {ANSWERED:.0} % in time {end}"
        )),
    };
    turn.steal = Some(steal);
    if undecided {
        let reason = invalid.unwrap_or_else(|| "steal".to_owned());
        turn.invalid = Some(format!("windows were disturbed again and again: {reason}"));
    }
    Ok(turn)
}

/// What two of three windows that count say; `None` if too many don't. `window` gets whether it is
/// the first.
fn two_of_three(mut window: impl FnMut(bool) -> Result<Option<bool>, Error>) -> Result<Option<bool>, Error> {
    let mut counts = [0; 2];
    for index in 0..MOST_WINDOWS {
        if let Some(holds) = window(index == 0)? {
            counts[usize::from(holds)] += 1;
            if counts[usize::from(holds)] == OF_THREE {
                return Ok(Some(holds));
            }
        }
    }
    Ok(None)
}

/// Searches from `start` on for the rate from which on `holds` is false. The error is where the
/// range of rates ends.
fn bisect(
    start: f64,
    step: f64,
    holds: &mut impl FnMut(f64) -> Result<bool, Error>,
) -> Result<Result<f64, String>, Error> {
    let (lowest, highest) = RATES;
    let mut rate = start.clamp(lowest, highest);
    let (mut low, mut high) = (None, None);
    // Until there is a rate on either side.
    let (mut low, mut high) = loop {
        let side = if holds(rate)? { &mut low } else { &mut high };
        *side = Some(rate);
        rate = match (low, high) {
            (Some(low), Some(high)) => break (low, high),
            (None, _) if rate == lowest => return Ok(Err(format!("at no rate from {lowest:.0}/s on"))),
            (_, None) if rate == highest => return Ok(Err(format!("at every rate up to {highest:.0}/s"))),
            (None, _) => rate / step,
            (_, None) => rate * step,
        }
        .clamp(lowest, highest);
    };
    while high / low > RESOLUTION {
        let middle = (low * high).sqrt();
        if holds(middle)? { low = middle } else { high = middle }
    }
    Ok(Ok((low * high).sqrt()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_ends_near_the_capacity_from_either_side() {
        for capacity in [5_000.0, 123_456.0, 900_000.0] {
            for (start, step) in [(10.0, 1.5), (3_000.0, 1.12), (100_000.0, 1.12), (1e9, 1.5)] {
                let found = bisect(start, step, &mut |rate| Ok(rate <= capacity)).unwrap().unwrap();
                assert!((found / capacity).ln().abs() < RESOLUTION.ln(), "{capacity} from {start}: {found}");
            }
        }
    }

    #[test]
    fn a_capacity_beyond_the_range_is_not_found_and_its_ends_are_tried() {
        let mut tried = Vec::new();
        let mut search = |holds: bool| {
            tried.clear();
            let found = bisect(1e5, STEP, &mut |rate| {
                tried.push(rate);
                Ok(holds)
            });
            (found.unwrap().unwrap_err(), tried.last().copied())
        };
        assert_eq!(search(true), ("at every rate up to 3000000/s".to_owned(), Some(RATES.1)));
        assert_eq!(search(false), ("at no rate from 2000/s on".to_owned(), Some(RATES.0)));
    }

    #[test]
    fn two_of_three_windows_decide_and_disturbed_ones_do_not_count() {
        let decide = |windows: &[Option<bool>]| {
            let mut windows = windows.iter().copied();
            let decided = two_of_three(|_| Ok(windows.next().unwrap())).unwrap();
            (decided, windows.count())
        };
        let (yes, no) = (Some(true), Some(false));
        assert_eq!(decide(&[yes, yes, no]), (yes, 1));
        assert_eq!(decide(&[yes, no, no]), (no, 0));
        assert_eq!(decide(&[no, None, yes, None, yes]), (yes, 0));
        assert_eq!(decide(&[None, None, None, yes, None, no]), (None, 0));
    }
}
