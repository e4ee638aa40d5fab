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

/// A median with its interval, for example `1.80 [1.60, 2.00]`; with fewer values than 95 % confidence needs, the
/// median and how many values it is of.
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

/// The throughput of the slowest of some turns over their median, for example `0.93 of 20 turns`.
pub(super) fn slowest_turn_text(slowest: f64, turns: usize) -> String {
    match turns {
        0 => "not measured".to_owned(),
        1 => "1 turn".to_owned(),
        _ => format!("{slowest:.2} of {turns} turns"),
    }
}

#[cfg(test)]
mod tests {
    use loadgen::medians::median_interval;

    use super::*;

    #[test]
    fn one_turn_is_no_slowest_one() {
        assert_eq!(
            [0, 1, 20].map(|turns| slowest_turn_text(0.934, turns)),
            ["not measured", "1 turn", "0.93 of 20 turns"]
        );
    }

    #[test]
    fn fewer_than_six_rounds_give_no_interval() {
        assert_eq!(interval_text(&median_interval(&[1.0, 2.0, 3.0]), 1), "2.0 (no interval, 3 rounds)");
        assert_eq!(interval_text(&median_interval(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), 1), "3.5 [1.0, 6.0]");
    }
}
