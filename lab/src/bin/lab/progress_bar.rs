//! The progress bar on standard error.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of this many steps; hidden unless standard error is a terminal.
pub fn progress_bar(steps: usize) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(steps as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} ({eta} left)") {
        bar.set_style(style);
    }
    bar
}

/// Begins a step.
pub fn begin_step(bar: &ProgressBar, message: &str) {
    bar.inc(1);
    bar.set_message(message.to_owned());
}
