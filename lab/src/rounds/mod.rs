//! How everything is measured: contenders take turns in interleaved rounds under a load, each turn
//! gives figures, and the figures of all rounds become rows.
//!
//! A contender is known by its index, also where a row or a ratio names another one.

mod classes;
mod conditions;
mod figure;
mod intervals;
mod results;
mod runner;
mod turn;

pub(crate) use classes::{Classes, DISTANCE_GAP};
pub use classes::{CoreDistance, DistanceClass};
pub use conditions::Conditions;
pub(crate) use conditions::{MOST_PAUSED, observed};
pub use figure::Figure;
pub(crate) use intervals::{p99_of_runs, ratio_of_runs};
#[cfg(test)]
pub(crate) use results::tests::results_of;
pub(crate) use results::{ANSWERED, order_by_rounds};
pub use results::{LoadResult, Measured, Results, Round, Row, Status};
pub use runner::Runner;
pub use turn::{AttachProgress, LEAST_ROUNDS, LoadDetail, LoadKind, LoadPlan, Measurement, TakenTurn, Turn};
