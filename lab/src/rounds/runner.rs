//! Whose turn it is, and which turns are repeated. Rounds are interleaved: each measures every
//! contender once, so that drift of the machine affects all of them. The order is a Williams
//! design's.

use std::time::{Duration, Instant};

use super::classes::{Classes, CoreDistance, DistanceClass};
use super::conditions::{Conditions, observed};
use super::results::Results;
use super::turn::{ClassRounds, LEAST_ROUNDS, LoadPlan, Measurement, TakenTurn, Turn};
use crate::Error;
use crate::cores::CoreAssignment;

/// Rounds' worth of turns that may be tried in vain, for each round asked for: because the distance
/// changes in every turn, or none is valid.
const FUTILE_ROUNDS: usize = 4;
/// Before this many turns no warning says that a quarter is lost: a single pause of the machine could
/// cause it.
const MANY_TURNS: usize = 12;

pub struct Runner<'a> {
    cores: &'a CoreAssignment,
    progress: &'a mut dyn FnMut(&str),
    measured: Vec<Measurement>,
    /// Turns so far, and those of them that were lost.
    taken: usize,
    lost: usize,
    has_warned: bool,
}

impl<'a> Runner<'a> {
    /// Calls `progress` before each turn, but not before one that is repeated.
    pub fn new(cores: &'a CoreAssignment, progress: &'a mut dyn FnMut(&str)) -> Self {
        Self { cores, progress, measured: Vec::new(), taken: 0, lost: 0, has_warned: false }
    }

    /// Measures all contenders in interleaved rounds, in the order of a Williams design.
    pub fn measure(
        &mut self,
        plan: LoadPlan,
        contenders: &[String],
        mut measure: impl FnMut(usize) -> Result<Turn, Error>,
    ) -> Result<(), Error> {
        let (load, count) = (plan.name.clone(), plan.rounds);
        let earlier = self.measured.iter().flat_map(|measured| &measured.turns);
        let earlier = earlier.map(|turn| turn.conditions.distance).collect();
        let mut rounds = Rounds::new(plan, contenders.to_vec(), earlier);
        while let Some(next) = rounds.next() {
            if !next.is_repeat {
                let name = &contenders[next.contender];
                (self.progress)(&format!("{load}: {name}, round {} of {count}", next.round + 1));
            }
            let (turn, conditions) = observed(self.cores, || measure(next.contender))?;
            rounds.finish(next, conditions, turn);
            self.taken += 1;
            self.lost += usize::from(rounds.is_repeat);
            if !self.has_warned && self.taken >= MANY_TURNS && self.lost * 4 > self.taken {
                self.has_warned = true;
                let (lost, taken) = (self.lost, self.taken);
                tracing::warn!(
                    "{lost} of {taken} turns are lost, {}: what is left takes up to twice its time. Stop other programs, or begin \
                     again when the machine is quieter",
                    rounds.last_loss()
                );
            }
        }
        self.measured.push(rounds.measured);
        Ok(())
    }

    /// The rows of all loads. In each figure ratios refer to the best of the contenders with these
    /// indices.
    pub fn finish(self, references: &[usize]) -> Results {
        Results::new(self.measured, references)
    }
}

#[derive(Debug, Clone, Copy)]
struct Next {
    /// From 0, in the present class of distance.
    round: usize,
    contender: usize,
    /// Whether the turn before was left out, so that this one takes its place.
    is_repeat: bool,
    begun: Instant,
}

/// Rounds in progress. Which class a turn is in depends on all readings, later ones included, so
/// rounds are derived from the turns.
#[derive(Debug)]
struct Rounds {
    measured: Measurement,
    /// The readings under the loads before this one.
    earlier: Vec<Option<CoreDistance>>,
    started: Option<Instant>,
    /// Turns taken before the limit was noticed to be over.
    taken_in_time: Option<usize>,
    is_repeat: bool,
    repeated_time: Duration,
}

impl Rounds {
    /// No round begins after the plan's limit, or with fewer than six rounds after twice the limit. Turns
    /// with too much steal are repeated until the repeats have taken half of the limit. If turns differ in
    /// their class of distance, one class gets all rounds.
    fn new(plan: LoadPlan, contenders: Vec<String>, earlier: Vec<Option<CoreDistance>>) -> Self {
        Self {
            earlier,
            measured: Measurement { plan, contenders, turns: Vec::new() },
            started: None,
            taken_in_time: None,
            is_repeat: false,
            repeated_time: Duration::ZERO,
        }
    }

    /// The turn to measure now. `None` after the last round; after the limit, with as many rounds as
    /// a verdict needs; after twice that time, with a complete round or four rounds' worth of turns
    /// in vain; and if the distance changed in four times as many turns as asked for.
    fn next(&mut self) -> Option<Next> {
        let Measurement { plan, contenders, turns } = &self.measured;
        let (contenders, taken) = (contenders.len(), turns.len());
        let classes = self.classes();
        let most = self.rounds(&classes, counts_for_a_round);
        let futile = self.its(&classes).iter().filter(|class| class.is_none()).count();
        if most >= plan.rounds || futile > self.most_in_vain() {
            return None;
        }
        let latest = turns.iter().rev().find_map(|turn| turn.conditions.distance);
        let class = latest.map_or(classes.all()[0], |distance| classes.of_reading(distance.after));
        let ClassRounds { complete, begun } = self.of_class(&classes, class, counts_for_a_round);
        let round = complete.len();
        let mut order = (0..contenders).map(|position| williams(round, position, contenders));
        let contender = order.find(|&contender| begun[contender].is_none())?;
        let now = Instant::now();
        let time = now - *self.started.get_or_insert(now);
        // A turn that is not valid counts where it is repeated no more, but not for a verdict.
        let is_valid = |turn: &TakenTurn| counts_for_a_round(turn) && turn.turn.invalid.is_none();
        if time >= plan.limit && self.rounds(&classes, is_valid) >= LEAST_ROUNDS.min(plan.rounds) {
            return None;
        }
        if time >= 2 * plan.limit && taken > 0 {
            let in_time = *self.taken_in_time.get_or_insert(taken);
            if most > 0 || taken - in_time >= FUTILE_ROUNDS * contenders {
                return None;
            }
        }
        Some(Next { round, contender, is_repeat: self.is_repeat, begun: now })
    }

    /// Ends a turn. It is repeated for steal, if it was not valid, and if the distance changed.
    fn finish(&mut self, next: Next, mut conditions: Conditions, turn: Turn) {
        let Next { contender, begun, .. } = next;
        let LoadPlan { limit, steal_limit, .. } = self.measured.plan;
        conditions.steal = turn.steal.unwrap_or(conditions.steal);
        let has_steal = conditions.steal > steal_limit;
        let may_repeat = self.repeated_time < limit / 2 && self.left_out() < self.most_in_vain();
        let left_out = may_repeat && (has_steal || turn.invalid.is_some());
        if left_out {
            self.repeated_time += begun.elapsed();
        }
        let disturbed = has_steal && !left_out;
        self.measured.turns.push(TakenTurn { contender, conditions, left_out, disturbed, turn });
        self.is_repeat = left_out || self.classes().turns.last().is_some_and(Option::is_none);
    }

    /// Why the last turn was lost.
    fn last_loss(&self) -> String {
        let last = self.measured.turns.last();
        match last.and_then(|turn| turn.turn.invalid.clone()) {
            Some(reason) => format!("the last one because {reason}"),
            None if last.is_some_and(|turn| turn.left_out) => {
                "the last one to the hypervisor (steal)".to_owned()
            }
            None => "the last one because the distance of the cores changed".to_owned(),
        }
    }

    /// How many turns may be tried in vain.
    fn most_in_vain(&self) -> usize {
        FUTILE_ROUNDS * self.measured.contenders.len() * self.measured.plan.rounds
    }

    fn left_out(&self) -> usize {
        self.measured.turns.iter().filter(|turn| turn.left_out).count()
    }

    /// Those of all turns so far, with the same border under all loads.
    fn classes(&self) -> Classes {
        let readings = self.measured.turns.iter().map(|turn| turn.conditions.distance);
        // Of this load's turns: far cores are a class also if the loads before were near.
        Classes::of(self.earlier.iter().copied().chain(readings), self.measured.turns.len())
    }

    /// Of classes, those of this load's turns.
    fn its<'a>(&self, classes: &'a Classes) -> &'a [Option<DistanceClass>] {
        &classes.turns[self.earlier.len()..]
    }

    fn of_class(
        &self,
        classes: &Classes,
        class: DistanceClass,
        counted: impl Fn(&TakenTurn) -> bool,
    ) -> ClassRounds {
        let its = self.its(classes);
        self.measured.rounds_of(|at, turn| its[at] == Some(class) && counted(turn))
    }

    /// The complete rounds of the class that has most of them.
    fn rounds(&self, classes: &Classes, counted: impl Fn(&TakenTurn) -> bool) -> usize {
        let of = |&class: &DistanceClass| self.of_class(classes, class, &counted).complete.len();
        classes.all().iter().map(of).max().unwrap_or(0)
    }
}

fn counts_for_a_round(turn: &TakenTurn) -> bool {
    !turn.left_out
}

/// The contender at a position of a round, so that each has each place equally often, and follows
/// each other one equally often: after as many rounds as there are contenders, or twice as many if
/// their number is odd, when the neighbours of a row are balanced only together with those of its
/// mirror image.
fn williams(round: usize, position: usize, contenders: usize) -> usize {
    let is_even = contenders.is_multiple_of(2);
    let mirrored = !is_even && !round.is_multiple_of(2);
    let place = if mirrored { contenders - 1 - position } else { position };
    // The first row is 0, 1, n-1, 2, n-2 and so on: each difference between neighbours occurs once.
    let first =
        if place.is_multiple_of(2) { (contenders - place / 2) % contenders } else { place.div_ceil(2) };
    (first + if is_even { round } else { round / 2 }) % contenders
}

#[cfg(test)]
mod tests {
    use super::super::turn::LoadKind;
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const NEAR: (f64, f64) = (100.0, 110.0);
    const FAR: (f64, f64) = (500.0, 520.0);

    /// Turns with more than 2 % of steal are repeated.
    fn rounds(contenders: usize, count: usize, limit: Duration) -> Rounds {
        let plan = LoadPlan::new("", LoadKind::Closed, 0.0, count, limit);
        Rounds::new(plan, vec![String::new(); contenders], Vec::new())
    }

    /// Takes turns at these distances with as much steal. Returns the contender of each, and
    /// whether it is repeated.
    fn take(rounds: &mut Rounds, distances: &[(f64, f64)], steal: f64) -> Vec<(usize, bool)> {
        let one = |&distance: &(f64, f64)| {
            let turn = rounds.next().unwrap();
            rounds.finish(turn, Conditions::new(steal, Some(distance)), Turn::default());
            (turn.contender, rounds.is_repeat)
        };
        distances.iter().map(one).collect()
    }

    #[test]
    fn in_a_williams_design_everyone_follows_everyone_else_equally_often() {
        for contenders in 1..=7 {
            let count = if contenders % 2 == 0 { contenders } else { 2 * contenders };
            let mut follows = vec![0; contenders * contenders];
            let mut places = follows.clone();
            for round in 0..count {
                let order: Vec<_> = (0..contenders).map(|at| williams(round, at, contenders)).collect();
                order.windows(2).for_each(|pair| follows[pair[0] * contenders + pair[1]] += 1);
                order.iter().enumerate().for_each(|(at, it)| places[at * contenders + it] += 1);
            }
            let each = count / contenders;
            for (index, &times) in follows.iter().enumerate() {
                let itself = index / contenders == index % contenders;
                assert_eq!(times, if itself { 0 } else { each }, "{contenders} contenders, pair {index}");
            }
            assert!(places.iter().all(|&times| times == each), "{contenders} contenders: {places:?}");
        }
    }

    #[test]
    fn turns_with_steal_are_repeated_for_half_of_the_limit() {
        let mut one = rounds(1, 1, HOUR);
        assert_eq!(take(&mut one, &[NEAR, NEAR], 0.5), [(0, true), (0, true)]);
        assert!(one.next().unwrap().is_repeat);
        assert_eq!(take(&mut one, &[NEAR], 0.02), [(0, false)]);
        assert!(one.next().is_none());
        assert_eq!(take(&mut rounds(1, 1, Duration::ZERO), &[NEAR], 0.5), [(0, false)]);
    }

    #[test]
    fn turns_that_are_not_valid_end_no_load_before_twice_its_time() {
        let of = |invalid: bool| {
            let mut rounds = rounds(1, 12, HOUR);
            // No turn is repeated, as after half of the limit.
            rounds.repeated_time = HOUR;
            for _ in 0..LEAST_ROUNDS {
                let next = rounds.next().unwrap();
                let turn = Turn { invalid: invalid.then(|| "paused".to_owned()), ..Turn::default() };
                rounds.finish(next, Conditions::new(0.0, Some(NEAR)), turn);
            }
            let begun = rounds.started.unwrap();
            let mut goes_on_after = |time| {
                rounds.started = Some(begun - time);
                rounds.next().is_some()
            };
            (goes_on_after(HOUR), goes_on_after(2 * HOUR))
        };
        assert_eq!(of(false), (false, false));
        assert_eq!(of(true), (true, false));
    }

    #[test]
    fn each_class_of_distance_goes_on_with_its_own_round() {
        let mut rounds = rounds(2, 2, HOUR);
        assert_eq!(take(&mut rounds, &[NEAR, (100.0, 500.0)], 0.0), [(0, false), (1, true)]);
        // One turn far away makes no class yet; the second one does, and the first counts after
        // all.
        assert_eq!(take(&mut rounds, &[FAR, FAR], 0.0), [(1, true), (1, false)]);
        assert_eq!(take(&mut rounds, &[FAR], 0.0), [(0, false)]);
        while let Some(turn) = rounds.next() {
            rounds.finish(turn, Conditions::new(0.0, Some(FAR)), Turn::default());
        }
        let classes = rounds.classes();
        let far = rounds.of_class(&classes, classes.of_reading(500.0), counts_for_a_round);
        assert!(far.complete.len() >= 2);
    }

    #[test]
    fn what_is_far_under_the_loads_before_is_far_at_once_under_the_next_one() {
        let mut after = rounds(2, 6, HOUR);
        let readings = [[NEAR; 6], [FAR; 6]].concat();
        after.earlier = readings.into_iter().map(|it| Conditions::new(0.0, Some(it)).distance).collect();
        assert_eq!(take(&mut after, &[NEAR, FAR], 0.0), [(0, false), (1, false)]);
        // The first load's first turn far away is an outlier.
        assert_eq!(take(&mut rounds(2, 6, HOUR), &[NEAR, FAR], 0.0), [(0, false), (1, true)]);
    }

    #[test]
    fn what_never_becomes_a_round_is_given_up() {
        let mut changing = rounds(2, 3, HOUR);
        let mut turns = 0;
        while let Some(turn) = changing.next() {
            changing.finish(turn, Conditions::new(0.0, Some((100.0, 500.0))), Turn::default());
            turns += 1;
        }
        assert_eq!(turns, 4 * 2 * 3 + 1);
        // After the limit nothing begins once a round is complete.
        let mut late = rounds(3, 10, Duration::ZERO);
        take(&mut late, &[NEAR; 3], 0.0);
        assert!(late.next().is_none());
    }
}
