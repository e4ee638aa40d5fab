//! What a run measured, as figures, text and files.

pub(crate) mod agent_report;
mod export;
mod merge;
pub(crate) mod run_report;
pub(crate) mod series;
pub(crate) mod summary;
mod text;
pub(crate) mod validity;
