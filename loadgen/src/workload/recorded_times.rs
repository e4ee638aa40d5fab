//! Files of recorded request times: one time per line, in seconds.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

use crate::error::Error;

/// The longest recording, in seconds: thirty years.
pub(crate) const LONGEST: f64 = 1e9;

/// The duration of a file of recorded times at its original speed.
///
/// # Errors
/// Returns [`Error::Config`] if the file can't be read, a line is not a time, or times decrease.
pub fn recorded_length(path: &Path) -> Result<Duration, Error> {
    let mut last = Duration::ZERO;
    for_each_time(path, |_, time| last = time)?;
    Ok(last)
}

/// Reads the times of one worker: every `workers`-th one, since the first time of the file and at `speed`
/// times the recorded speed.
pub(crate) fn read_share(
    path: &Path,
    speed: f64,
    worker: usize,
    workers: usize,
) -> Result<Vec<Duration>, Error> {
    let workers = workers.max(1);
    let mut times = Vec::new();
    for_each_time(path, |index, time| {
        if index % workers == worker {
            times.push(time.div_f64(speed));
        }
    })?;
    Ok(times)
}

fn for_each_time(path: &Path, mut visit: impl FnMut(usize, Duration)) -> Result<(), Error> {
    let invalid = |what: String| Error::Config(format!("{}{what}", path.display()));
    let file = File::open(path).map_err(|error| invalid(format!(": {error}")))?;
    let (mut first, mut last, mut count) = (None, f64::NEG_INFINITY, 0);
    for (index, line) in BufReader::new(file).lines().enumerate() {
        let line = line.map_err(|error| invalid(format!(": {error}")))?;
        if line.trim().is_empty() {
            continue;
        }
        let time: Option<f64> = line.trim().parse().ok();
        let begin = *first.get_or_insert(time.unwrap_or(0.0));
        // Rejects decreasing times, times too far from the first, and NaN, which fails each comparison.
        let Some(time) = time.filter(|time| (begin..=begin + LONGEST).contains(time) && *time >= last) else {
            let what = "is not a time in seconds at or after that of the previous line";
            return Err(invalid(format!(", line {}: {:?} {what}", index + 1, line.trim())));
        };
        last = time;
        visit(count, Duration::from_secs_f64(time - begin));
        count += 1;
    }
    if count == 0 { Err(invalid(": the file contains no times".to_owned())) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &str, worker: usize, workers: usize) -> Result<Vec<f64>, Error> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), lines).unwrap();
        let times = read_share(file.path(), 2.0, worker, workers)?;
        Ok(times.iter().map(Duration::as_secs_f64).collect())
    }

    #[test]
    fn recorded_times_start_at_the_first_one_and_are_divided_among_workers() {
        assert_eq!(read("10.5\n11.5\n\n11.5\n14.5\n", 0, 1).unwrap(), [0.0, 0.5, 0.5, 2.0]);
        assert_eq!(read("10.5\n11.5\n11.5\n14.5\n", 1, 2).unwrap(), [0.5, 2.0]);
    }

    #[test]
    fn an_invalid_time_is_rejected_with_its_line_number() {
        for (lines, what) in
            [("1\nx\n", "line 2"), ("2\n1\n", "line 2"), ("nan\n", "line 1"), ("", "no times")]
        {
            let error = read(lines, 0, 1).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
