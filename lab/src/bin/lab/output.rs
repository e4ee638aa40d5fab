//! Where reports go: standard output, and a folder.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use lab::report::Document;
use serde::Serialize;

use crate::flags::{Format, ReportFlags};

pub type Failure = Box<dyn std::error::Error>;

pub struct Output {
    format: Format,
    folder: PathBuf,
}

impl Output {
    pub fn open(flags: &ReportFlags) -> Result<Self, Failure> {
        Self::create(flags.format, &flags.output)
    }

    /// Creates the folder. Before the experiment, so that a wrong path doesn't cost a run.
    pub fn create(format: Format, folder: &Path) -> Result<Self, Failure> {
        fs::create_dir_all(folder).map_err(|error| format!("--output {}: {error}", folder.display()))?;
        Ok(Self { format, folder: folder.to_owned() })
    }

    pub fn page(&self) -> String {
        self.folder.join("report.html").display().to_string()
    }

    pub fn write(&self, document: &Document, json: &impl Serialize, text: &str) -> Result<(), Failure> {
        self.save(document, json)?;
        print(self.format, json, text)
    }

    pub fn save(&self, document: &Document, json: &impl Serialize) -> Result<(), Failure> {
        let result = document.write(&self.folder, json);
        Ok(result.map_err(|error| format!("--output {}: {error}", self.folder.display()))?)
    }

    /// The same with the whole document as text.
    pub fn write_all(&self, document: &Document, json: &impl Serialize) -> Result<(), Failure> {
        let text = format!("{}\nWith plots: {}\n", document.text(), self.page());
        self.write(document, json, &text)
    }
}

pub fn print(format: Format, json: &impl Serialize, text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match format {
        Format::Table => write!(out, "{text}")?,
        Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(json)?)?,
    }
    Ok(())
}
