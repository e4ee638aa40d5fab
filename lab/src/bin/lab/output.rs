//! Where reports go, standard output and a folder, and the progress bar on standard error.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use lab::Error;
use lab::report::Document;
use serde::Serialize;

use crate::flags::Format;

pub struct Output {
    format: Format,
    folder: PathBuf,
}

impl Output {
    /// Creates the folder. Before the experiment, so that a wrong path doesn't cost a run.
    pub fn create(format: Format, folder: &Path) -> Result<Self, Error> {
        fs::create_dir_all(folder).map_err(|error| format!("--output {}: {error}", folder.display()))?;
        Ok(Self { format, folder: folder.to_owned() })
    }

    pub fn page(&self) -> String {
        self.folder.join("report.html").display().to_string()
    }

    /// Writes the files, and prints the text or the JSON.
    pub fn write(&self, document: &Document, json: &impl Serialize, text: &str) -> Result<(), Error> {
        let written = document.write(&self.folder, json);
        written.map_err(|error| format!("--output {}: {error}", self.folder.display()))?;
        print(self.format, json, text)
    }

    /// The same with the whole document as text.
    pub fn write_all(&self, document: &Document, json: &impl Serialize) -> Result<(), Error> {
        let text = format!("{}\nWith plots: {}\n", document.text(), self.page());
        self.write(document, json, &text)
    }
}

fn print(format: Format, json: &impl Serialize, text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    match format {
        Format::Table => write!(out, "{text}")?,
        Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(json)?)?,
    }
    Ok(())
}

/// Runs what calls `progress` with each of its steps. The bar is hidden unless standard error is a
/// terminal.
pub fn with_bar<T>(steps: usize, run: impl FnOnce(&mut dyn FnMut(&str)) -> T) -> T {
    let bar = if io::stderr().is_terminal() { ProgressBar::new(steps as u64) } else { ProgressBar::hidden() };
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} ({eta} left)") {
        bar.set_style(style);
    }
    let result = run(&mut |message| {
        bar.inc(1);
        bar.set_message(message.to_owned());
    });
    bar.finish_and_clear();
    result
}
