//! Statistics of measurements.

pub mod medians;
pub mod rounds;
