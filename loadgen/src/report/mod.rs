//! What a run measured, as figures, text and files.

mod merge;
pub(crate) mod run_report;
pub(crate) mod summary;
mod text;
pub(crate) mod validity;
