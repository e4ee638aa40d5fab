//! The engine of all experiments: contenders take turns under loads, and each turn gives figures.
//!
//! - [`Turn`]: what was measured of a contender once, as [`Figure`]s and latencies.
//! - [`Runner`]: whose turn it is, under which conditions, and which turns are repeated.
//! - [`Results`]: rows of medians, intervals and ratios, by load and by class of core distance.

mod bound;
mod classes;
mod conditions;
mod core_assignment;
mod figure;
mod measurement;
mod pooled;
mod results;
mod rounds;
mod runner;
mod turn;

pub use bound::Bound;
pub use classes::{CoreDistance, DistanceClass};
pub use conditions::Conditions;
pub(crate) use conditions::STEAL_LIMIT;
pub use core_assignment::CoreAssignment;
pub use figure::Figure;
pub use measurement::{LoadKind, LoadPlan, Measurement, TakenTurn};
pub(crate) use results::ANSWERED;
#[cfg(test)]
pub(crate) use results::tests::results_of;
pub use results::{LoadResult, Measured, Results, Round, Row, Status, order_by_rounds};
pub(crate) use runner::Phases;
pub use runner::Runner;
pub use turn::Turn;
