//! The slowest turns of the closed loop.

use loadgen::interleaved_rounds::DistanceClass;

use super::super::table::{plain_table, slowest_turn_text};
use crate::experiments::fleet_comparison::{FleetComparisonResult, FleetRow};
use crate::fleet::FleetPacing;

/// A table of the slowest turns of the closed loop in a class of distance. Empty if the closed loop was not measured in it.
pub(super) fn slowest_turns(result: &FleetComparisonResult, class: DistanceClass) -> String {
    let closed = result.loads.iter().filter(|load| matches!(load.pacing, Some(FleetPacing::Closed { .. })));
    let classes = closed.flat_map(|load| &load.classes).filter(|it| it.class == class);
    let rows: Vec<&FleetRow> = classes.flat_map(|class| &class.rows).collect();
    if rows.is_empty() {
        return String::new();
    }
    let header = ["closed loop", "requests/s", "slowest turn, over the median"];
    let cells = |row: &&FleetRow| {
        vec![
            row.name.clone(),
            format!("{:.0}", row.qps.median),
            slowest_turn_text(row.slowest_turn, row.turns),
        ]
    };
    format!("\n{}\n", plain_table(header, rows.iter().map(cells), &[0]))
}

#[cfg(test)]
mod tests {
    use super::super::super::sample_results::{equal, load, result, row};
    use super::*;

    #[test]
    fn the_slowest_turn_of_each_server_is_shown_if_the_closed_loop_was_measured() {
        let class = DistanceClass::Far;
        let mut result = result(class, equal());
        assert_eq!(slowest_turns(&result, class), "");
        let mut closed = load(None, class, vec![row("vanilla, epoll")]);
        closed.pacing = Some(FleetPacing::Closed { think_us: 0.0 });
        result.loads.push(closed);
        assert_eq!(slowest_turns(&result, DistanceClass::Near), "");
        let text = slowest_turns(&result, class);
        let line = text.lines().last().unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(line, "vanilla, epoll 1000 0.90 of 8 turns");
    }
}
