//! Progress bars.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use loadgen::Progress;

/// Rates in the sparkline, one per tenth of a second.
const SPARKLINE_LENGTH: usize = 30;

/// The progress of a run with rate, latencies and a sparkline. Hidden unless stderr is a terminal.
pub struct RunProgressBar {
    bar: ProgressBar,
    rates: VecDeque<f64>,
}

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

impl RunProgressBar {
    pub fn new(quiet: bool, total: Duration) -> Self {
        let total = u64::try_from(total.as_millis()).unwrap_or(u64::MAX);
        Self { bar: new_bar(quiet, total, "{bar:20} {msg}"), rates: VecDeque::new() }
    }

    pub fn show(&mut self, name: &str, progress: Progress) {
        self.bar.set_position(u64::try_from(progress.elapsed.as_millis()).unwrap_or(u64::MAX));
        self.rates.push_back(progress.qps);
        if self.rates.len() > SPARKLINE_LENGTH {
            self.rates.pop_front();
        }
        self.bar.set_message(format!(
            "{name} {} {:.0} requests/s, p50 {:.0} µs, p99 {:.0} µs, errors {}",
            sparkline(&self.rates),
            progress.qps,
            progress.p50_us,
            progress.p99_us,
            progress.errors
        ));
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn sparkline(values: &VecDeque<f64>) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let largest = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    values.iter().map(|value| BARS[((value / largest * 7.0).round() as usize).min(7)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sparkline_shows_a_stall() {
        assert_eq!(sparkline(&[100.0, 100.0, 0.0, 50.0].into()), "██▁▅");
        assert_eq!(sparkline(&[0.0].into()), "▁");
    }
}
