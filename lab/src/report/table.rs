//! Tables of plain text.

use comfy_table::{CellAlignment, Table, presets};
use loadgen::medians::Interval;

/// A table without borders, its columns right-aligned except those in `left_aligned`.
pub(super) fn plain_table(
    header: impl IntoIterator<Item = &'static str>,
    rows: impl IntoIterator<Item = Vec<String>>,
    left_aligned: &[usize],
) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header).add_rows(rows);
    for (index, column) in table.column_iter_mut().enumerate() {
        if !left_aligned.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// A median with its interval, for example `1.80 [1.60, 2.00]`.
pub(super) fn interval_text(interval: &Interval, digits: usize) -> String {
    let Interval { median, low, high, .. } = interval;
    format!("{median:.digits$} [{low:.digits$}, {high:.digits$}]")
}
