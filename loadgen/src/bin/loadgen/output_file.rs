//! Output files of a run.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

/// Opens an output file before the run, so that a wrong path is reported at once. The previous contents remain
/// until the run has succeeded.
pub fn open(path: Option<&Path>) -> Result<Option<File>, String> {
    let Some(path) = path else { return Ok(None) };
    let opened = OpenOptions::new().write(true).create(true).truncate(false).open(path);
    opened.map(Some).map_err(|error| format!("{}: {error}", path.display()))
}

/// Truncates the file if it is a regular one. Pipes and devices can't be truncated.
pub fn truncate(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}
