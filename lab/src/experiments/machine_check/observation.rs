//! Identical pieces of work that cross cores, measured again and again: what differs between them is the machine's.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use loadgen::interleaved_rounds::{DistanceClass, FinishedRounds, RepeatPolicy, Rounds, ratios};
use loadgen::medians::median_interval;
use policies::Cpus;
use serde::Serialize;

use crate::experiments::core_assignment::CoreAssignment;
use crate::experiments::steal::STEAL_LIMIT;
use crate::experiments::turn_conditions::ConditionsGuard;

/// How long a piece of work lasts.
const PIECE: Duration = Duration::from_millis(50);
/// Groups of rounds that a resolution needs, so that it isn't the luck of one.
const MIN_GROUPS: usize = 3;

/// What the two cores did while identical pieces of work ran.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Observation {
    /// Seconds observed.
    pub seconds: f64,
    /// Each class of distance that was seen.
    pub classes: Vec<SeenClass>,
    /// How often the distance changed.
    pub changes: usize,
    /// CPU time that the hypervisor took (steal), as a share of one core.
    pub steal: f64,
    /// The most steal in a row, in seconds.
    pub longest_steal: f64,
    /// The half-width of the 95 % interval of the ratio of two identical contestants in a full run, for example 0.05:
    /// the median over groups of as many rounds as a full run has. `None` if there were fewer than three groups.
    pub resolution: Option<f64>,
}

/// A class of distance.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct SeenClass {
    /// The class.
    pub class: DistanceClass,
    /// The shortest distance, in nanoseconds.
    pub low: f64,
    /// The longest distance, in nanoseconds.
    pub high: f64,
    /// The share of pieces of work in this class, 0 to 1.
    pub share: f64,
}

/// Runs pieces of work for `duration`, two identical contestants in turns.
pub(super) fn observe(cores: CoreAssignment, duration: Duration, rounds: usize) -> io::Result<Observation> {
    // The time ends it, not the number of rounds.
    let mut turns = Rounds::new(2, 100_000).repeat_above(STEAL_LIMIT, RepeatPolicy::Always);
    let mut steals = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < duration {
        let Some(turn) = turns.next_turn() else { break };
        let (guard, piece) = (ConditionsGuard::begin(cores)?, Instant::now());
        let rate = round_trips_per_second(cores.server, cores.client)?;
        let seconds = piece.elapsed().as_secs_f64();
        let conditions = guard.end()?;
        steals.push((conditions.steal * seconds, seconds));
        turns.finish_turn(turn, Some(rate), conditions);
    }
    Ok(summary(&turns.finish(), &steals, begun.elapsed().as_secs_f64(), rounds))
}

/// Summarises turns of two identical contestants. `steals` has the stolen and the elapsed seconds of each turn.
fn summary(
    finished: &FinishedRounds<f64>,
    steals: &[(f64, f64)],
    seconds: f64,
    rounds: usize,
) -> Observation {
    let counts: Vec<usize> = finished.classes.iter().map(|class| class.rounds.len()).collect();
    let all = counts.iter().sum::<usize>().max(1) as f64;
    let with_rounds = finished.classes.iter().zip(&counts).filter(|(_, count)| **count > 0);
    let classes = with_rounds.filter_map(|(class, &count)| {
        Some(SeenClass { class: class.class, low: class.low?, high: class.high?, share: count as f64 / all })
    });
    let mut in_order: Vec<_> = finished
        .classes
        .iter()
        .flat_map(|class| class.rounds.iter().flat_map(|round| &round.turns))
        .map(|turn| (turn.sequence, turn.class))
        .collect();
    in_order.sort_by_key(|(sequence, _)| *sequence);
    let (mut burst, mut longest) = (0.0, 0.0f64);
    for (stolen, _) in steals {
        burst = if *stolen > 0.0 { burst + stolen } else { 0.0 };
        longest = longest.max(burst);
    }
    let (stolen, elapsed) = steals.iter().fold((0.0, 0.0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
    let leading = ratios(&finished.leading().rounds, 1, 0, |rate| *rate);
    Observation {
        seconds,
        classes: classes.collect(),
        changes: in_order.windows(2).filter(|pair| pair[0].1 != pair[1].1).count(),
        steal: if elapsed > 0.0 { stolen / elapsed } else { 0.0 },
        longest_steal: longest,
        resolution: resolution(&leading, rounds),
    }
}

/// The median half-width of the intervals that groups of `rounds` ratios have.
fn resolution(ratios: &[f64], rounds: usize) -> Option<f64> {
    let mut widths: Vec<f64> = ratios
        .chunks_exact(rounds.max(1))
        .map(median_interval)
        .filter(loadgen::medians::Interval::reaches_target)
        .map(|interval| (interval.high - interval.low) / 2.0)
        .collect();
    widths.sort_by(f64::total_cmp);
    (widths.len() >= MIN_GROUPS).then(|| widths[widths.len() / 2])
}

/// Messages per second between two threads on these cores, each of which sleeps until the other's arrives.
fn round_trips_per_second(core_a: u32, core_b: u32) -> io::Result<f64> {
    let (mut near, mut far) = UnixStream::pair()?;
    // Ends either thread if the other failed.
    near.set_read_timeout(Some(Duration::from_secs(2)))?;
    thread::scope(|scope| {
        let echo = scope.spawn(move || {
            Cpus::one(core_b).pin(None)?;
            let mut byte = [0];
            while far.read(&mut byte)? == 1 {
                far.write_all(&byte)?;
            }
            Ok::<_, io::Error>(())
        });
        let measuring = scope.spawn(move || {
            Cpus::one(core_a).pin(None)?;
            let (mut byte, begun, mut count) = ([0], Instant::now(), 0u32);
            while begun.elapsed() < PIECE {
                near.write_all(&byte)?;
                near.read_exact(&mut byte)?;
                count += 1;
            }
            Ok(f64::from(count) / begun.elapsed().as_secs_f64())
        });
        let panicked = || io::Error::other("a measuring thread panicked");
        let rate = measuring.join().unwrap_or_else(|_| Err(panicked()));
        echo.join().unwrap_or_else(|_| Err(panicked()))?;
        rate
    })
}

#[cfg(test)]
mod tests {
    use loadgen::interleaved_rounds::Conditions;

    use super::*;

    #[test]
    fn a_resolution_is_the_half_width_of_intervals_of_identical_contestants() {
        let ratios: Vec<f64> = (0..21).map(|index| if index % 7 == 0 { 0.9 } else { 1.1 }).collect();
        let found = resolution(&ratios, 7).unwrap();
        assert!((found - 0.1).abs() < 1e-9, "{found}");
        assert_eq!(resolution(&ratios[..20], 7), None, "two groups are too few");
        assert_eq!(resolution(&ratios, 5), None, "five rounds have no interval");
    }

    #[test]
    fn a_summary_has_the_classes_their_shares_and_the_changes() {
        let mut turns = Rounds::new(2, 100);
        for index in 0..12 {
            let turn = turns.next_turn().unwrap();
            let distance = if index < 8 { 100.0 } else { 500.0 };
            turns.finish_turn(turn, Some(1.0), Conditions::default().with_distance(distance, distance));
        }
        let steals = [(0.0, 1.0), (0.25, 1.0), (0.25, 1.0), (0.0, 1.0)];
        let found = summary(&turns.finish(), &steals, 4.0, 7);
        let shares: Vec<_> = found.classes.iter().map(|seen| (seen.class, seen.share > 0.5)).collect();
        assert_eq!(shares, [(DistanceClass::Near, true), (DistanceClass::Far, false)]);
        assert_eq!((found.changes, found.steal, found.longest_steal), (1, 0.125, 0.5));
    }
}
