//! Progress bars, hidden unless stderr is a terminal.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use loadgen::Progress;

fn new_bar(quiet: bool, total: u64, template: &str) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(total);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

pub fn for_records(quiet: bool, records: u64) -> ProgressBar {
    new_bar(quiet, records, "storing {bar:30} {human_pos}/{human_len} records, {per_sec}, {eta} left")
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

pub fn for_run(quiet: bool, total: Duration) -> ProgressBar {
    new_bar(quiet, millis(total), "{bar:20} {msg}")
}

pub fn show(bar: &ProgressBar, name: &str, progress: Progress) {
    let Progress { elapsed, qps, p50_us, p99_us, errors, .. } = progress;
    bar.set_position(millis(elapsed));
    bar.set_message(format!(
        "{name} {qps:.0} requests/s, p50 {p50_us:.0} µs, p99 {p99_us:.0} µs, errors {errors}"
    ));
}
