//! Tests of rounds with steal, with changing distances and with both.

use std::collections::BTreeSet;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

#[test]
fn the_contestants_take_turns_in_the_order_of_their_round() {
    let mut rounds = Rounds::new(3, 4).order(TurnOrder::RotatedPairs);
    while let Some(turn) = rounds.next_turn() {
        rounds.finish_turn(turn, Some(()), Conditions::default());
    }
    let turns = |round: &Round<()>| round.turns.iter().map(|turn| turn.contestant).collect::<Vec<_>>();
    let leading = rounds.finish().into_leading();
    let taken: Vec<_> = leading.rounds.iter().map(turns).collect();
    assert_eq!(taken, [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]]);
    assert_eq!((leading.class, leading.low, leading.high), (DistanceClass::Single, None, None));
}

#[test]
fn without_contestants_or_rounds_there_is_no_turn() {
    for (contestants, count) in [(0, 3), (3, 0)] {
        let mut rounds = Rounds::<()>::new(contestants, count);
        assert!(rounds.next_turn().is_none());
        let finished = rounds.finish();
        assert_eq!((finished.classes.len(), finished.leading().rounds.len()), (1, 0));
    }
}

/// The outcomes of one turn whose attempts have this much steal, and the attempt that counts.
fn outcomes(policy: RepeatPolicy, steals: &[f64]) -> (Vec<TurnOutcome>, usize, usize) {
    let mut rounds = Rounds::new(1, 1).repeat_above(0.02, policy);
    let (mut outcomes, mut attempt) = (Vec::new(), 0);
    while let Some(turn) = rounds.next_turn() {
        let conditions = Conditions::with_steal(steals[attempt]);
        assert_eq!(turn.is_repeat(), attempt > 0);
        outcomes.push(rounds.finish_turn(turn, Some(attempt), conditions));
        attempt += 1;
    }
    let finished = rounds.finish();
    assert_eq!(finished.left_out_for(LeftOutReason::Steal), attempt - 1);
    (outcomes, *finished.leading().rounds[0].value(0).unwrap(), finished.disturbed.len())
}

#[test]
fn a_turn_with_steal_is_repeated_as_the_policy_says() {
    use TurnOutcome::{Kept, KeptDisturbed, Repeated};
    let steals = [0.5, 0.03, 0.02];
    assert_eq!(outcomes(RepeatPolicy::Never, &steals), (vec![KeptDisturbed], 0, 1));
    assert_eq!(outcomes(RepeatPolicy::Once, &steals), (vec![Repeated, KeptDisturbed], 1, 2));
    assert_eq!(outcomes(RepeatPolicy::Always, &steals), (vec![Repeated, Repeated, Kept], 2, 2));
    assert_eq!(outcomes(RepeatPolicy::Within(Duration::ZERO), &steals), (vec![KeptDisturbed], 0, 1));
    let hour = Duration::from_secs(3600);
    assert_eq!(outcomes(RepeatPolicy::Within(hour), &steals), (vec![Repeated, Repeated, Kept], 2, 2));
}

#[test]
fn an_invalid_turn_leaves_its_round_out_of_the_ratios() {
    let mut rounds = Rounds::new(2, 2);
    while let Some(turn) = rounds.next_turn() {
        let value = 1.0 + turn.contestant() as f64;
        let valid = turn.round() == 0 || turn.contestant() == 0;
        rounds.finish_turn(turn, valid.then_some(value), Conditions::default());
    }
    let finished = rounds.finish();
    let rounds = &finished.leading().rounds;
    assert_eq!(rounds.iter().map(Round::is_valid).collect::<Vec<_>>(), [true, false]);
    assert_eq!(figures(rounds, 0, |value| *value), [1.0, 1.0]);
    assert_eq!(figures(rounds, 1, |value| *value), [2.0]);
    assert_eq!(ratios(rounds, 1, 0, |value| *value), [2.0]);
    let left_out: Vec<_> = finished.left_out.iter().map(|turn| (turn.contestant, turn.reason)).collect();
    assert_eq!(left_out, [(1, LeftOutReason::Invalid)]);
}

#[test]
fn the_turns_of_a_round_that_is_broken_off_are_left_out() {
    let mut rounds = Rounds::new(2, 2);
    for _ in 0..3 {
        let turn = rounds.next_turn().unwrap();
        rounds.finish_turn(turn, Some(1.0), Conditions::default());
    }
    let finished = rounds.finish();
    assert_eq!(finished.leading().rounds.len(), 1);
    let left_out: Vec<_> = finished.left_out.iter().map(|turn| (turn.sequence, turn.reason)).collect();
    assert_eq!(left_out, [(2, LeftOutReason::RoundIncomplete)]);
}

/// Takes turns at these distances, and returns the contestant and the outcome of each.
fn take(rounds: &mut Rounds<f64>, distances: &[(f64, f64)]) -> Vec<(usize, TurnOutcome)> {
    let one = |&(before, after): &(f64, f64)| {
        let turn = rounds.next_turn().unwrap();
        let contestant = turn.contestant();
        let conditions = Conditions::default().with_distance(before, after);
        (contestant, rounds.finish_turn(turn, Some(before), conditions))
    };
    distances.iter().map(one).collect()
}

#[test]
fn a_turn_meanwhile_the_distance_changes_is_repeated_and_each_class_goes_on_with_its_own_round() {
    use TurnOutcome::{Kept, Repeated};
    const NEAR: (f64, f64) = (100.0, 110.0);
    const FAR: (f64, f64) = (500.0, 520.0);
    let mut rounds = Rounds::new(3, 2).order(TurnOrder::Fixed);
    let taken = take(&mut rounds, &[NEAR, NEAR, (100.0, 500.0)]);
    assert_eq!(taken, [(0, Kept), (1, Kept), (2, Repeated)]);
    // One far turn does not make a class yet, so the round still lacks contestant 2.
    assert_eq!(take(&mut rounds, &[FAR]), [(2, Repeated)]);
    // The second one makes it one, and the first counts after all.
    assert_eq!(take(&mut rounds, &[FAR, FAR, FAR]), [(2, Kept), (0, Kept), (1, Kept)]);
    // Far has one round and contestant 2 in its second.
    assert_eq!(take(&mut rounds, &[(500.0, 100.0)]), [(0, Repeated)]);
    // Near again: its first round lacks contestant 2.
    assert_eq!(take(&mut rounds, &[NEAR, NEAR, (100.0, 510.0)]), [(2, Kept), (0, Kept), (1, Repeated)]);
    assert_eq!(take(&mut rounds, &[FAR, FAR]), [(0, Kept), (1, Kept)]);
    assert!(rounds.next_turn().is_none());
    let finished = rounds.finish();
    let sequences = |class: &ClassRounds<f64>| -> Vec<Vec<usize>> {
        class.rounds.iter().map(|round| round.turns.iter().map(|turn| turn.sequence).collect()).collect()
    };
    assert_eq!(finished.classes.len(), 2);
    let (far, near) = (finished.leading(), &finished.classes[1]);
    assert_eq!((far.class, far.low, far.high), (DistanceClass::Far, Some(500.0), Some(520.0)));
    assert_eq!(sequences(far), [[3, 5, 6], [4, 11, 12]]);
    assert_eq!((near.class, near.low, near.high), (DistanceClass::Near, Some(100.0), Some(110.0)));
    assert_eq!(sequences(near), [[0, 1, 8]]);
    let left_out: Vec<_> = finished.left_out.iter().map(|turn| (turn.sequence, turn.reason)).collect();
    let changed = LeftOutReason::ClassChanged;
    assert_eq!(left_out, [(2, changed), (7, changed), (9, LeftOutReason::RoundIncomplete), (10, changed)]);
}

#[test]
fn a_distance_seen_in_one_turn_only_is_left_out_at_the_end() {
    let mut rounds = Rounds::new(1, 3);
    take(&mut rounds, &[(100.0, 100.0), (100.0, 100.0), (500.0, 500.0), (100.0, 100.0)]);
    assert!(rounds.next_turn().is_none());
    let finished = rounds.finish();
    assert_eq!((finished.classes.len(), finished.leading().class), (1, DistanceClass::Single));
    assert_eq!(figures(&finished.leading().rounds, 0, |value| *value), [100.0; 3]);
    assert_eq!(finished.left_out_for(LeftOutReason::ClassChanged), 1);
}

#[test]
fn a_machine_that_changes_in_every_turn_is_given_up() {
    let mut rounds = Rounds::new(2, 3);
    let mut turns = 0;
    while let Some(turn) = rounds.next_turn() {
        rounds.finish_turn(turn, Some(1.0), Conditions::default().with_distance(100.0, 500.0));
        turns += 1;
    }
    assert_eq!(turns, 4 * 2 * 3 + 1);
    let finished = rounds.finish();
    assert_eq!((finished.leading().rounds.len(), finished.left_out.len()), (0, turns));
}

#[test]
fn after_the_time_limit_no_turn_begins_once_a_round_is_complete() {
    let mut rounds = Rounds::new(3, 10).time_limit(Duration::ZERO);
    take(&mut rounds, &[(100.0, 100.0); 3]);
    assert!(rounds.next_turn().is_none());
    assert_eq!(rounds.finish().leading().rounds.len(), 1);
    let mut rounds = Rounds::new(3, 10).time_limit(Duration::from_secs(3600));
    take(&mut rounds, &[(100.0, 100.0); 6]);
    assert!(rounds.next_turn().is_some());
}

#[test]
fn after_the_time_limit_a_round_that_never_completes_is_given_up() {
    let mut rounds =
        Rounds::<f64>::new(2, 100).time_limit(Duration::ZERO).repeat_above(0.02, RepeatPolicy::Always);
    let mut turns = 0;
    while let Some(turn) = rounds.next_turn() {
        rounds.finish_turn(turn, None, Conditions::with_steal(0.5));
        turns += 1;
    }
    assert_eq!(turns, 1 + 4 * 2);
}

/// A machine whose cores move at random, before and during turns.
struct Machine {
    random: StdRng,
    far: bool,
    /// How likely a move is in each of the two places, 0 to 1.
    moves: f64,
}

impl Machine {
    fn distance(&mut self) -> f64 {
        self.far ^= self.random.random_bool(self.moves);
        let jitter = self.random.random_range(0.85..1.15);
        jitter * if self.far { 500.0 } else { 110.0 }
    }

    /// The conditions and the speed of a turn.
    fn turn(&mut self) -> (Conditions, f64) {
        let (before, after) = (self.distance(), self.distance());
        let steal = if self.random.random_bool(0.1) { 0.1 } else { 0.0 };
        let speed = (if before < 250.0 { 3.0 } else { 1.0 } + if after < 250.0 { 3.0 } else { 1.0 }) / 2.0;
        (Conditions::with_steal(steal).with_distance(before, after), speed)
    }
}

#[test]
fn however_the_cores_move_every_ratio_is_of_turns_in_one_class() {
    for seed in 0..300 {
        let mut random = StdRng::seed_from_u64(seed);
        let (contestants, count) = (random.random_range(2..=5), random.random_range(1..=8));
        let moves = random.random_range(0.0..0.4);
        let mut machine = Machine { random, far: false, moves };
        let mut rounds = Rounds::new(contestants, count).repeat_above(0.02, RepeatPolicy::Always);
        let mut turns = 0;
        while let Some(turn) = rounds.next_turn() {
            let (conditions, speed) = machine.turn();
            let value = speed * (1 + turn.contestant()) as f64;
            rounds.finish_turn(turn, Some(value), conditions);
            turns += 1;
        }
        let finished = rounds.finish();
        let enough = finished.leading().rounds.len() >= count;
        let given_up = finished.left_out_for(LeftOutReason::ClassChanged) > 4 * contestants * count;
        assert!(enough || given_up, "seed {seed}: {} of {count} rounds", finished.leading().rounds.len());
        let mut seen: BTreeSet<usize> = finished.left_out.iter().map(|turn| turn.sequence).collect();
        for class in &finished.classes {
            assert!(class.rounds.len() <= finished.leading().rounds.len());
            for round in &class.rounds {
                assert_eq!(round.turns.len(), contestants, "seed {seed}");
                assert!(
                    round.turns.iter().all(|turn| turn.class == class.class && turn.conditions.steal == 0.0)
                );
                assert!(
                    round.turns.iter().all(|turn| seen.insert(turn.sequence)),
                    "seed {seed}: counted twice"
                );
            }
            for contestant in 1..contestants {
                let found = ratios(&class.rounds, contestant, 0, |value| *value);
                assert_eq!(found.len(), class.rounds.len());
                let expected = (1 + contestant) as f64;
                assert!(found.iter().all(|ratio| (ratio - expected).abs() < 1e-9), "seed {seed}: {found:?}");
            }
        }
        assert_eq!(seen.len(), turns, "seed {seed}: every turn counts or is left out");
    }
}
