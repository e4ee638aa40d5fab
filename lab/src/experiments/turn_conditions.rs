//! The machine's conditions around a turn, and the rounds that were measured with them.

use std::fmt::Write;
use std::io;
use std::time::{Duration, Instant};

use loadgen::interleaved_rounds::{
    Conditions, DistanceClass, FinishedRounds, FinishedTurn, LeftOutReason, RepeatPolicy, Rounds,
};
use serde::Serialize;

use super::core_assignment::CoreAssignment;
use super::steal::{STEAL_LIMIT, total_steal};
use crate::Error;
use crate::core_distance::round_trip;

/// How long a distance is measured: twice a turn, so it has to be short beside the turn.
const DISTANCE_DURATION: Duration = Duration::from_millis(10);

/// Reads the distance between the server's and the client's core and the steal before a turn, and again after it.
#[derive(Debug)]
pub(super) struct ConditionsGuard {
    cores: CoreAssignment,
    distance: Option<f64>,
    steal: f64,
    begun: Instant,
}

impl ConditionsGuard {
    /// Begins a turn. Neither server nor load may run yet, or they would be in the way of the measurement.
    pub(super) fn begin(cores: CoreAssignment) -> io::Result<Self> {
        let distance = distance(cores)?;
        Ok(Self { cores, distance, steal: total_steal()?, begun: Instant::now() })
    }

    /// Ends the turn when the load has ended.
    pub(super) fn end(self) -> io::Result<Conditions> {
        let steal = (total_steal()? - self.steal) / self.begun.elapsed().as_secs_f64();
        let conditions = Conditions::with_steal(steal);
        Ok(match (self.distance, distance(self.cores)?) {
            (Some(before), Some(after)) => conditions.with_distance(before, after),
            _ => conditions,
        })
    }
}

/// The distance between the server's and the client's core in nanoseconds; `None` if they share a core, or if
/// something else kept a core busy.
fn distance(cores: CoreAssignment) -> io::Result<Option<f64>> {
    if cores.server == cores.client {
        return Ok(None);
    }
    match round_trip(cores.server, cores.client, DISTANCE_DURATION) {
        Ok(distance) => Ok(Some(distance)),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(None),
        Err(error) => Err(error),
    }
}

/// How long rounds may take that last `seconds` undisturbed: the rest is for turns that are repeated.
pub(super) fn time_limit(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds * 2.0 + 5.0)
}

/// Every turn under one load, those left out included.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct MeasuredRounds<T> {
    /// The load.
    pub load: String,
    /// The contestants by index.
    pub contestants: Vec<String>,
    /// The turns, by class of distance and by round.
    #[serde(flatten)]
    pub finished: FinishedRounds<T>,
}

impl<T> MeasuredRounds<T> {
    /// The distances that were seen and the number of turns left out, in one sentence.
    pub fn summary(&self) -> String {
        let mut text = format!("{}: ", self.load);
        for (index, class) in self.finished.classes.iter().enumerate() {
            let separator = if index > 0 { ", " } else { "" };
            let _ = write!(text, "{separator}{}", counted(class.rounds.len(), "round"));
            if class.class != DistanceClass::Single {
                let _ = write!(text, " {}", class.class);
            }
            if let (Some(low), Some(high)) = (class.low, class.high) {
                let _ = write!(text, " (distance {low:.0} to {high:.0} ns)");
            }
        }
        for (reason, words) in [
            (LeftOutReason::Steal, "because of steal"),
            (LeftOutReason::ClassChanged, "because the distance changed"),
            (LeftOutReason::RoundIncomplete, "for lack of a complete round"),
            (LeftOutReason::Invalid, "as invalid"),
        ] {
            let count = self.finished.left_out_for(reason);
            if count > 0 {
                let _ = write!(text, "; {} left out {words}", counted(count, "turn"));
            }
        }
        let kept = self.kept_disturbed();
        if kept > 0 {
            let _ = write!(text, "; {} kept in spite of steal", counted(kept, "turn"));
        }
        text
    }

    /// The number of turns in rounds that exceeded the steal limit: nothing was left for another attempt.
    fn kept_disturbed(&self) -> usize {
        let rounds = self.finished.classes.iter().flat_map(|class| &class.rounds);
        let disturbed = |turn: &&FinishedTurn<T>| {
            let mut disturbed = self.finished.disturbed.iter();
            disturbed.any(|it| it.contestant == turn.contestant && it.conditions == turn.conditions)
        };
        let valid = rounds.flat_map(|round| &round.turns).filter(|turn| turn.value.is_some());
        valid.filter(disturbed).count()
    }
}

/// How the contestants of an experiment are measured under one load.
pub(super) struct RoundsPlan {
    pub(super) load: &'static str,
    pub(super) rounds: usize,
    pub(super) cores: CoreAssignment,
    /// How long all rounds may take; a quarter of it may go to turns that are repeated.
    pub(super) limit: Duration,
}

impl RoundsPlan {
    /// Measures all contestants in rounds; a turn without a value is invalid. Calls `progress` before each turn that is no
    /// repeat.
    pub(super) fn measure<T>(
        &self,
        names: &[String],
        progress: &mut impl FnMut(&str),
        mut measure: impl FnMut(usize) -> Result<Option<T>, Error>,
    ) -> Result<MeasuredRounds<T>, Error> {
        let Self { load, rounds: count, cores, limit } = *self;
        let mut rounds = Rounds::new(names.len(), count)
            .repeat_above(STEAL_LIMIT, RepeatPolicy::Within(limit / 4))
            .time_limit(limit);
        while let Some(turn) = rounds.next_turn() {
            let index = turn.contestant();
            if !turn.is_repeat() {
                progress(&format!("{load}: {}, round {} of {count}", names[index], turn.round() + 1));
            }
            let guard = ConditionsGuard::begin(cores)?;
            let measured = measure(index)?;
            rounds.finish_turn(turn, measured, guard.end()?);
        }
        Ok(MeasuredRounds { load: load.to_owned(), contestants: names.to_vec(), finished: rounds.finish() })
    }
}

/// For example `1 turn`, `2 turns`.
fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Names the class of loads that met one distance only, if other loads of the same run met two: what was one class to
/// them is near or far beside the others.
pub(super) fn name_classes<T>(runs: &mut [MeasuredRounds<T>]) {
    if let Some(border) = border(runs.iter().flat_map(MeasuredRounds::ranges)) {
        runs.iter_mut().for_each(|run| run.name_classes(border));
    }
}

/// The distance between near and far, in ns, if some of these classes are near and some far: in the middle on a
/// logarithmic scale.
pub(super) fn border(classes: impl Iterator<Item = (DistanceClass, f64, f64)>) -> Option<f64> {
    let (mut near, mut far): (Option<f64>, Option<f64>) = (None, None);
    for (class, low, high) in classes {
        match class {
            DistanceClass::Near => near = Some(near.map_or(high, |near| near.max(high))),
            DistanceClass::Far => far = Some(far.map_or(low, |far| far.min(low))),
            _ => {}
        }
    }
    Some((near? * far?).sqrt())
}

impl<T> MeasuredRounds<T> {
    /// Each class with the shortest and the longest distance in it, in ns.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (DistanceClass, f64, f64)> {
        self.finished.classes.iter().filter_map(|class| Some((class.class, class.low?, class.high?)))
    }

    /// Names a single class by the side of the border on which it lies.
    pub(super) fn name_classes(&mut self, border: f64) {
        for class in &mut self.finished.classes {
            let (DistanceClass::Single, Some(low), Some(high)) = (class.class, class.low, class.high) else {
                continue;
            };
            class.class = match (high < border, low > border) {
                (true, _) => DistanceClass::Near,
                (_, true) => DistanceClass::Far,
                _ => continue,
            };
            class
                .rounds
                .iter_mut()
                .flat_map(|round| &mut round.turns)
                .for_each(|turn| turn.class = class.class);
        }
    }
}

/// The classes of distance with rounds in them, the one with most rounds first.
pub(super) fn classes_by_rounds<T>(runs: &[MeasuredRounds<T>]) -> Vec<DistanceClass> {
    let classes = runs.iter().flat_map(|run| &run.finished.classes);
    order_by_rounds(classes.map(|class| (class.class, class.rounds.len())))
}

/// Classes in the order of their numbers of rounds, which are added up; those without rounds are left out.
pub(crate) fn order_by_rounds(classes: impl Iterator<Item = (DistanceClass, usize)>) -> Vec<DistanceClass> {
    let seen: Vec<(DistanceClass, usize)> = classes.collect();
    let rounds = |wanted| -> usize {
        seen.iter().filter(|(class, _)| *class == wanted).map(|(_, rounds)| rounds).sum()
    };
    let mut classes = vec![DistanceClass::Single, DistanceClass::Near, DistanceClass::Far];
    classes.retain(|&class| rounds(class) > 0);
    classes.sort_by_key(|&class| std::cmp::Reverse(rounds(class)));
    classes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(load: &str, distances: &[(f64, f64)]) -> MeasuredRounds<()> {
        let mut rounds = Rounds::new(1, distances.len() + 1);
        for &(before, after) in distances {
            let turn = rounds.next_turn().unwrap();
            rounds.finish_turn(turn, Some(()), Conditions::default().with_distance(before, after));
        }
        MeasuredRounds {
            load: load.to_owned(),
            contestants: vec!["one".to_owned()],
            finished: rounds.finish(),
        }
    }

    #[test]
    fn a_load_that_met_one_distance_is_named_as_the_other_loads_name_it() {
        let mut runs = [
            run("a", &[(100.0, 100.0), (500.0, 500.0), (100.0, 110.0), (500.0, 510.0)]),
            run("b", &[(520.0, 520.0)]),
            run("c", &[(95.0, 90.0)]),
        ];
        name_classes(&mut runs);
        let classes = runs[1..].iter().map(|run| run.finished.leading().class);
        assert_eq!(classes.collect::<Vec<_>>(), [DistanceClass::Far, DistanceClass::Near]);
        assert_eq!(runs[1].finished.leading().rounds[0].turns[0].class, DistanceClass::Far);
        assert_eq!(classes_by_rounds(&runs), [DistanceClass::Near, DistanceClass::Far]);
    }

    #[test]
    fn loads_that_all_met_one_distance_are_one_class() {
        let mut runs = [run("a", &[(100.0, 100.0)]), run("b", &[(105.0, 120.0)])];
        name_classes(&mut runs);
        assert_eq!(classes_by_rounds(&runs), [DistanceClass::Single]);
    }

    #[test]
    fn the_summary_names_distances_and_what_was_left_out() {
        let run = run("get", &[(100.0, 104.0), (100.0, 500.0), (99.0, 100.0)]);
        assert_eq!(
            run.summary(),
            "get: 2 rounds (distance 99 to 104 ns); 1 turn left out because the distance changed"
        );
    }

    #[test]
    fn the_summary_counts_the_turns_that_are_kept_in_spite_of_steal() {
        let mut rounds = Rounds::new(1, 3).repeat_above(0.02, RepeatPolicy::Once);
        for steal in [0.0, 0.5, 0.6, 0.0] {
            let turn = rounds.next_turn().unwrap();
            rounds.finish_turn(turn, Some(()), Conditions::with_steal(steal));
        }
        let (load, contestants) = ("get".to_owned(), vec!["one".to_owned()]);
        let summary = MeasuredRounds { load, contestants, finished: rounds.finish() }.summary();
        assert_eq!(summary, "get: 3 rounds; 1 turn left out because of steal; 1 turn kept in spite of steal");
    }
}
