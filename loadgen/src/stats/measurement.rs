//! What one generator measured in a run.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::stats::slicing::Slicing;
use crate::stats::timeline::Timeline;

/// What one generator measured in a run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Measurement {
    pub(crate) workers: usize,
    pub(crate) timeline: Timeline,
    pub(crate) slicing: Slicing,
    /// Complete intervals. Less than the slicing's if the run ended early.
    pub(crate) intervals: u32,
    /// Whether the run was stopped early.
    pub(crate) stopped: bool,
    /// The duration of a recording that ended before the measurement.
    pub(crate) recording_length: Option<Duration>,
}
