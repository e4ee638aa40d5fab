//! The report as text: tables, a chart of bars, and sentences.

use std::fmt::Write;

use loadgen::medians::Interval;
use policies::host::Machine;

use super::super::table::{interval_text, plain_table};
use super::{ModelReport, percent_text};
use crate::experiments::crossing_model::{
    BATCH, CrossingCost, CrossingModel, KernelPath, Outcome, PathRow, REQUEST,
};

/// Characters of the longest bar.
const BAR: f64 = 50.0;

pub(super) fn text(report: &ModelReport) -> String {
    let Machine { cpu, cores, kernel, .. } = &report.machine;
    let ModelReport { model, measured, .. } = report;
    let mut text = format!(
        "{cpu}, {cores} cores, Linux {kernel}; server on core {}, client on core {}\n\n{}\n{}",
        report.cores.server,
        report.cores.client,
        crossings(&measured.crossing),
        mitigations(&measured.vulnerabilities),
    );
    text.push_str(&path_table(&model.path));
    text.push_str(&bars(&model.path));
    text.push_str(&server_table(model));
    text.push_str(&predictions(model));
    for note in &report.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text + "\n" + &report.verdict + "\n"
}

fn crossings(crossing: &CrossingCost) -> String {
    let nanos = |interval: Option<&Interval>| {
        interval.map_or_else(|| "not available".to_owned(), |it| interval_text(it, 0))
    };
    let rows = [
        ("δ: an empty system call (getppid), ns".to_owned(), nanos(Some(&crossing.system_call))),
        ("a NOP in a ring with its own enter, ns".to_owned(), nanos(crossing.nop.as_ref())),
        (format!("a NOP among {BATCH} of one enter, ns"), nanos(crossing.nop_in_batch.as_ref())),
    ];
    plain_table(["cost", "median"], rows.map(|(name, value)| vec![name, value]), &[0, 1]) + "\n"
}

/// Those mitigations that are on.
fn mitigations(vulnerabilities: &[(String, String)]) -> String {
    let mut text = String::new();
    for (name, state) in vulnerabilities {
        if let Some(mitigation) = state.strip_prefix("Mitigation: ") {
            let _ = writeln!(text, "mitigation of {name}: {mitigation}");
        }
    }
    if text.is_empty() { "mitigations: none active\n".to_owned() } else { text }
}

fn path_table(path: &KernelPath) -> String {
    let rows = path.rows.iter().map(|row| {
        vec![
            row.bytes.to_string(),
            interval_text(&row.server_us, 2),
            interval_text(&row.both_us, 2),
            format!("{:.2}", row.server_calls),
            percent_text(row.potential),
        ]
    });
    let header = ["reply B", "server's end µs", "both ends µs", "server's calls", "PD %"];
    format!(
        "\no(b): CPU time per request of an exchange on loopback, requests of {REQUEST} B; PD: calls·δ over the server's end\n{}\n\
         server's end without crossings: {} µs + {} ns per byte\n\n",
        plain_table(header, rows, &[]),
        interval_text(&path.server.intercept, 2),
        interval_text(&path.server.slope_ns, 3),
    )
}

/// PD over sizes.
fn bars(path: &KernelPath) -> String {
    let measured: Vec<&PathRow> = path.rows.iter().filter(|row| row.potential.count > 0).collect();
    let most = measured.iter().map(|row| row.potential.median).fold(f64::MIN_POSITIVE, f64::max);
    let mut text = String::new();
    for PathRow { bytes, potential, .. } in measured {
        let length = (potential.median / most * BAR).round() as usize;
        let _ = writeln!(text, "{bytes:>8} B  {:<50}  {:.1} %", "#".repeat(length), potential.median * 100.0);
    }
    text
}

fn server_table(model: &CrossingModel) -> String {
    let rows = model.servers.iter().map(|server| {
        vec![
            server.name.clone(),
            server.network.to_owned(),
            server.bytes.to_string(),
            interval_text(&server.cpu_us, 2),
            format!("{:.2}", server.waits),
            format!("{:.0}", server.transfers),
            interval_text(&server.crossings_us, 2),
            interval_text(&server.rest_us, 2),
            percent_text(server.potential),
        ]
    });
    let header =
        ["server", "network", "b", "CPU µs/req", "waits", "recv+send", "n·δ µs", "a + o(b) µs", "PD %"];
    format!(
        "\nA request's CPU time in a closed loop. n: waits (counted) and recv+send; a + o(b): without n·δ; PD: n·δ over all\n{}\n",
        plain_table(header, rows, &[0, 1])
    )
}

fn predictions(model: &CrossingModel) -> String {
    let rows = model.predictions.iter().map(|it| {
        let outcome = match it.outcome {
            Outcome::Overlaps => "yes",
            Outcome::NotPredicted => "no",
            _ => "too few rounds",
        };
        let (predicted, measured) = (percent_text(it.predicted_gain), percent_text(it.measured_gain));
        vec![it.change.clone(), predicted, measured, outcome.to_owned()]
    });
    let header = ["change", "predicted gain %", "measured gain %", "intervals overlap"];
    format!("\nPredictions, beside what the model was not made from\n{}\n\n", plain_table(header, rows, &[0]))
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;

    #[test]
    fn the_text_has_all_costs_the_tables_and_the_sentence() {
        let text = report().text();
        for part in [
            "δ: an empty system call (getppid), ns   200 [200, 200]",
            "mitigation of spectre_v2: Retpolines",
            "server's end without crossings: 3.00 [3.00, 3.00] µs + 0.100 [0.100, 0.100] ns per byte",
            "1048576",
            "a + o(b)",
            "intervals overlap",
            "Avoiding them",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
        assert!(text.contains(&"#".repeat(50)) && !text.contains(&"#".repeat(51)), "{text}");
    }
}
