//! Reports: a document of sentences, tables and plots, as text, as a page, as Markdown.
//!
//! - [`Document`]: what every report consists of, and the files that it is written to.
//! - `tables`: cells and tables of rows, and the sections that every experiment has.
//! - `plots`: lines with error bars.

mod document;
pub(crate) mod plots;
mod render;
pub(crate) mod tables;

pub use document::{Document, Plot, Section, Table};
