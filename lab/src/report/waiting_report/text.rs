//! The report as text: tables and sentences.

use std::fmt::Write;

use loadgen::interleaved_rounds::DistanceClass;
use loadgen::medians::Interval;
use policies::host::Machine;

use super::super::class_tables::by_class;
use super::super::table::{interval_text, plain_table};
use super::{WaitingReport, mark, title};
use crate::experiments::waiting::{MessageRow, ServerRow, Target};

pub(super) fn text(report: &WaitingReport) -> String {
    let Machine { cpu, cores, kernel, .. } = &report.machine;
    let mut text = format!(
        "{cpu}, {cores} cores, Linux {kernel}; cores {} and {}, {}\n",
        report.cores.server, report.cores.client, report.config.driver
    );
    for (class, rows) in by_class(&report.rows.messages, |row| row.class) {
        text.push_str(&trip_table(class, &rows));
        text.push_str(&cpu_table(class, &rows));
    }
    for row in &report.rows.server {
        text.push_str(&server_table(report, row));
    }
    text.push('\n');
    for note in &report.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text.push('\n');
    for sentence in &report.verdict {
        let _ = writeln!(text, "{sentence}");
    }
    text
}

/// Medians only: the ratio has the interval.
fn medians(intervals: &[Interval], digits: usize) -> impl Iterator<Item = String> {
    intervals.iter().map(move |it| format!("{:.digits$}", it.median))
}

/// A table of one figure of all pairs and gaps. `header`: the figure, what its ratio compares, and the limit of that.
fn message_table<'a>(
    heading: String,
    header: [&'static str; 3],
    rows: &[&'a MessageRow],
    figure: impl Fn(&'a MessageRow) -> (&'a [Interval], &'a Target),
) -> String {
    let cells = |row: &&'a MessageRow| {
        let (intervals, target) = figure(row);
        let mut cells = vec![row.pair.to_string(), row.gap.to_string()];
        cells.extend(medians(intervals, 1));
        cells.extend([interval_text(&target.ratio, 2), mark(target.outcome).to_owned()]);
        cells
    };
    let [figure, ratio, limit] = header;
    let header = [figure, "gap", "block", "spin", "adaptive", ratio, limit];
    heading + &plain_table(header, rows.iter().map(cells), &[0]) + "\n"
}

fn trip_table(class: DistanceClass, rows: &[&MessageRow]) -> String {
    let header = ["round trip, µs", "adaptive / better", "≤ 1.1"];
    message_table(title(class, "Messages"), header, rows, |row| (&row.round_trip_us, &row.round_trip))
}

fn cpu_table(class: DistanceClass, rows: &[&MessageRow]) -> String {
    let heading = title(class, "CPU time per message, without what is computed in the gaps");
    let header = ["CPU of both sides, µs", "adaptive / block", "≤ 2"];
    message_table(heading, header, rows, |row| (&row.cpu_us, &row.cpu))
}

fn server_table(report: &WaitingReport, row: &ServerRow) -> String {
    let line = |name: &str, values: Vec<String>, ratio: &Interval, outcome| {
        let mut cells = vec![name.to_owned()];
        cells.extend(values);
        cells.extend([interval_text(ratio, 2), outcome]);
        cells
    };
    let limits = |target: &Target| format!("≤ {}: {}", target.limit, mark(target.outcome));
    let percent: Vec<String> = row.cpu_share.iter().map(|it| format!("{:.0}", it.median * 100.0)).collect();
    let rows = [
        line("p99, µs", medians(&row.p99_us, 0).collect(), &row.p99.ratio, limits(&row.p99)),
        line("CPU of the worker, %", percent, &row.cpu.ratio, limits(&row.cpu)),
    ];
    let what = format!(
        "memcached server on loopback, {:.0} requests/s on {} connections",
        report.config.rate, report.config.connections
    );
    let header = ["", "block", "spin", "adaptive", "adaptive / spin", "limit"];
    title(row.class, &what) + &plain_table(header, rows, &[0]) + "\n"
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;

    #[test]
    fn the_text_has_a_row_for_each_pair_and_gap_and_the_server() {
        let text = report(8).text();
        let words: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        for line in [
            "worker to worker 1 µs 12.0 2.0 2.1 1.05 [1.05, 1.05] yes",
            "thread to worker 1000 µs 15.0 30.0 18.0 1.20 [1.20, 1.20] NO",
            "worker to thread 1000 µs 20.0 1000.0 50.0 2.50 [2.50, 2.50] NO",
            "p99, µs 60 40 41 1.02 [1.02, 1.02] ≤ 1.1: yes",
            "CPU of the worker, % 10 100 40 0.40 [0.40, 0.40] ≤ 0.3: NO",
        ] {
            assert!(words.iter().any(|it| it == line), "no {line:?} in\n{text}");
        }
        assert!(text.contains("memcached server on loopback, 5000 requests/s on 8 connections"), "{text}");
    }

    #[test]
    fn too_few_rounds_have_no_interval() {
        let text = report(3).text();
        assert!(text.contains("1.05 (no interval, 3 rounds)"), "{text}");
    }
}
