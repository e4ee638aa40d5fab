//! Plots: SVG files and charts for the terminal.

pub mod rate_point;
pub mod svg;
pub mod terminal;
