//! The meta commands: `mg`, `ms`, `md`, `ma`, `me`.

mod execute;
pub mod parse;
