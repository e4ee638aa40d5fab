//! The tables and figures of the paper that this project follows, on this machine.
//!
//! - [`PaperConfig`]: how much is measured.
//! - [`Part`]: what is measured at a time; [`PaperPlan`]: the experiments of all parts.
//! - `published`: the paper's tables and figures, with their numbers.
//! - [`PaperReport`]: both beside each other.

mod parts;
mod programs;
mod published;
mod report;

pub use parts::{PaperConfig, PaperPlan, Part, PartResult, Parts};
pub use programs::Programs;
pub use report::PaperReport;
