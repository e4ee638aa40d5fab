//! Carries out a plan: journals the old values, writes and verifies each knob, restores on drop.

mod apply_plan;
mod guard;
mod outcome;
mod step_down;
mod undo;
mod write_verified;

pub use apply_plan::apply;
pub use guard::Guard;
pub use outcome::{Applied, Outcome};
