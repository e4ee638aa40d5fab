//! What each subcommand measures, and what its report says.
//!
//! `compare`, `peers`, `attach` and `self-test` are an
//! [`Experiment`](crate::experiment::Experiment) each, whose report is a
//! [`Comparison`](comparison::Comparison); `paper` is a series of them.

pub mod baseline;
pub mod card;
pub mod comparison;
pub mod paper;
pub mod self_test;
