//! Rows of medians, intervals and ratios, by load and by class of core distance.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;

use loadgen::medians::{Interval, median, median_interval};
use serde::Serialize;

use super::classes::{Classes, DistanceClass};
use super::figure::Figure;
use super::intervals::{p99, p99_ratio};
use super::turn::{LEAST_ROUNDS, LoadKind, LoadPlan, Measurement, TakenTurn, Turn};
use crate::fleet::FleetPacing;
use crate::testbed::Receiver;

/// The share of the requests of an open loop that a server answers in time, at least, %; below it
/// is overloaded.
pub(crate) const ANSWERED: f64 = 97.0;
/// The least share of the server's packets that its own core must have received, %.
const RECEIVED_SHARE: f64 = 90.0;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measured {
    pub value: Interval,
    /// The figure over the reference's in the same round. `None` for the reference itself, and
    /// where there is none.
    pub ratio: Option<Interval>,
    /// The figure minus the reference's in the same round. `None` as above.
    pub difference: Option<Interval>,
    /// The contender that is the reference: of several the one that is best in this figure. `None`
    /// if none of them has the figure.
    pub reference: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// The server kept up with the load.
    Comparable,
    /// It answered this share of the requests in time, %.
    Overloaded(f64),
    /// It had other conditions than the others.
    NotComparable(String),
}

impl Status {
    /// What stands in the place of a ratio; `None` if the ratio does.
    pub fn text(&self) -> Option<String> {
        match self {
            Self::Comparable => None,
            Self::Overloaded(answered) => Some(format!("overloaded, answered {answered:.0} %")),
            Self::NotComparable(_) => Some("not comparable".to_owned()),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The contender's name, for example `kernel-polling, epoll`. Its index is the row's.
    pub contender: String,
    pub turns: usize,
    pub status: Status,
    /// The figures that at least one turn has.
    pub figures: BTreeMap<Figure, Measured>,
    /// How a controller drove the server's queue at the end of most turns.
    pub queue: Option<String>,
}

impl Row {
    pub fn value(&self, figure: Figure) -> Option<&Interval> {
        self.figures.get(&figure).map(|measured| &measured.value)
    }

    pub fn median(&self, figure: Figure) -> Option<f64> {
        self.value(figure).map(|value| value.median)
    }

    /// The ratio of a figure to the reference's, if it says something.
    pub fn ratio(&self, figure: Figure) -> Option<&Interval> {
        self.figures.get(&figure)?.ratio.as_ref().filter(|_| self.status == Status::Comparable)
    }

    /// Whether a turn was valid.
    pub fn has_valid_turn(&self) -> bool {
        self.figures.contains_key(&Figure::Throughput)
    }
}

/// All contenders under one load, with the cores at one distance.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LoadResult {
    /// For example `closed loop`.
    pub name: String,
    pub kind: LoadKind,
    /// What loads differ in: requests per second, bytes of a file, or connections.
    pub at: f64,
    /// What the fleet did. `None` for a load that is not a fleet's.
    pub pacing: Option<FleetPacing>,
    /// What stood in for an interrupt. `None` for a load that is not a fleet's.
    pub receiver: Option<Receiver>,
    pub class: DistanceClass,
    /// The shortest and the longest distance of the class, ns. `None` if it was not measured.
    pub distance: Option<(f64, f64)>,
    pub rounds: usize,
    /// By contender.
    pub rows: Vec<Row>,
    /// The turns of each round by contender, as indices of the load's turns.
    #[serde(skip)]
    pub(crate) turns: Vec<Vec<usize>>,
    /// The load's index among those that were measured.
    #[serde(skip)]
    pub(crate) measurement: usize,
}

/// The turns of a round by contender; `None` for one that is not valid.
pub type Round<'a> = Vec<Option<&'a Turn>>;

#[derive(Debug, Clone, Serialize)]
pub struct Results {
    /// All loads in the order in which they were measured, each once for each class with rounds;
    /// the class with most rounds of the whole run first.
    pub loads: Vec<LoadResult>,
    /// How many rounds there were under each load, and what was left out, a sentence each.
    pub notes: Vec<String>,
    pub measurements: Vec<Measurement>,
}

impl Results {
    pub(super) fn new(measurements: Vec<Measurement>, references: &[usize]) -> Self {
        let all = || measurements.iter().flat_map(|measured| &measured.turns);
        let classes = Classes::of(all().map(|turn| turn.conditions.distance), all().count()).turns;
        let (mut loads, mut notes, mut at) = (Vec::new(), Vec::new(), 0);
        for (index, measured) in measurements.iter().enumerate() {
            let of_load = &classes[at..at + measured.turns.len()];
            at += measured.turns.len();
            let of_class = |class| load_result(index, measured, of_load, class, references);
            let results: Vec<LoadResult> = DistanceClass::ALL.into_iter().filter_map(of_class).collect();
            notes.push(summary(measured, of_load, &results));
            loads.extend(results);
        }
        let order = order_by_rounds(&loads);
        loads.sort_by_key(|load| order.iter().position(|class| *class == load.class));
        Self { loads, notes, measurements }
    }

    /// Each load once, in the order in which they were measured, with the class in which it has most
    /// rounds.
    pub fn by_load(&self) -> impl Iterator<Item = &LoadResult> + Clone {
        let of = |index: usize| {
            let its = self.loads.iter().rev().filter(move |load| load.measurement == index);
            its.max_by_key(|load| load.rounds)
        };
        (0..self.measurements.len()).filter_map(of)
    }

    pub fn rounds<'a>(&'a self, load: &'a LoadResult) -> impl Iterator<Item = Round<'a>> {
        rounds(&self.measurements[load.measurement], &load.turns)
    }

    pub fn turns_of(&self, contender: usize) -> impl Iterator<Item = &Turn> {
        let rounds = self.loads.iter().flat_map(|load| self.rounds(load));
        rounds.filter_map(move |round| round.get(contender).copied().flatten())
    }
}

/// The classes with rounds, the one with most first.
pub(crate) fn order_by_rounds(loads: &[LoadResult]) -> Vec<DistanceClass> {
    let rounds =
        |class| -> usize { loads.iter().filter(|load| load.class == class).map(|load| load.rounds).sum() };
    let mut classes: Vec<_> = DistanceClass::ALL.into_iter().filter(|&class| rounds(class) > 0).collect();
    classes.sort_by_key(|&class| Reverse(rounds(class)));
    classes
}

fn rounds<'a>(measured: &'a Measurement, turns: &'a [Vec<usize>]) -> impl Iterator<Item = Round<'a>> {
    let turn = |index: &usize| Some(&measured.turns[*index].turn).filter(|turn| turn.invalid.is_none());
    turns.iter().map(move |round| round.iter().map(turn).collect())
}

/// The rows of one class. `None` without a round that has a turn of every contender.
fn load_result(
    index: usize,
    measured: &Measurement,
    classes: &[Option<DistanceClass>],
    class: DistanceClass,
    references: &[usize],
) -> Option<LoadResult> {
    let names = &measured.contenders;
    let turns = measured.rounds_of(|at, turn| classes[at] == Some(class) && !turn.left_out).complete;
    let count = Some(turns.len()).filter(|count| *count > 0)?;
    let readings = turns.iter().flatten().filter_map(|at| measured.turns[*at].conditions.distance);
    let distance = readings.flat_map(|it| [it.before, it.after]).fold(None, |range, it| {
        let (low, high) = range.unwrap_or((it, it));
        Some((low.min(it), high.max(it)))
    });
    let rounds: Vec<Round<'_>> = rounds(measured, &turns).collect();
    let plan = &measured.plan;
    let row = |contender: usize| row(&rounds, contender, &names[contender], references, plan.kind);
    let mut rows: Vec<Row> = (0..names.len()).map(row).collect();
    let overloaded: Vec<bool> = rows.iter().map(|row| matches!(row.status, Status::Overloaded(_))).collect();
    // The latency of an overloaded reference grows with the time for which it was measured.
    for row in &mut rows {
        for figure in [Figure::P50, Figure::P99] {
            let measured = row.figures.get_mut(&figure);
            if let Some(measured) = measured.filter(|it| it.reference.is_some_and(|it| overloaded[it])) {
                (measured.ratio, measured.difference) = (None, None);
            }
        }
    }
    let &LoadPlan { ref name, kind, at, pacing, receiver, .. } = plan;
    let (name, rounds, measurement) = (name.clone(), count, index);
    Some(LoadResult { name, kind, at, pacing, receiver, class, distance, rounds, rows, turns, measurement })
}

fn row(rounds: &[Round<'_>], contender: usize, name: &str, references: &[usize], kind: LoadKind) -> Row {
    let turns = || rounds.iter().filter_map(|round| round[contender]);
    let mut figures: Vec<Figure> = turns().flat_map(|turn| turn.figures.keys().copied()).collect();
    figures.sort_unstable();
    figures.dedup();
    let figures =
        figures.into_iter().map(|figure| (figure, measured(rounds, contender, figure, references))).collect();
    let (contender, status, queue) = (name.to_owned(), Status::Comparable, queue_mode(turns()));
    let turns = turns().count();
    let mut row = Row { contender, turns, status, figures, queue };
    let answered = row.median(Figure::Answered).unwrap_or(100.0);
    if kind == LoadKind::Open && answered < ANSWERED {
        row.status = Status::Overloaded(answered);
    } else if row.median(Figure::ReceivedShare).is_some_and(|share| share < RECEIVED_SHARE) {
        row.status = Status::NotComparable("its packets were received on another core".to_owned());
    }
    row
}

fn measured(rounds: &[Round<'_>], contender: usize, figure: Figure, references: &[usize]) -> Measured {
    let of = |turn: Option<&Turn>| turn.and_then(|turn| turn.figures.get(&figure).copied());
    let values =
        |contender: usize| -> Vec<f64> { rounds.iter().filter_map(|round| of(round[contender])).collect() };
    let latencies = |contender: usize, both: Option<usize>| -> Vec<&[(u64, u64)]> {
        let valid = |round: &&Round<'_>| both.is_none_or(|other| round[other].is_some());
        let turns = rounds.iter().filter(valid).filter_map(|round| round[contender]);
        turns.map(|turn| &turn.latencies[..]).collect()
    };
    let is_pooled = |contender: usize| {
        figure == Figure::P99 && latencies(contender, None).iter().all(|it| !it.is_empty())
    };
    let typical = |index: &usize| {
        let values = Some(values(*index)).filter(|values| !values.is_empty())?;
        let pooled = is_pooled(*index).then(|| p99(&latencies(*index, None)).median);
        Some((*index, values.len(), pooled.unwrap_or_else(|| median(&values))))
    };
    // The best of a few turns may be the best by chance.
    let measured: Vec<_> = references.iter().filter_map(typical).collect();
    let has_enough = |&(_, turns, _): &(usize, usize, f64)| turns >= LEAST_ROUNDS;
    let some_have = measured.iter().any(has_enough);
    let measured = measured.into_iter().filter(|reference| !some_have || has_enough(reference));
    let best = if figure.is_better_when_higher() {
        measured.max_by(|a, b| a.2.total_cmp(&b.2))
    } else {
        measured.min_by(|a, b| a.2.total_cmp(&b.2))
    };
    let reference = best.map(|(index, ..)| index);
    let other = reference.filter(|index| *index != contender);
    let paired = |operation: fn(f64, f64) -> f64| {
        let pairs = rounds.iter().filter_map(|round| Some((of(round[contender])?, of(round[other?])?)));
        let paired: Vec<f64> =
            pairs.map(|(one, other)| operation(one, other)).filter(|value| value.is_finite()).collect();
        (!paired.is_empty()).then(|| median_interval(&paired))
    };
    let (mut value, mut ratio) = (median_interval(&values(contender)), paired(|one, other| one / other));
    if is_pooled(contender) {
        value = p99(&latencies(contender, None));
        if let Some(other) = other.filter(|other| ratio.is_some() && is_pooled(*other)) {
            ratio = Some(p99_ratio(&latencies(contender, Some(other)), &latencies(other, Some(contender))));
        }
    }
    Measured { value, ratio, difference: paired(|one, other| one - other), reference }
}

/// The most frequent mode of a contender's queue, with the share of turns that ended in it if that
/// is not all.
fn queue_mode<'a>(turns: impl Iterator<Item = &'a Turn>) -> Option<String> {
    let modes: Vec<&String> = turns.filter_map(|turn| turn.queue.as_ref()).collect();
    let count = |mode: &String| modes.iter().filter(|other| **other == mode).count();
    let most = modes.iter().max_by_key(|mode| count(mode))?;
    Some(match count(most) {
        all if all == modes.len() => (*most).clone(),
        some => format!("{most} ({some} of {})", modes.len()),
    })
}

/// How many rounds a load had at which distance, and what was left out, in one sentence.
fn summary(measured: &Measurement, classes: &[Option<DistanceClass>], results: &[LoadResult]) -> String {
    let mut text = format!("{}: ", measured.plan.name);
    for (index, load) in results.iter().enumerate() {
        let separator = if index > 0 { ", " } else { "" };
        let _ = write!(text, "{separator}{}", counted(load.rounds, "round"));
        if load.class != DistanceClass::Single {
            let _ = write!(text, " {}", load.class);
        }
        if let Some((low, high)) = load.distance {
            let _ = write!(text, " (distance {low:.0} to {high:.0} ns)");
        }
    }
    if results.is_empty() {
        text.push_str("no complete round");
    }
    let turns = &measured.turns;
    let kept: usize = results.iter().map(|load| load.rounds * measured.contenders.len()).sum();
    let left_out = turns.iter().filter(|turn| turn.left_out).count();
    let stolen = turns.iter().filter(|turn| turn.left_out && turn.turn.invalid.is_none()).count();
    let changed = turns.iter().zip(classes).filter(|(turn, class)| class.is_none() && !turn.left_out).count();
    let invalid: Vec<&TakenTurn> = turns.iter().filter(|turn| turn.turn.invalid.is_some()).collect();
    for (count, words) in [
        (stolen, "left out because of steal"),
        (changed, "left out because the distance changed"),
        (turns.len() - kept - left_out - changed, "taken again, or left out for lack of a complete round"),
        (turns.iter().filter(|turn| turn.disturbed).count(), "kept in spite of steal"),
        (invalid.len(), "not valid"),
    ] {
        if count > 0 {
            let _ = write!(text, "; {} {words}", counted(count, "turn"));
        }
    }
    if let Some(TakenTurn { contender, turn, .. }) = invalid.first() {
        let reason = turn.invalid.as_deref().unwrap_or_default();
        let _ = write!(text, ", for example {}: {reason}", measured.contenders[*contender]);
    }
    text
}

fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::super::conditions::Conditions;
    use super::*;

    /// Results of loads whose turns have these figures; `turn` gets the contender and the round.
    pub(crate) fn results_of(
        loads: &[(&str, LoadKind, f64)],
        contenders: &[&str],
        references: &[usize],
        rounds: usize,
        turn: impl Fn(&str, usize, usize) -> Turn,
    ) -> Results {
        let measurement = |(name, kind, at): &(&str, LoadKind, f64)| {
            let plan = LoadPlan::new(*name, *kind, *at, rounds, Duration::from_secs(1));
            let taken = |index: usize| {
                let (round, contender) = (index / contenders.len(), index % contenders.len());
                let conditions = Conditions::new(0.0, Some((100.0, 110.0)));
                let turn = turn(name, contender, round);
                TakenTurn { contender, conditions, left_out: false, disturbed: false, turn }
            };
            let names = contenders.iter().map(|&it| it.to_owned()).collect();
            let turns = (0..rounds * contenders.len()).map(taken).collect();
            Measurement { plan, contenders: names, turns }
        };
        Results::new(loads.iter().map(measurement).collect(), references)
    }

    fn turn(rate: f64, p50: f64) -> Turn {
        Turn::new([(Figure::Throughput, rate), (Figure::P50, p50)])
    }

    #[test]
    fn each_figure_refers_to_the_reference_that_is_best_in_it() {
        // The first serves more, the second answers sooner.
        let values = [(200.0, 50.0), (100.0, 10.0), (150.0, 20.0)];
        let results = results_of(
            &[("closed loop", LoadKind::Closed, 64.0)],
            &["epoll", "uring", "polling"],
            &[0, 1],
            6,
            |_, contender, _| turn(values[contender].0, values[contender].1),
        );
        let rows = &results.loads[0].rows;
        let ratio = |row: usize, figure| rows[row].ratio(figure).map(|it| it.median);
        assert_eq!((ratio(2, Figure::Throughput), ratio(2, Figure::P50)), (Some(0.75), Some(2.0)));
        assert_eq!((ratio(0, Figure::Throughput), ratio(0, Figure::P50)), (None, Some(5.0)));
        assert_eq!(rows[2].figures[&Figure::P50].reference, Some(1));
        assert_eq!(rows[2].figures[&Figure::P50].difference.map(|it| it.median), Some(10.0));
    }

    #[test]
    fn a_reference_with_few_valid_turns_is_none_beside_one_with_enough() {
        let values = [(100.0, 20.0), (200.0, 10.0), (150.0, 20.0)];
        let results = |valid_of_uring: usize| {
            results_of(
                &[("closed loop", LoadKind::Closed, 64.0)],
                &["epoll", "uring", "polling"],
                &[0, 1],
                12,
                |_, contender, round| {
                    let (rate, p50) = values[contender];
                    let paused = contender == 1 && round >= valid_of_uring;
                    Turn { invalid: paused.then(|| "paused".to_owned()), ..turn(rate, p50) }
                },
            )
        };
        let reference = |results: &Results| results.loads[0].rows[2].figures[&Figure::P50].reference;
        assert_eq!(reference(&results(6)), Some(1));
        assert_eq!(reference(&results(2)), Some(0));
    }

    #[test]
    fn a_load_is_shown_once_in_the_class_in_which_it_has_most_rounds() {
        let measured = |name: &str, near: usize, far: usize| {
            let plan = LoadPlan::new(name, LoadKind::Open, 1.0, 12, Duration::from_secs(1));
            let at = |count: usize, ns: f64| vec![ns; count];
            let turns = [at(near, 100.0), at(far, 500.0)].concat();
            let turns = turns.into_iter().map(|ns| TakenTurn {
                contender: 0,
                conditions: Conditions::new(0.0, Some((ns, ns))),
                left_out: false,
                disturbed: false,
                turn: turn(1.0, ns),
            });
            Measurement { plan, contenders: vec!["one".to_owned()], turns: turns.collect() }
        };
        let results = Results::new(vec![measured("first", 9, 3), measured("second", 2, 7)], &[0]);
        let by_load: Vec<_> = results.by_load().map(|load| (&*load.name, load.class, load.rounds)).collect();
        assert_eq!(by_load, [("first", DistanceClass::Near, 9), ("second", DistanceClass::Far, 7)]);
        assert_eq!(results.loads.len(), 4);
    }

    #[test]
    fn a_turn_that_was_taken_again_does_not_pair_later_ones_with_other_rounds() {
        let plan = LoadPlan::new("closed loop", LoadKind::Closed, 64.0, 7, Duration::from_secs(1));
        let taken = |contender: usize, p50: f64| TakenTurn {
            contender,
            conditions: Conditions::new(0.0, Some((100.0, 110.0))),
            left_out: false,
            disturbed: false,
            turn: turn(100.0, p50),
        };
        // The machine becomes slower with each round. The first turn was repeated: its distance
        // seemed to have changed.
        let slow = |round: usize| 10.0 * 2.0f64.powi(round as i32);
        let mut turns = vec![taken(0, 1.0)];
        for round in 0..7 {
            turns.extend([taken(0, slow(round)), taken(1, slow(round) * 3.0)]);
        }
        // A round in which one has no turn is left out, and no other: the second one's fourth.
        turns.remove(8);
        let contenders = vec!["vanilla".to_owned(), "polling".to_owned()];
        let results = Results::new(vec![Measurement { plan, contenders, turns }], &[0]);
        let load = &results.loads[0];
        let ratio = load.rows[1].ratio(Figure::P50).unwrap();
        assert_eq!((load.rounds, ratio.low, ratio.median, ratio.high), (6, 3.0, 3.0, 3.0));
        assert!(
            results.notes[0].ends_with("; 2 turns taken again, or left out for lack of a complete round")
        );
    }

    #[test]
    fn the_reference_in_the_99th_percentile_is_the_best_over_all_rounds() {
        // The first one's are lower in most rounds, but over all of them more than 1 % of its
        // requests are slow.
        let results = results_of(
            &[("closed loop", LoadKind::Closed, 64.0)],
            &["epoll", "uring", "polling"],
            &[0, 1],
            7,
            |_, contender, round| {
                let p99 = match (contender, round) {
                    (0, 0 | 1) => 900.0,
                    (0, _) => 10.0,
                    _ => 20.0,
                };
                let mut turn = Turn::new([(Figure::P99, p99)]);
                turn.latencies = vec![((p99 * 1e3) as u64, 1000)];
                turn
            },
        );
        let rows = &results.loads[0].rows;
        let p99 = |row: usize| &rows[row].figures[&Figure::P99];
        assert_eq!((p99(0).value.median, p99(1).value.median), (900.0, 20.0));
        assert_eq!(p99(2).reference, Some(1));
        assert_eq!(p99(2).ratio.map(|ratio| ratio.median), Some(1.0));
    }

    #[test]
    fn an_invalid_turn_is_left_out_of_its_round_and_named() {
        let results = results_of(
            &[("closed loop", LoadKind::Closed, 64.0)],
            &["vanilla", "polling"],
            &[0],
            7,
            |_, contender, round| match (contender, round) {
                (1, 3) => Turn { invalid: Some("the fleet sent late".to_owned()), ..Turn::default() },
                _ => turn(100.0, 9.0),
            },
        );
        let rows = &results.loads[0].rows;
        assert_eq!((rows[0].turns, rows[1].turns), (7, 6));
        assert_eq!(rows[1].ratio(Figure::P50).map(|it| it.count), Some(6));
        assert_eq!(
            results.notes,
            [
                "closed loop: 7 rounds (distance 100 to 110 ns); 1 turn not valid, for example polling: the fleet sent late"
            ]
        );
    }
}
