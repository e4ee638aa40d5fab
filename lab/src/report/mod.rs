//! Reports: a document of sentences, tables and plots, as Markdown for a terminal and as a page.

mod document;
pub(crate) mod plots;
mod render;
pub(crate) mod tables;

pub use document::{Document, Plot, Section, Table};
pub use tables::interval_text;
