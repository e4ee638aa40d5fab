//! What every report consists of. The same document is printed as text, and written as a page with plots and as Markdown.

use std::fmt::Write;

use serde::Serialize;

use super::table::plain_table;

/// A report.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Document {
    /// Its title.
    pub title: String,
    /// What was found, in sentences.
    pub findings: Vec<String>,
    /// The machine, and what ran on it, a sentence each.
    pub conditions: Vec<String>,
    /// The parts.
    pub sections: Vec<Section>,
}

/// A part of a report.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Section {
    /// What links name it by.
    pub id: String,
    /// For example `Table 5`.
    pub name: String,
    /// What it shows. Empty if the name says it.
    pub caption: String,
    /// Where it is from.
    pub place: String,
    /// Why it was not measured, if it was not.
    pub missing: Option<String>,
    /// One sentence for the overview.
    pub glance: String,
    /// Quotations.
    pub statements: Vec<String>,
    /// What differs from what it is compared with.
    pub differs: Vec<String>,
    /// Its tables.
    pub tables: Vec<Table>,
    /// Its plots.
    pub plots: Vec<Plot>,
    /// What to know before relying on it.
    pub notes: Vec<String>,
    /// Whether it is too long for a terminal.
    #[serde(skip)]
    pub only_in_page: bool,
}

/// A table of text.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Table {
    /// The line above it.
    pub title: String,
    /// The columns.
    pub header: Vec<String>,
    /// Cells by row.
    pub rows: Vec<Vec<String>>,
    /// Columns from the left that are aligned to the left.
    pub names: usize,
}

/// A plot.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Plot {
    /// The name of its file, without `.svg`.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// The image, which goes into files of its own.
    #[serde(skip)]
    pub svg: String,
}

impl Plot {
    /// A plot that was drawn.
    pub(super) fn new(name: &str, title: &str, svg: String) -> Self {
        Self { name: name.to_owned(), title: title.to_owned(), svg }
    }
}

impl Table {
    /// A table whose first column has names.
    pub fn new(title: impl Into<String>, header: &[&str], rows: Vec<Vec<String>>) -> Self {
        let header = header.iter().map(|&it| it.to_owned()).collect();
        Self { title: title.into(), header, rows, names: 1 }
    }

    fn text(&self) -> String {
        let names: Vec<usize> = (0..self.names).collect();
        let title = if self.title.is_empty() { String::new() } else { format!("{}:\n", self.title) };
        format!("{title}{}\n", plain_table(&self.header, self.rows.iter().cloned(), &names))
    }
}

impl Section {
    /// A section of this name.
    pub fn new(id: &str, name: &str) -> Self {
        Self { id: id.to_owned(), name: name.to_owned(), ..Self::default() }
    }

    /// Its name and what it shows.
    pub(super) fn heading(&self) -> String {
        if self.caption.is_empty() { self.name.clone() } else { format!("{}: {}", self.name, self.caption) }
    }

    /// Adds a plot, or why it could not be drawn.
    pub(super) fn add_plot(&mut self, plot: Result<Plot, String>) {
        match plot {
            Ok(plot) => self.plots.push(plot),
            Err(error) => self.notes.push(error),
        }
    }
}

impl Document {
    /// The document as text, for a terminal: without what is too long for it.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for condition in &self.conditions {
            let _ = writeln!(text, "{condition}");
        }
        for section in self.sections.iter().filter(|section| !section.only_in_page) {
            let _ = writeln!(text, "\n{}", section.heading());
            if let Some(reason) = &section.missing {
                let _ = writeln!(text, "not measured: {reason}");
            }
            section.tables.iter().for_each(|table| text.push_str(&table.text()));
            for note in &section.notes {
                let _ = writeln!(text, "note: {note}");
            }
        }
        if !self.findings.is_empty() {
            text.push('\n');
        }
        for finding in &self.findings {
            let _ = writeln!(text, "{finding}");
        }
        text
    }
}
