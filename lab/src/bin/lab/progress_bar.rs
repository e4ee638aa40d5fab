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

/// Runs what calls `progress` with each of its steps.
pub fn with_bar<T>(steps: usize, run: impl FnOnce(&mut dyn FnMut(&str)) -> T) -> T {
    let bar = progress_bar(steps);
    let result = run(&mut |message| {
        bar.inc(1);
        bar.set_message(message.to_owned());
    });
    bar.finish_and_clear();
    result
}
