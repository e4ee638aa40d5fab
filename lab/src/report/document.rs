//! What every report consists of.

use serde::Serialize;

#[derive(Debug, Clone, Default)]
pub struct Document {
    pub title: String,
    /// What was found, in sentences.
    pub findings: Vec<String>,
    /// The machine, and what ran on it, a sentence each.
    pub conditions: Vec<String>,
    pub sections: Vec<Section>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Section {
    /// What links name it by.
    pub id: String,
    pub name: String,
    /// What it shows. Empty if the name says it.
    pub caption: String,
    /// Why it was not measured, if it was not.
    pub missing: Option<String>,
    /// One sentence for the overview.
    pub glance: String,
    /// What others say of it, word for word.
    pub statements: Vec<String>,
    pub tables: Vec<Table>,
    pub plots: Vec<Plot>,
    /// What to know before relying on it.
    pub notes: Vec<String>,
    /// Whether it is too long for a terminal.
    #[serde(skip)]
    pub only_in_page: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Table {
    pub title: String,
    pub header: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// Columns from the left that are aligned to the left.
    pub names: usize,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plot {
    pub title: String,
    /// The image, which the page has.
    #[serde(skip)]
    pub svg: String,
}

impl Table {
    /// A table whose first column has names.
    pub fn new(title: impl Into<String>, header: &[&str], rows: Vec<Vec<String>>) -> Self {
        let header = header.iter().map(|&it| it.to_owned()).collect();
        Self { title: title.into(), header, rows, names: 1 }
    }
}

impl Section {
    pub fn new(id: &str, name: &str) -> Self {
        Self { id: id.to_owned(), name: name.to_owned(), ..Self::default() }
    }

    /// Adds a plot, or why it could not be drawn.
    pub(crate) fn add_plot(&mut self, title: &str, svg: Result<String, String>) {
        match svg {
            Ok(svg) => self.plots.push(Plot { title: title.to_owned(), svg }),
            Err(error) => self.notes.push(error),
        }
    }
}
