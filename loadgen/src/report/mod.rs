//! What a run measured, as figures, text and files.

pub(crate) mod agent_report;
mod export;
mod merge;
pub(crate) mod percentiles;
pub(crate) mod run_report;
pub(crate) mod series;
mod text;
pub(crate) mod validity;
