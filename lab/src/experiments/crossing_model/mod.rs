//! What avoiding the crossings between user space and kernel can save on this machine.
//!
//! The model is the one of Magoutis, Seltzer and Gabber, "The Case Against User-Level Networking" (2004): a request costs
//! the application a and the kernel's path for a record of b bytes o(b), of which crossings cost δ. δ over all is what a
//! user-level network stack that is otherwise the same saves.

mod config;
mod crossing_cost;
mod echo_turn;
mod kernel_path;
mod line;
mod measurement;
mod model;
mod potential;
#[cfg(test)]
pub(crate) mod sample;

pub use config::ModelConfig;
pub use crossing_cost::{BATCH, CrossingCost};
pub use kernel_path::{REQUEST, SIZES};
pub use line::{Line, Regression};
pub use measurement::{ModelMeasurements, measure, steps};
pub use model::{CrossingModel, KernelPath, PathRow, ServerCost};
pub use potential::{Outcome, Prediction, potential};
