//! Whose turn it is, and what becomes of a turn.

use std::time::{Duration, Instant};

use super::conditions::{Classification, Conditions, DistanceClass};
use super::finished::{
    ClassRounds, DisturbedTurn, FinishedRounds, FinishedTurn, LeftOutReason, LeftOutTurn, Round,
};

/// Rounds' worth of turns that may be tried in vain, for each round asked for, because the distance changes in every
/// turn. Without an end, a machine that moves its cores faster than a turn would keep the caller forever.
const FUTILE_ROUNDS: usize = 4;

/// How often a turn is repeated that exceeded the steal limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RepeatPolicy {
    /// Never: the disturbed turn counts.
    #[default]
    Never,
    /// Once; the second attempt counts, whatever disturbs it.
    Once,
    /// Until all disturbed attempts together have taken this long.
    Within(Duration),
    /// Until an attempt is undisturbed.
    Always,
}

/// Whose turn it is. Ends with [`Rounds::finish_turn`].
#[derive(Debug)]
#[must_use = "a turn that is not finished is started again by `next_turn`"]
pub struct Turn {
    round: usize,
    contestant: usize,
    last_of_round: bool,
    repeats: bool,
    started: Instant,
}

impl Turn {
    /// The round, from 0, in the present class of distance.
    pub fn round(&self) -> usize {
        self.round
    }

    /// The index of the contestant to measure.
    pub fn contestant(&self) -> usize {
        self.contestant
    }

    /// Whether the round ends with this turn.
    pub fn is_last_of_round(&self) -> bool {
        self.last_of_round
    }

    /// Whether the turn before was left out, so that this one takes its place.
    pub fn is_repeat(&self) -> bool {
        self.repeats
    }
}

/// What [`Rounds::finish_turn`] did with a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TurnOutcome {
    /// The value counts.
    Kept,
    /// The turn was disturbed; the value counts because [`RepeatPolicy`] allows no further attempt.
    KeptDisturbed,
    /// The turn was disturbed by steal, or the distance of the cores changed: its contestant is measured again in this
    /// round. If the class of distance is another one now, that class's rounds go on first. A turn that is the first at
    /// its distance counts after all when a second one confirms the distance.
    Repeated,
}

/// A turn that was taken, whatever becomes of it.
#[derive(Debug)]
struct TakenTurn<T> {
    contestant: usize,
    value: Option<T>,
    conditions: Conditions,
    /// Repeated because of steal.
    stolen: bool,
}

/// Interleaved rounds in progress.
///
/// Which class a turn is in depends on all readings, later ones included. So the turns are kept as they come, and
/// rounds are derived from them: the first turn of each contestant in a class makes the class's first round, and so
/// on.
#[derive(Debug)]
pub struct Rounds<T> {
    contestants: usize,
    count: usize,
    order: TurnOrder,
    steal_limit: f64,
    repeat: RepeatPolicy,
    time_limit: Option<Duration>,
    /// When the first turn began.
    started: Option<Instant>,
    /// Turns taken before the time limit was noticed to be over.
    taken_in_time: Option<usize>,
    taken: Vec<TakenTurn<T>>,
    /// Attempts at the turn in progress that were repeated because of steal.
    attempts: usize,
    /// Whether the last turn is repeated.
    repeats: bool,
    disturbed: Vec<DisturbedTurn>,
    repeated_time: Duration,
}

impl<T> Rounds<T> {
    /// `count` rounds of `contestants` in [Williams order](TurnOrder::Williams), without a steal limit. If turns differ
    /// in their class of distance, one class gets `count` rounds, and the other keeps what it got meanwhile.
    pub fn new(contestants: usize, count: usize) -> Self {
        Self {
            contestants,
            count,
            order: TurnOrder::default(),
            steal_limit: f64::INFINITY,
            repeat: RepeatPolicy::Never,
            time_limit: None,
            started: None,
            taken_in_time: None,
            taken: Vec::with_capacity(contestants.saturating_mul(count).min(1 << 16)),
            attempts: 0,
            repeats: false,
            disturbed: Vec::new(),
            repeated_time: Duration::ZERO,
        }
    }

    /// Sets the order of turns within a round.
    pub fn order(mut self, order: TurnOrder) -> Self {
        self.order = order;
        self
    }

    /// Repeats turns with more steal than `limit`, a share of one core, as `policy` says.
    pub fn repeat_above(mut self, limit: f64, policy: RepeatPolicy) -> Self {
        self.steal_limit = limit;
        self.repeat = policy;
        self
    }

    /// Begins no further turn when this time has passed since the first turn began and a class has at least one
    /// complete round. Without a complete round it goes on for at most four rounds' worth of turns.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = Some(limit);
        self
    }

    /// The turn to measure now; `None` after the last round, after the [time limit](Self::time_limit), or if more than
    /// four times as many turns as asked for were left out because the distance of the cores changed.
    pub fn next_turn(&mut self) -> Option<Turn> {
        if self.contestants == 0 || self.count == 0 {
            return None;
        }
        let classification = self.classification();
        let turns_of = |class| self.turns_of(&classification, class);
        let most =
            classification.classes().iter().map(|&class| complete(&turns_of(class))).max().unwrap_or(0);
        let futile = classification.turns.iter().filter(|class| class.is_none()).count();
        if most >= self.count || futile > FUTILE_ROUNDS * self.contestants * self.count {
            return None;
        }
        let latest = self.taken.iter().rev().find_map(|turn| turn.conditions.distance);
        let class =
            latest.map_or(classification.classes()[0], |distance| classification.class_of(distance.after));
        let turns = turns_of(class);
        let round = complete(&turns);
        let order = self.order;
        let mut missing = (0..self.contestants)
            .map(|position| order.contestant(round, position, self.contestants))
            .filter(|&contestant| turns[contestant].len() <= round);
        let contestant = missing.next()?;
        let last_of_round = missing.next().is_none();
        let now = Instant::now();
        let started = *self.started.get_or_insert(now);
        if self.time_limit.is_some_and(|limit| now - started >= limit) && !self.taken.is_empty() {
            let in_time = *self.taken_in_time.get_or_insert(self.taken.len());
            if most > 0 || self.taken.len() - in_time >= FUTILE_ROUNDS * self.contestants {
                return None;
            }
        }
        Some(Turn { round, contestant, last_of_round, repeats: self.repeats, started: now })
    }

    /// Ends a turn. `value` is `None` if the measurement is invalid.
    pub fn finish_turn(&mut self, turn: Turn, value: Option<T>, conditions: Conditions) -> TurnOutcome {
        let disturbed = conditions.steal > self.steal_limit;
        let stolen = disturbed
            && match self.repeat {
                RepeatPolicy::Never => false,
                RepeatPolicy::Once => self.attempts == 0,
                RepeatPolicy::Within(budget) => self.repeated_time < budget,
                RepeatPolicy::Always => true,
            };
        let contestant = turn.contestant;
        if stolen {
            self.attempts += 1;
            self.repeated_time += turn.started.elapsed();
        } else {
            self.attempts = 0;
        }
        self.taken.push(TakenTurn { contestant, value, conditions, stolen });
        let changed = self.classification().turns.last().is_some_and(Option::is_none);
        self.repeats = stolen || changed;
        if disturbed {
            self.disturbed.push(DisturbedTurn { contestant, conditions, repeated: self.repeats });
        }
        match (self.repeats, disturbed) {
            (true, _) => TurnOutcome::Repeated,
            (false, true) => TurnOutcome::KeptDisturbed,
            (false, false) => TurnOutcome::Kept,
        }
    }

    /// The rounds that are complete. May be called before the last round, to break off.
    pub fn finish(self) -> FinishedRounds<T> {
        let classification = self.classification();
        let mut plans: Vec<ClassPlan> = classification
            .classes()
            .iter()
            .map(|&class| {
                let turns = self.turns_of(&classification, class);
                let readings = || {
                    let in_class =
                        turns.iter().flatten().filter_map(|&index| self.taken[index].conditions.distance);
                    in_class.flat_map(|distance| [distance.before, distance.after])
                };
                ClassPlan {
                    class,
                    low: readings().reduce(f64::min),
                    high: readings().reduce(f64::max),
                    rounds: complete(&turns),
                    turns,
                }
            })
            .collect();
        // Stable: of classes with equally many rounds and turns, near comes first.
        plans.sort_by_key(|plan| {
            std::cmp::Reverse((plan.rounds, plan.turns.iter().map(Vec::len).sum::<usize>()))
        });
        let mut places = vec![None; self.taken.len()];
        for (rank, plan) in plans.iter().enumerate() {
            for turns in &plan.turns {
                for (round, &index) in turns.iter().take(plan.rounds).enumerate() {
                    places[index] = Some((rank, round));
                }
            }
        }
        let mut classes: Vec<ClassRounds<T>> = plans.iter().map(ClassPlan::empty_rounds).collect();
        let mut left_out = Vec::new();
        for (sequence, (turn, place)) in self.taken.into_iter().zip(places).enumerate() {
            let TakenTurn { contestant, value, conditions, stolen } = turn;
            let reason = match place {
                Some(_) if value.is_none() => Some(LeftOutReason::Invalid),
                Some(_) => None,
                None if stolen => Some(LeftOutReason::Steal),
                None if classification.turns[sequence].is_none() => Some(LeftOutReason::ClassChanged),
                None => Some(LeftOutReason::RoundIncomplete),
            };
            // An invalid turn stays in its round, without a value.
            if let Some((rank, round)) = place {
                let ClassRounds { class, rounds, .. } = &mut classes[rank];
                let value = if reason.is_none() { value } else { None };
                rounds[round].turns.push(FinishedTurn {
                    contestant,
                    value,
                    conditions,
                    class: *class,
                    sequence,
                });
                if let Some(reason) = reason {
                    left_out.push(LeftOutTurn { contestant, value: None, conditions, reason, sequence });
                }
            } else if let Some(reason) = reason {
                left_out.push(LeftOutTurn { contestant, value, conditions, reason, sequence });
            }
        }
        // A class whose turns were all stolen is none.
        let seen = |class: &ClassRounds<T>| class.low.is_some() || class.class == DistanceClass::Single;
        let (seen, unseen): (Vec<_>, Vec<_>) = classes.into_iter().partition(seen);
        FinishedRounds {
            classes: if seen.is_empty() { unseen } else { seen },
            left_out,
            disturbed: self.disturbed,
            repeated_time: self.repeated_time,
        }
    }

    fn classification(&self) -> Classification {
        let distances: Vec<_> = self.taken.iter().map(|turn| turn.conditions.distance).collect();
        Classification::of(&distances)
    }

    /// The turns that count in a class, by contestant.
    fn turns_of(&self, classification: &Classification, class: DistanceClass) -> Vec<Vec<usize>> {
        let mut turns = vec![Vec::new(); self.contestants];
        for (index, turn) in self.taken.iter().enumerate() {
            if classification.turns[index] == Some(class) && !turn.stolen {
                turns[turn.contestant].push(index);
            }
        }
        turns
    }
}

/// What a class consists of.
struct ClassPlan {
    class: DistanceClass,
    low: Option<f64>,
    high: Option<f64>,
    /// The number of complete rounds.
    rounds: usize,
    /// The turns by contestant.
    turns: Vec<Vec<usize>>,
}

impl ClassPlan {
    fn empty_rounds<T>(&self) -> ClassRounds<T> {
        let rounds = (0..self.rounds).map(|_| Round { turns: Vec::with_capacity(self.turns.len()) });
        ClassRounds { class: self.class, low: self.low, high: self.high, rounds: rounds.collect() }
    }
}

/// The number of rounds in which every contestant has a turn.
fn complete(turns: &[Vec<usize>]) -> usize {
    turns.iter().map(Vec::len).min().unwrap_or(0)
}

/// The order of turns within a round.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TurnOrder {
    /// The same order in every round.
    Fixed,
    /// Each round starts with the next contestant.
    Rotated,
    /// Every second round runs backwards.
    Alternating,
    /// Rounds form pairs, one forwards and one backwards; each pair starts with the next contestant.
    RotatedPairs,
    /// A Williams design: each contestant has each place equally often, and follows each other one equally often.
    /// Balanced after as many rounds as there are contestants if their number is even, or twice as many if it is odd.
    #[default]
    Williams,
}

impl TurnOrder {
    /// The contestant at a position of a round.
    fn contestant(self, round: usize, position: usize, contestants: usize) -> usize {
        let reversed = contestants - 1 - position;
        match self {
            Self::Fixed => position,
            Self::Rotated => (position + round) % contestants,
            Self::Alternating if round.is_multiple_of(2) => position,
            Self::Alternating => reversed,
            Self::RotatedPairs => {
                let place = if round.is_multiple_of(2) { position } else { reversed };
                (place + round / 2) % contestants
            }
            Self::Williams if contestants.is_multiple_of(2) => {
                (zigzag(position, contestants) + round) % contestants
            }
            // With an odd number the neighbours of a row are balanced only together with those of its mirror image.
            Self::Williams => {
                let place = if round.is_multiple_of(2) { position } else { reversed };
                (zigzag(place, contestants) + round / 2) % contestants
            }
        }
    }
}

/// The first row of a Williams square, 0, 1, n-1, 2, n-2 and so on: each difference between neighbours occurs once.
fn zigzag(position: usize, contestants: usize) -> usize {
    if position.is_multiple_of(2) { (contestants - position / 2) % contestants } else { position.div_ceil(2) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(order: TurnOrder, contestants: usize, count: usize) -> Vec<Vec<usize>> {
        let round =
            |round| (0..contestants).map(|position| order.contestant(round, position, contestants)).collect();
        (0..count).map(round).collect()
    }

    #[test]
    fn each_order_gives_every_contestant_one_turn_a_round() {
        assert_eq!(rounds(TurnOrder::Fixed, 3, 2), [[0, 1, 2], [0, 1, 2]]);
        assert_eq!(rounds(TurnOrder::Rotated, 3, 3), [[0, 1, 2], [1, 2, 0], [2, 0, 1]]);
        assert_eq!(rounds(TurnOrder::Alternating, 3, 3), [[0, 1, 2], [2, 1, 0], [0, 1, 2]]);
        assert_eq!(rounds(TurnOrder::RotatedPairs, 3, 4), [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]]);
        assert_eq!(rounds(TurnOrder::Williams, 2, 2), [[0, 1], [1, 0]]);
        assert_eq!(rounds(TurnOrder::Williams, 1, 2), [[0], [0]]);
    }

    #[test]
    fn in_a_williams_design_everyone_follows_everyone_else_equally_often() {
        for contestants in 2..=7 {
            let count = if contestants % 2 == 0 { contestants } else { 2 * contestants };
            let (mut follows, mut places) =
                (vec![0; contestants * contestants], vec![0; contestants * contestants]);
            for round in rounds(TurnOrder::Williams, contestants, count) {
                for pair in round.windows(2) {
                    follows[pair[0] * contestants + pair[1]] += 1;
                }
                for (place, contestant) in round.iter().enumerate() {
                    places[place * contestants + contestant] += 1;
                }
            }
            let each = count / contestants;
            for (index, &times) in follows.iter().enumerate() {
                let itself = index / contestants == index % contestants;
                assert_eq!(times, if itself { 0 } else { each }, "{contestants} contestants, pair {index}");
            }
            assert!(places.iter().all(|&times| times == each), "{contestants} contestants: {places:?}");
        }
    }
}
