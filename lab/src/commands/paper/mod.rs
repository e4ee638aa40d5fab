//! The tables and figures of the paper that this project follows, on this machine.

mod parts;
mod programs;
mod published;
mod report;

pub use parts::{PaperConfig, PaperPlan, Part, PartResult, Parts};
pub use programs::Programs;
pub use report::PaperReport;
