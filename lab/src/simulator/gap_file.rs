//! Recorded sequences: text with one gap per line.

use super::sequence::{Sequence, SequenceClass};

/// Fewer gaps have no percentiles.
const LEAST: usize = 1_000;
/// More take too long.
const MOST: usize = 10_000_000;
/// Two hours: a longer gap is a mistake in the unit.
const LONGEST: u64 = 7_200_000_000_000;
/// The share of a file that is not measured, because the rules adapt first, in percent.
const ADAPTING_PERCENT: u64 = 25;

/// Why a file of gaps can't be simulated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GapFileError {
    /// A line is not a number.
    #[error(
        "{name}, line {line}: {text:?} is not a gap; write the time between two arrivals in whole nanoseconds, one per line, or a comment that begins with #"
    )]
    NotAGap {
        /// The file's name.
        name: String,
        /// The number of the line, from 1.
        line: usize,
        /// The line's text, without its end.
        text: String,
    },
    /// A gap is longer than two hours.
    #[error("{name}, line {line}: a gap of {gap} ns is longer than two hours; gaps are in nanoseconds")]
    TooLong {
        /// The file's name.
        name: String,
        /// The number of the line, from 1.
        line: usize,
        /// The gap, ns.
        gap: u64,
    },
    /// Too few or too many gaps.
    #[error("{name} has {count} gaps; a simulation needs 1,000 to 10,000,000")]
    Count {
        /// The file's name.
        name: String,
        /// How many gaps it has.
        count: usize,
    },
    /// All arrivals are at the same time.
    #[error("{name} has only gaps of 0 ns; gaps are the times between two arrivals")]
    NoTime {
        /// The file's name.
        name: String,
    },
}

/// Parses a sequence: one gap per line, in whole nanoseconds. Empty lines and lines that begin with `#` are skipped.
///
/// # Errors
/// If a line is not a gap of at most two hours, or there are fewer than 1,000 gaps, or more than 10,000,000.
pub fn parse(name: &str, text: &str) -> Result<Sequence, GapFileError> {
    let name = || name.to_owned();
    let mut gaps = Vec::new();
    for (index, text) in text.lines().enumerate() {
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let line = index + 1;
        let gap: u64 =
            text.parse().map_err(|_| GapFileError::NotAGap { name: name(), line, text: text.to_owned() })?;
        if gap > LONGEST {
            return Err(GapFileError::TooLong { name: name(), line, gap });
        }
        gaps.push(gap);
    }
    if !(LEAST..=MOST).contains(&gaps.len()) {
        return Err(GapFileError::Count { name: name(), count: gaps.len() });
    }
    let sequence = Sequence::new(name(), SequenceClass::Recorded, gaps);
    match sequence.arrivals.last() {
        Some(0) | None => Err(GapFileError::NoTime { name: name() }),
        Some(&last) => Ok(sequence.measured_from(last / 100 * ADAPTING_PERCENT)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_added_up_and_comments_skipped() {
        let text = format!("# recorded\n\n{}", " 10 \n".repeat(1_000));
        let sequence = parse("a", &text).unwrap();
        assert_eq!((sequence.arrivals[0], sequence.arrivals[999]), (10, 10_000));
        assert_eq!(sequence.measured_from, 2_500);
    }

    #[test]
    fn an_error_names_the_file_the_line_and_what_to_write() {
        for (text, expected) in [
            ("1\n2.5\n", "f, line 2: \"2.5\" is not a gap; write the time between two arrivals"),
            ("-1\n", "f, line 1: \"-1\" is not a gap"),
            ("7200000000001\n", "longer than two hours"),
            ("1\n2\n", "f has 2 gaps; a simulation needs 1,000"),
            ("", "f has 0 gaps"),
        ] {
            let error = parse("f", text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
        assert!(parse("f", &"0\n".repeat(1_000)).unwrap_err().to_string().contains("only gaps of 0 ns"));
    }
}
