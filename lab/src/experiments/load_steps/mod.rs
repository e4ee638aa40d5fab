//! What a server does when its load steps up or down: how long its latency takes to settle, and by how much it is beyond
//! vanilla's meanwhile.
//!
//! [`Load::Steps`](crate::experiment::Load::Steps) measures it.

mod excess;
mod settling;
mod step_rows;

pub use excess::{ALLOWED_BEYOND_BUDGET, Excess, Percentile};
pub use settling::{SETTLED_WITHIN, Settling, TIME_TO_SETTLE};
pub use step_rows::{LoadSteps, StepRow, load_steps};

/// Whether measurements say that a bound is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The whole interval is within the bound.
    Kept,
    /// The whole interval is beyond the bound.
    Broken,
    /// The interval contains the bound, or there are too few rounds for an interval.
    Undecided,
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Kept => "kept",
            Self::Broken => "broken",
            Self::Undecided => "undecided",
        })
    }
}
