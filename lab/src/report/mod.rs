//! Reports: the same document as text, as a page with plots, as Markdown, and the figures as JSON.

mod check;
mod comparison;
mod document;
mod figures;
mod files;
mod html;
mod instructions;
mod markdown;
mod model;
mod paper;
mod self_test;
mod steps;
mod svg;
mod table;
mod waiting;
mod wake_cost;

pub use check::CheckReport;
pub use comparison::Comparison;
pub use document::{Document, Plot, Section, Table};
pub use instructions::{Counted, InstructionReport};
pub use model::ModelReport;
pub use paper::PaperReport;
pub use policies::host::Machine;
pub use self_test::{SelfTestVerdict, self_test_verdict};
pub use steps::steps_section;
pub use waiting::WaitingReport;
pub use wake_cost::WakeCost;
