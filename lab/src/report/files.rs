//! The files of a report: a page, Markdown, plots and JSON.

use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::document::Document;
use super::{html, markdown, svg};
use crate::Error;

/// Reads what a report has saved: its folder, or its `results.json`.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> Result<T, Error> {
    let file = if path.is_dir() { path.join("results.json") } else { path.to_owned() };
    let error = |reason: String| Error::SavedReport { path: file.clone(), reason };
    let text = fs::read_to_string(&file).map_err(|reason| error(reason.to_string()))?;
    let not_a_report = |reason| error(format!("not a report ({reason}); --output FOLDER writes one"));
    serde_json::from_str(&text).map_err(not_a_report)
}

impl Document {
    /// The document for a terminal: Markdown, without plots and what is too long for it.
    pub fn text(&self) -> String {
        markdown::markdown(self, true)
    }

    /// The document as Markdown, with its plots as files beside it.
    pub fn markdown(&self) -> String {
        markdown::markdown(self, false)
    }

    /// The document as one page, with its plots in it.
    pub fn html(&self) -> String {
        html::html(self)
    }

    /// Writes `report.md`, `report.html` and the plots into a folder, and `results.json` with
    /// `json`.
    pub fn write(&self, folder: &Path, json: &impl Serialize) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        fs::write(folder.join("report.md"), self.markdown())?;
        fs::write(folder.join("report.html"), self.html())?;
        // One line: indented, a run of five minutes has several times as many bytes.
        fs::write(folder.join("results.json"), serde_json::to_vec(json)?)?;
        for plot in self.sections.iter().flat_map(|section| &section.plots) {
            fs::write(folder.join(format!("{}.svg", plot.name)), svg::standalone(&plot.svg))?;
        }
        Ok(())
    }
}
