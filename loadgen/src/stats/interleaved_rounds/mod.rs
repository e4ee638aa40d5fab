//! Interleaved rounds: each round measures every contestant once, so that drift of the machine affects all of them.
//!
//! [`Rounds`] decides whose turn it is, repeats turns that the machine disturbed, and collects the values. It does
//! not measure: the caller does, blocking or `async`, between [`next_turn`](Rounds::next_turn) and
//! [`finish_turn`](Rounds::finish_turn).
//!
//! A hypervisor may move a virtual machine's cores nearer to each other or farther apart, which makes everything that
//! crosses cores several times faster or slower. A caller that measures the distance around each turn
//! ([`Conditions::with_distance`]) gets rounds of turns at the same distance: each
//! [class of distance](DistanceClass) has its own rounds, and a turn meanwhile the distance changed is repeated.
//!
//! ```
//! use loadgen::interleaved_rounds::{Conditions, DistanceClass, Rounds, ratios};
//! use loadgen::medians::median_interval;
//!
//! // Two contestants, six rounds. From the fifth turn on the cores are farther apart, and everything is slower.
//! let (mut rounds, mut turns) = (Rounds::new(2, 6), 0);
//! while let Some(turn) = rounds.next_turn() {
//!     let (distance, speed) = if turns < 4 { (100.0, 3.0) } else { (500.0, 1.0) };
//!     let rate = speed * if turn.contestant() == 0 { 100.0 } else { 150.0 };
//!     rounds.finish_turn(turn, Some(rate), Conditions::default().with_distance(distance, distance));
//!     turns += 1;
//! }
//! let finished = rounds.finish();
//! assert_eq!((finished.leading().class, finished.leading().rounds.len()), (DistanceClass::Far, 6));
//! assert_eq!((finished.classes[1].class, finished.classes[1].rounds.len()), (DistanceClass::Near, 2));
//! let ratio = median_interval(&ratios(&finished.leading().rounds, 1, 0, |rate| *rate));
//! assert_eq!((ratio.low, ratio.median, ratio.high), (1.5, 1.5, 1.5));
//! ```

mod conditions;
mod finished;
mod rounds;
#[cfg(test)]
mod tests;

pub use conditions::{Conditions, CoreDistance, DISTANCE_GAP, DistanceClass, distance_gaps};
pub use finished::{
    ClassRounds, DisturbedTurn, FinishedRounds, FinishedTurn, LeftOutReason, LeftOutTurn, Round,
};
pub use finished::{figures, mean_ratio, ratios};
pub use rounds::TurnOrder;
pub use rounds::{RepeatPolicy, Rounds, Turn, TurnOutcome};
