//! What the attaching processes of a comparison cost, and when they gave polling up.

use crate::experiments::CoreAssignment;
use crate::experiments::fleet_comparison::{FleetComparisonConfig, FleetComparisonResult};

/// A sentence for each server on what attaching cost, and one for each reason to give polling up.
pub(super) fn attach_notes(
    config: &FleetComparisonConfig,
    cores: CoreAssignment,
    result: &FleetComparisonResult,
) -> Vec<String> {
    let mut notes = Vec::new();
    for (index, contender) in config.contenders.iter().enumerate().filter(|(_, it)| it.is_attached()) {
        let name = contender.name();
        let turns = || {
            let classes = result.loads.iter().flat_map(|load| &load.measured.finished.classes);
            let rounds = classes.flat_map(|class| &class.rounds);
            rounds.filter_map(|round| round.value(index)?.attach.as_ref())
        };
        let most = turns().map(|turn| turn.cores).fold(0.0, f64::max);
        if turns().next().is_some() {
            notes.push(format!(
                "{name}: attaching took at most {:.1} % of core {}, which is not part of CPU µs/req",
                most * 100.0,
                cores.packing
            ));
        }
        let mut reasons: Vec<&String> = turns().flat_map(|turn| &turn.stepped_back).collect();
        let count = reasons.len();
        reasons.sort();
        reasons.dedup();
        notes.extend(reasons.into_iter().map(|reason| {
            format!("{name}: gave polling up for some seconds ({count} times in all): {reason}")
        }));
    }
    notes
}
