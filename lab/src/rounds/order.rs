//! Interleaved rounds: each round measures every contender once, so that drift of the machine
//! affects all of them. The order is a Williams design's.

use std::time::{Duration, Instant};

use super::classes::{Classes, CoreDistance, DistanceClass};
use super::conditions::Conditions;

/// Rounds' worth of turns that may be tried in vain, for each round asked for, because the distance
/// changes in every turn.
const FUTILE_ROUNDS: usize = 4;

#[derive(Debug, Clone, Copy)]
pub(super) struct Next {
    /// From 0, in the present class of distance.
    pub(super) round: usize,
    pub(super) contender: usize,
    /// Whether the turn before was left out, so that this one takes its place.
    pub(super) is_repeat: bool,
    begun: Instant,
}

#[derive(Debug)]
struct Taken {
    contender: usize,
    distance: Option<CoreDistance>,
    stolen: bool,
}

/// Rounds in progress. Which class a turn is in depends on all readings, later ones included, so
/// rounds are derived from the turns: the first turn of each contender in a class makes the class's
/// first round, and so on.
#[derive(Debug)]
pub(super) struct Rounds {
    contenders: usize,
    count: usize,
    limit: Duration,
    steal_limit: f64,
    started: Option<Instant>,
    /// Turns taken before the limit was noticed to be over.
    taken_in_time: Option<usize>,
    taken: Vec<Taken>,
    is_repeat: bool,
    repeated_time: Duration,
}

impl Rounds {
    /// `count` rounds, of which none begins after `limit`. Turns with more steal than `steal_limit`
    /// are repeated until that has taken half of it. If turns differ in their class of distance,
    /// one class gets `count` rounds.
    pub(super) fn new(contenders: usize, count: usize, limit: Duration, steal_limit: f64) -> Self {
        Self {
            contenders,
            count,
            limit,
            steal_limit,
            started: None,
            taken_in_time: None,
            taken: Vec::new(),
            is_repeat: false,
            repeated_time: Duration::ZERO,
        }
    }

    /// The turn to measure now. `None` after the last round; after the limit, with a complete round
    /// or four rounds' worth of turns in vain; and if the distance changed in four times as many
    /// turns as asked for.
    pub(super) fn next(&mut self) -> Option<Next> {
        let classes = self.classes();
        let most = classes.all().iter().map(|&class| complete(&self.counts(&classes, class))).max();
        let most = most.unwrap_or(0);
        let futile = classes.turns.iter().filter(|class| class.is_none()).count();
        if most >= self.count || futile > FUTILE_ROUNDS * self.contenders * self.count {
            return None;
        }
        let latest = self.taken.iter().rev().find_map(|turn| turn.distance);
        let class = latest.map_or(classes.all()[0], |distance| classes.of_reading(distance.after));
        let counts = self.counts(&classes, class);
        let round = complete(&counts);
        let order = (0..self.contenders).map(|position| williams(round, position, self.contenders));
        let contender = order.into_iter().find(|&contender| counts[contender] <= round)?;
        let now = Instant::now();
        if now - *self.started.get_or_insert(now) >= self.limit && !self.taken.is_empty() {
            let in_time = *self.taken_in_time.get_or_insert(self.taken.len());
            if most > 0 || self.taken.len() - in_time >= FUTILE_ROUNDS * self.contenders {
                return None;
            }
        }
        Some(Next { round, contender, is_repeat: self.is_repeat, begun: now })
    }

    /// Ends a turn. Returns whether it is repeated: for steal, or because the distance changed.
    pub(super) fn finish(&mut self, turn: Next, conditions: &Conditions) -> bool {
        let stolen = conditions.steal > self.steal_limit && self.repeated_time < self.limit / 2;
        if stolen {
            self.repeated_time += turn.begun.elapsed();
        }
        self.taken.push(Taken { contender: turn.contender, distance: conditions.distance, stolen });
        self.is_repeat = stolen || self.classes().turns.last().is_some_and(Option::is_none);
        self.is_repeat
    }

    fn classes(&self) -> Classes {
        Classes::of(&self.taken.iter().map(|turn| turn.distance).collect::<Vec<_>>())
    }

    fn counts(&self, classes: &Classes, class: DistanceClass) -> Vec<usize> {
        let mut counts = vec![0; self.contenders];
        for (turn, of) in self.taken.iter().zip(&classes.turns) {
            counts[turn.contender] += usize::from(*of == Some(class) && !turn.stolen);
        }
        counts
    }
}

fn complete(counts: &[usize]) -> usize {
    counts.iter().copied().min().unwrap_or(0)
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
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const NEAR: (f64, f64) = (100.0, 110.0);
    const FAR: (f64, f64) = (500.0, 520.0);

    /// Takes turns at these distances with as much steal. Returns the contender of each, and
    /// whether it is repeated.
    fn take(rounds: &mut Rounds, distances: &[(f64, f64)], steal: f64) -> Vec<(usize, bool)> {
        let one = |&(before, after): &(f64, f64)| {
            let turn = rounds.next().unwrap();
            (turn.contender, rounds.finish(turn, &Conditions::new(steal, Some((before, after)))))
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
        let mut rounds = Rounds::new(1, 1, HOUR, 0.02);
        assert_eq!(take(&mut rounds, &[NEAR, NEAR], 0.5), [(0, true), (0, true)]);
        assert!(rounds.next().unwrap().is_repeat);
        assert_eq!(take(&mut rounds, &[NEAR], 0.02), [(0, false)]);
        assert!(rounds.next().is_none());
        assert_eq!(take(&mut Rounds::new(1, 1, Duration::ZERO, 0.02), &[NEAR], 0.5), [(0, false)]);
    }

    #[test]
    fn each_class_of_distance_goes_on_with_its_own_round() {
        let mut rounds = Rounds::new(2, 2, HOUR, 0.02);
        assert_eq!(take(&mut rounds, &[NEAR, (100.0, 500.0)], 0.0), [(0, false), (1, true)]);
        // One turn far away makes no class yet; the second one does, and the first counts after
        // all.
        assert_eq!(take(&mut rounds, &[FAR, FAR], 0.0), [(1, true), (1, false)]);
        assert_eq!(take(&mut rounds, &[FAR], 0.0), [(0, false)]);
        while let Some(turn) = rounds.next() {
            rounds.finish(turn, &Conditions::new(0.0, Some(FAR)));
        }
        let classes = rounds.classes();
        assert!(rounds.counts(&classes, classes.of_reading(500.0)).iter().all(|count| *count >= 2));
    }

    #[test]
    fn what_never_becomes_a_round_is_given_up() {
        let mut changing = Rounds::new(2, 3, HOUR, 0.02);
        let mut turns = 0;
        while let Some(turn) = changing.next() {
            changing.finish(turn, &Conditions::new(0.0, Some((100.0, 500.0))));
            turns += 1;
        }
        assert_eq!(turns, 4 * 2 * 3 + 1);
        // After the limit nothing begins once a round is complete.
        let mut late = Rounds::new(3, 10, Duration::ZERO, 0.02);
        take(&mut late, &[NEAR; 3], 0.0);
        assert!(late.next().is_none());
    }
}
