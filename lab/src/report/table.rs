//! Tables of plain text.

use comfy_table::{CellAlignment, Table, TableStyle, presets};
use loadgen::medians::Interval;

/// A table without borders, its columns right-aligned except those in `left_aligned`.
pub(super) fn plain_table(
    header: &[String],
    rows: impl IntoIterator<Item = Vec<String>>,
    left_aligned: &[usize],
) -> String {
    styled_table(presets::NOTHING, header, rows, left_aligned)
}

/// The same with lines.
pub(super) fn styled_table(
    style: TableStyle,
    header: &[String],
    rows: impl IntoIterator<Item = Vec<String>>,
    left_aligned: &[usize],
) -> String {
    let mut table = Table::new();
    table.load_style(style).set_header(header).add_rows(rows);
    for (index, column) in table.column_iter_mut().enumerate() {
        if !left_aligned.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// A median with its interval, for example `1.80 [1.60, 2.00]`; with fewer values than 95 %
/// confidence needs, the median and how many values it is of.
pub(super) fn interval_text(interval: &Interval, digits: usize) -> String {
    let Interval { median, low, high, count, .. } = interval;
    if *count == 0 {
        return "not measured".to_owned();
    }
    if !interval.reaches_target() {
        let rounds = if *count == 1 { "round" } else { "rounds" };
        return format!("{median:.digits$} (no interval, {count} {rounds})");
    }
    format!("{median:.digits$} [{low:.digits$}, {high:.digits$}]")
}

/// How far the ends of an interval may be apart, as a factor, for a figure to be told.
const WIDEST: f64 = 2.0;

/// Whether an interval says nothing: too few rounds, or ends that are more than a factor of two
/// apart.
pub(super) fn is_undecided(interval: &Interval) -> bool {
    !interval.reaches_target() || interval.low <= 0.0 || interval.high > interval.low * WIDEST
}

/// A ratio, or `can't tell`.
pub(super) fn ratio_text(ratio: &Interval) -> String {
    if ratio.reaches_target() && is_undecided(ratio) {
        return "can't tell".to_owned();
    }
    interval_text(ratio, 2)
}

#[cfg(test)]
mod tests {
    use loadgen::medians::median_interval;

    use super::*;

    #[test]
    fn an_interval_wider_than_a_factor_of_two_is_not_told() {
        let ratio = |low: f64, high: f64| median_interval(&[low, low, 1.0, 1.0, high, high]);
        assert_eq!(ratio_text(&ratio(0.8, 1.5)), "1.00 [0.80, 1.50]");
        assert_eq!(ratio_text(&ratio(0.06, 30.0)), "can't tell");
        assert!(is_undecided(&median_interval(&[1.0; 5])) && !is_undecided(&median_interval(&[1.0; 6])));
    }

    #[test]
    fn fewer_than_six_rounds_give_no_interval() {
        assert_eq!(interval_text(&median_interval(&[1.0, 2.0, 3.0]), 1), "2.0 (no interval, 3 rounds)");
        assert_eq!(interval_text(&median_interval(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), 1), "3.5 [1.0, 6.0]");
    }
}
