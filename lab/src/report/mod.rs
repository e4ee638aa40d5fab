//! Reports: a document of sentences, tables and plots, as Markdown for a terminal and as a page.
//!
//! - [`Document`]: what every report consists of.
//! - `tables`: cells and tables of rows, and the sections that every experiment has.
//! - `plots`: lines with error bars.

mod document;
pub(crate) mod plots;
mod render;
pub(crate) mod tables;

pub use document::{Document, Plot, Section, Table};
