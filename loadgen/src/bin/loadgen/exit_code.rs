//! Exit codes.

use loadgen::Report;

/// The command line is wrong.
pub const USAGE: u8 = 2;
/// The figures are invalid.
pub const INVALID: u8 = 3;
/// Requests failed.
pub const FAILURES: u8 = 4;
/// No rate reaches the goal of a search.
pub const UNREACHED: u8 = 5;

/// The exit code for a report.
pub fn of_report(report: &Report) -> u8 {
    if report.invalid.is_some() {
        INVALID
    } else if report.has_failures() {
        FAILURES
    } else {
        0
    }
}
