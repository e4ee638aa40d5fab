//! Statistics of measurements.

pub(crate) mod batch_means;
pub(crate) mod collector;
pub(crate) mod compact_histogram;
pub mod medians;
pub(crate) mod metrics;
pub(crate) mod progress;
pub(crate) mod recorder;
pub(crate) mod slicing;
pub(crate) mod timeline;
pub(crate) mod warm_up;
