//! Writes the latency of each request to a file.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::Error;
use crate::stats::recorder::Sample;

/// A file with one line per request: seconds since the start of the measurement, and latency in microseconds.
pub(super) struct SampleFile {
    path: PathBuf,
    file: BufWriter<File>,
    failed: Option<io::Error>,
}

impl SampleFile {
    pub(super) fn create(path: &Path) -> Result<Self, Error> {
        let file = File::create(path).map_err(|error| Error::SampleFile(path.to_owned(), error))?;
        Ok(Self { path: path.to_owned(), file: BufWriter::new(file), failed: None })
    }

    /// Writes the samples before `end`. An error is reported by [`finish`](Self::finish).
    pub(super) fn write(&mut self, samples: Vec<Sample>, end: Duration) {
        for Sample { time, latency } in samples.iter().filter(|sample| sample.time < end) {
            if self.failed.is_some() {
                return;
            }
            let micros = latency.as_nanos() as f64 / 1e3;
            self.failed = writeln!(self.file, "{:.6} {micros:.3}", time.as_secs_f64()).err();
        }
    }

    pub(super) fn finish(mut self) -> Result<(), Error> {
        let written = self.failed.take().map_or_else(|| self.file.flush(), Err);
        written.map_err(|error| Error::SampleFile(self.path, error))
    }
}
