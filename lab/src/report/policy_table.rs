//! Rows of contestants as a table, and the verdict in one sentence.

use loadgen::medians::Interval;
use policies::Policy;

use super::table::{interval_text, plain_table, slowest_turn_text};
use crate::experiments::policy_comparison::PolicyRow;

/// Rows as a table.
pub(super) fn policy_table(rows: &[PolicyRow]) -> String {
    let header = [
        "asked",
        "driver",
        "ran",
        "QPS",
        "slowest turn",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "CPU µs/req",
        "pkts/wake",
        "busy-poll share",
        "ratio to vanilla",
        "CPU ratio",
    ];
    let cells = |row: &PolicyRow| {
        vec![
            row.asked.to_string(),
            row.driver.to_string(),
            row.ran.clone(),
            format!("{:.0}", row.qps),
            slowest_turn_text(row.slowest_turn, row.turns),
            format!("{:.0}", row.p50_us),
            format!("{:.0}", row.p99_us),
            format!("{:.0}", row.p999_us),
            format!("{:.2}", row.cpu_us_per_request),
            format!("{:.1}", row.packets_per_wake),
            format!("{:.3}", row.busy_poll_share),
            interval_text(&row.ratio_to_vanilla, 2),
            interval_text(&row.cpu_ratio_to_vanilla, 2),
        ]
    };
    format!("{}\n", plain_table(header, rows.iter().map(cells), &[0, 1, 2]))
}

/// One sentence: would kernel polling help here, and by how much?
pub(super) fn verdict(rows: &[PolicyRow]) -> String {
    let polling = rows.iter().rfind(|row| row.asked == Policy::KernelPolling);
    let (Some(vanilla), Some(polling)) = (rows.first(), polling) else {
        return "Nothing was measured.".to_owned();
    };
    if polling.ran != "kernel-polling" {
        return format!(
            "Kernel polling could not run here ({} ran instead), so these results say nothing about it.",
            polling.ran
        );
    }
    let ratio = &polling.ratio_to_vanilla;
    let cpu = polling.cpu_us_per_request / vanilla.cpu_us_per_request;
    let judgement = judgement(ratio, "");
    format!(
        "{judgement}: {:.2} times vanilla's throughput ({:.2} to {:.2}, {:.0} % confidence) at {:.0} % of its CPU per request, p99 {:.0} µs against {:.0} µs.",
        ratio.median,
        ratio.low,
        ratio.high,
        ratio.confidence * 100.0,
        cpu * 100.0,
        polling.p99_us,
        vanilla.p99_us
    )
}

/// Whether a ratio to vanilla says that kernel polling helps; `to_what` says to what it makes no difference, if it makes
/// none.
pub(super) fn judgement(ratio: &Interval, to_what: &str) -> String {
    if ratio.low > 1.0 {
        "Kernel polling helps".to_owned()
    } else if ratio.high < 1.0 {
        "Kernel polling hurts".to_owned()
    } else {
        format!("Kernel polling makes no difference{to_what} that these rounds can show")
    }
}
