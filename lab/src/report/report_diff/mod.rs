//! Two saved reports of comparisons under a fleet, figure by figure.

mod saved;

use std::fmt::Write;
use std::fs;
use std::path::Path;

use loadgen::interleaved_rounds::DistanceClass;
use policies::host::Machine;
use serde::Serialize;

use self::saved::{SavedClass, SavedInterval, SavedLoad, SavedReport, SavedRow};
use super::class_tables::{by_class, class_title};
use super::table::plain_table;
use crate::Error;

/// How far the rates of a share may differ, as after over before, for its latencies and its CPU time to be compared.
const SAME_RATE: std::ops::RangeInclusive<f64> = 0.95..=1.05;

/// Two saved reports of comparisons under a fleet, compared figure by figure.
///
/// The ratio of two medians lies between the quotients of their intervals' ends with 90 % probability or more, as each
/// interval contains its median with 95 %.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct ReportDiff {
    /// The machines of both reports.
    pub machines: [Machine; 2],
    /// What makes the reports less comparable, a sentence each.
    pub notes: Vec<String>,
    rows: Vec<FigureDiff>,
}

/// One figure of one server in both reports.
#[derive(Debug, Serialize)]
struct FigureDiff {
    class: DistanceClass,
    load: String,
    server: String,
    figure: Figure,
    before: SavedInterval,
    after: SavedInterval,
    /// After over before, of the medians. `None` where one was not measured.
    ratio: Option<f64>,
    /// Both ends of the ratio's interval. `None` where one of the figures has no interval.
    interval: Option<(f64, f64)>,
    outcome: Outcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Figure {
    CapacityRatio,
    P50Ratio,
    P99Ratio,
    CpuRatio,
    Capacity,
    P50Us,
    P99Us,
    CpuUs,
}

impl Figure {
    /// Its name in the table, and its digits after the point.
    fn name(self) -> (&'static str, usize) {
        match self {
            Self::CapacityRatio => ("capacity ratio", 2),
            Self::P50Ratio => ("p50 ratio", 2),
            Self::P99Ratio => ("p99 ratio", 2),
            Self::CpuRatio => ("CPU ratio", 2),
            Self::Capacity => ("capacity/s", 0),
            Self::P50Us => ("p50 µs", 1),
            Self::P99Us => ("p99 µs", 0),
            Self::CpuUs => ("CPU µs/req", 2),
        }
    }

    /// Whether it is no ratio to the run's own reference.
    fn has_unit(self) -> bool {
        matches!(self, Self::Capacity | Self::P50Us | Self::P99Us | Self::CpuUs)
    }

    fn is_better_when_higher(self) -> bool {
        matches!(self, Self::CapacityRatio | Self::Capacity)
    }
}

/// What the intervals say of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Outcome {
    /// The intervals don't overlap, and the second is the better one.
    Better,
    /// The intervals don't overlap, and the second is the worse one.
    Worse,
    /// The 95 % intervals overlap, so the reports show no difference.
    NoDifference,
    /// One of the figures has too few rounds for an interval, or was not measured.
    NoInterval,
}

impl Outcome {
    fn of(figure: Figure, before: &SavedInterval, after: &SavedInterval) -> Self {
        let (Some(before), Some(after)) = (before.ends(), after.ends()) else { return Self::NoInterval };
        let (is_higher, is_lower) = (after.0 > before.1, after.1 < before.0);
        match (is_higher || is_lower, is_higher == figure.is_better_when_higher()) {
            (false, _) => Self::NoDifference,
            (true, true) => Self::Better,
            (true, false) => Self::Worse,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "WORSE",
            Self::NoDifference => "no difference",
            Self::NoInterval => "-",
        }
    }
}

impl ReportDiff {
    /// Reads two reports that `lab --output` has written. Ratios to a run's own reference are always compared, figures
    /// with a unit only between reports of one machine, kernel and load.
    ///
    /// # Errors
    /// If a file can't be read, or is not a report of a comparison under a fleet.
    pub fn read(before: &Path, after: &Path) -> Result<Self, Error> {
        Ok(Self::new(&read(before)?, &read(after)?))
    }

    fn new(before: &SavedReport, after: &SavedReport) -> Self {
        let mut notes = differences(before, after);
        let with_units = notes.is_empty();
        if !with_units {
            notes.push("only ratios to each run's own reference are compared, for these reasons".to_owned());
        }
        let mut rows = capacity_rows(before, after);
        for load in &after.result.loads {
            let Some(earlier) = before.result.loads.iter().find(|it| it.name() == load.name()) else {
                notes.push(format!("{}: measured in the second report only", load.name()));
                continue;
            };
            let has_moved = earlier
                .rate()
                .zip(load.rate())
                .is_some_and(|(before, after)| !SAME_RATE.contains(&(after / before)));
            if has_moved {
                let (before, after) = (&earlier.measured.load, &load.measured.load);
                notes.push(format!(
                    "{}: at {before}, then {after}: only its ratios are compared",
                    load.name()
                ));
            }
            rows.extend(
                load_rows(earlier, load).into_iter().filter(|row| !(has_moved && row.figure.has_unit())),
            );
        }
        for load in &before.result.loads {
            if !after.result.loads.iter().any(|it| it.name() == load.name()) {
                notes.push(format!("{}: measured in the first report only", load.name()));
            }
        }
        rows.retain(|row| with_units || !row.figure.has_unit());
        if rows.is_empty() {
            notes.push("no server was measured in one class of distance in both reports".to_owned());
        }
        Self { machines: [before.machine.clone(), after.machine.clone()], notes, rows }
    }

    /// The comparison as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (machine, which) in self.machines.iter().zip(["before", "after"]) {
            let Machine { cpu, cores, kernel, .. } = machine;
            let _ = writeln!(text, "{which}: {cpu}, {cores} cores, Linux {kernel}");
        }
        let header = ["load", "server", "figure", "before", "after", "after / before", ""];
        for (class, rows) in by_class(&self.rows, |row| row.class) {
            let _ = match class {
                DistanceClass::Single => writeln!(text),
                _ => write!(text, "{}", class_title(class)),
            };
            let table = plain_table(header, rows.into_iter().map(FigureDiff::cells), &[0, 1, 2, 6]);
            let _ = writeln!(text, "{table}");
        }
        let count = |outcome| self.rows.iter().filter(|row| row.outcome == outcome).count();
        let _ = writeln!(
            text,
            "\nOf {} figures {} are better, {} are worse, {} show no difference, and {} have too few rounds for an interval.",
            self.rows.len(),
            count(Outcome::Better),
            count(Outcome::Worse),
            count(Outcome::NoDifference),
            count(Outcome::NoInterval),
        );
        for note in &self.notes {
            let _ = writeln!(text, "note: {note}");
        }
        text
    }
}

fn read(path: &Path) -> Result<SavedReport, Error> {
    let error = |reason: String| Error::SavedReport { path: path.to_owned(), reason };
    let text = fs::read_to_string(path).map_err(|reason| error(reason.to_string()))?;
    serde_json::from_str(&text).map_err(|reason| {
        error(format!(
            "not a report of a comparison under a fleet ({reason}); `lab --output FILE` writes one, as root"
        ))
    })
}

/// Why figures with a unit of two reports can't be compared.
fn differences(before: &SavedReport, after: &SavedReport) -> Vec<String> {
    let mut differences = Vec::new();
    let mut differ = |what: &str, before: String, after: String| {
        if before != after {
            differences.push(format!("{what}: {before}, then {after}"));
        }
    };
    differ("CPU", before.machine.cpu.clone(), after.machine.cpu.clone());
    differ("cores", before.machine.cores.to_string(), after.machine.cores.to_string());
    differ("kernel", before.machine.kernel.clone(), after.machine.kernel.clone());
    differ("congestion control", before.congestion_control.clone(), after.congestion_control.clone());
    differ("idle cores poll", before.cores_awake.to_string(), after.cores_awake.to_string());
    let (first, second) = (&before.config, &after.config);
    differ("connections", first.connections.to_string(), second.connections.to_string());
    differ("requests in flight", first.depth.to_string(), second.depth.to_string());
    let limit = |us: f64| format!("{us:.0} µs");
    differ("99th percentile of the capacity", limit(first.capacity_p99_us), limit(second.capacity_p99_us));
    differ("think time", limit(first.think_us), limit(second.think_us));
    if first.requests != second.requests {
        differences.push("the requests differ".to_owned());
    }
    if first.contenders.first() != second.contenders.first() {
        differences.push("the first server differs, of whose capacity rates are shares".to_owned());
    }
    differences
}

/// The rows of both reports that are of one class and one server, in the second report's order.
fn pairs<'a, R>(
    before: &'a [SavedClass<R>],
    after: &'a [SavedClass<R>],
    name: impl Fn(&R) -> &str,
) -> Vec<(DistanceClass, &'a R, &'a R)> {
    let mut pairs = Vec::new();
    for class in after {
        let Some(earlier) = before.iter().find(|it| it.class == class.class) else { continue };
        for (index, row) in class.rows.iter().enumerate() {
            // A policy may be named twice: its rows are paired in order.
            let nth = class.rows[..index].iter().filter(|it| name(it) == name(row)).count();
            let same_server = earlier.rows.iter().filter(|it| name(it) == name(row)).nth(nth);
            pairs.extend(same_server.map(|earlier| (class.class, earlier, row)));
        }
    }
    pairs
}

fn capacity_rows(before: &SavedReport, after: &SavedReport) -> Vec<FigureDiff> {
    let (before, after) = (&before.result.capacity.classes, &after.result.capacity.classes);
    let mut rows = Vec::new();
    for (class, before, after) in pairs(before, after, |row| &row.name) {
        let figures =
            [(Figure::CapacityRatio, before.ratio, after.ratio), (Figure::Capacity, before.rate, after.rate)];
        rows.extend(figures.map(|figure| FigureDiff::new(class, "-", &after.name, figure)));
    }
    rows
}

fn load_rows(before: &SavedLoad<SavedRow>, after: &SavedLoad<SavedRow>) -> Vec<FigureDiff> {
    let load = after.name();
    let mut rows = Vec::new();
    for (class, before, after) in pairs(&before.classes, &after.classes, |row| &row.name) {
        let figures = [
            (Figure::P50Ratio, before.p50_ratio, after.p50_ratio),
            (Figure::P99Ratio, before.p99_ratio, after.p99_ratio),
            (Figure::CpuRatio, before.cpu_ratio, after.cpu_ratio),
            (Figure::P50Us, before.p50_us, after.p50_us),
            (Figure::P99Us, before.p99_us, after.p99_us),
            (Figure::CpuUs, before.cpu_us, after.cpu_us),
        ];
        // A ratio to another server is another figure.
        let is_same_reference = before.reference == after.reference;
        let figures = figures.into_iter().filter(|(figure, ..)| figure.has_unit() || is_same_reference);
        rows.extend(figures.map(|figure| FigureDiff::new(class, &load, &after.name, figure)));
    }
    rows
}

impl FigureDiff {
    fn new(
        class: DistanceClass,
        load: &str,
        server: &str,
        (figure, before, after): (Figure, SavedInterval, SavedInterval),
    ) -> Self {
        let over = |after: f64, before: f64| Some(after / before).filter(|ratio| ratio.is_finite());
        let ratio = before.median().zip(after.median()).and_then(|(before, after)| over(after, before));
        let interval = before
            .ends()
            .zip(after.ends())
            .and_then(|(before, after)| Some((over(after.0, before.1)?, over(after.1, before.0)?)));
        let outcome = Outcome::of(figure, &before, &after);
        Self {
            class,
            load: load.to_owned(),
            server: server.to_owned(),
            figure,
            before,
            after,
            ratio,
            interval,
            outcome,
        }
    }

    fn cells(&self) -> Vec<String> {
        let (figure, digits) = self.figure.name();
        let ratio = match (self.ratio, self.interval) {
            (None, _) => "-".to_owned(),
            (Some(ratio), None) => format!("{ratio:.2}"),
            (Some(ratio), Some((low, high))) => format!("{ratio:.2} [{low:.2}, {high:.2}]"),
        };
        vec![
            self.load.clone(),
            self.server.clone(),
            figure.to_owned(),
            self.before.text(digits),
            self.after.text(digits),
            ratio,
            self.outcome.text().to_owned(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use loadgen::medians::median_interval;

    use super::*;
    use crate::experiments::CoreAssignment;
    use crate::report::FleetReport;
    use crate::report::sample_results::{config, interval, result};

    /// A report as a file holds it.
    fn saved(report: &serde_json::Value) -> SavedReport {
        serde_json::from_value(report.clone()).unwrap()
    }

    fn report() -> serde_json::Value {
        let cores = CoreAssignment { server: 0, client: 1, packing: 1 };
        let report =
            FleetReport::new(config(), cores, true, result(DistanceClass::Far, interval(1.9, 2.0, 2.1)));
        serde_json::to_value(report).unwrap()
    }

    /// The report with another ratio of kernel polling's capacity.
    fn with_ratio(low: f64, median: f64, high: f64) -> serde_json::Value {
        let mut report = report();
        let ratio = serde_json::to_value(interval(low, median, high)).unwrap();
        report["result"]["capacity"]["classes"][0]["rows"][1]["ratio"] = ratio;
        report
    }

    fn outcomes(diff: &ReportDiff, figure: Figure) -> Vec<Outcome> {
        diff.rows.iter().filter(|row| row.figure == figure).map(|row| row.outcome).collect()
    }

    #[test]
    fn a_report_shows_no_difference_to_itself() {
        let diff = ReportDiff::new(&saved(&report()), &saved(&report()));
        assert_eq!(diff.rows.len(), 2 * 2 + 2 * 6);
        assert!(diff.rows.iter().all(|row| row.outcome == Outcome::NoDifference), "{}", diff.text());
        assert!(diff.rows.iter().all(|row| row.ratio == Some(1.0)), "{}", diff.text());
        assert_eq!(diff.notes, [""; 0]);
    }

    #[test]
    fn intervals_that_do_not_overlap_are_better_or_worse() {
        let (before, after) = (saved(&report()), saved(&with_ratio(1.4, 1.5, 1.6)));
        let ratios = |diff: &ReportDiff| outcomes(diff, Figure::CapacityRatio);
        assert_eq!(ratios(&ReportDiff::new(&before, &after)), [Outcome::NoDifference, Outcome::Worse]);
        assert_eq!(ratios(&ReportDiff::new(&after, &before)), [Outcome::NoDifference, Outcome::Better]);
        let diff = ReportDiff::new(&before, &after);
        let row = diff.rows.iter().find(|row| row.outcome == Outcome::Worse).unwrap();
        assert_eq!((row.ratio, row.interval), (Some(0.75), Some((1.4 / 2.1, 1.6 / 1.9))));
        assert!(diff.text().contains("1.50 [1.40, 1.60]  0.75 [0.67, 0.84]  WORSE"), "{}", diff.text());
        assert!(diff.text().contains(" 1 are worse"), "{}", diff.text());
        // Less CPU time is better.
        let mut cheaper = report();
        let cpu = serde_json::to_value(interval(1.0, 1.0, 1.0)).unwrap();
        cheaper["result"]["loads"][0]["classes"][0]["rows"][1]["cpu_us"] = cpu;
        let diff = ReportDiff::new(&before, &saved(&cheaper));
        assert_eq!(outcomes(&diff, Figure::CpuUs), [Outcome::NoDifference, Outcome::Better]);
    }

    #[test]
    fn too_few_rounds_and_what_was_not_measured_have_no_outcome() {
        let mut few = report();
        let rows = &mut few["result"]["capacity"]["classes"][0]["rows"];
        rows[0]["ratio"] = serde_json::to_value(median_interval(&[1.0; 5])).unwrap();
        rows[1]["ratio"] = serde_json::to_value(median_interval(&[])).unwrap();
        let diff = ReportDiff::new(&saved(&report()), &saved(&few));
        assert_eq!(outcomes(&diff, Figure::CapacityRatio), [Outcome::NoInterval; 2]);
        assert!(diff.text().contains("not measured"), "{}", diff.text());
    }

    #[test]
    fn other_machines_are_compared_by_ratios_only() {
        let mut other = report();
        other["machine"]["kernel"] = "6.99".into();
        let diff = ReportDiff::new(&saved(&report()), &saved(&other));
        assert_eq!(outcomes(&diff, Figure::Capacity), []);
        assert_eq!(outcomes(&diff, Figure::CapacityRatio), [Outcome::NoDifference; 2]);
        assert!(diff.notes[0].starts_with("kernel: "), "{:?}", diff.notes);
    }

    #[test]
    fn classes_and_loads_of_one_report_are_not_compared() {
        let mut near = report();
        near["result"]["capacity"]["classes"][0]["class"] = "near".into();
        near["result"]["loads"][0]["share"] = 0.9.into();
        let diff = ReportDiff::new(&saved(&report()), &saved(&near));
        assert_eq!(diff.rows.len(), 0);
        let notes = diff.notes.join("\n");
        assert!(notes.contains("90 %: measured in the second report only"), "{notes}");
        assert!(notes.contains("50 %: measured in the first report only"), "{notes}");
        assert!(notes.contains("no server was measured"), "{notes}");
    }

    #[test]
    fn a_policy_that_was_compared_twice_is_paired_in_order() {
        let mut twice = report();
        let rows = &mut twice["result"]["capacity"]["classes"][0]["rows"];
        rows[1]["name"] = rows[0]["name"].clone();
        let diff = ReportDiff::new(&saved(&twice), &saved(&twice));
        assert!(diff.rows.iter().all(|row| row.outcome == Outcome::NoDifference), "{}", diff.text());
        let mut worse = twice.clone();
        let ratio = serde_json::to_value(interval(1.4, 1.5, 1.6)).unwrap();
        worse["result"]["capacity"]["classes"][0]["rows"][1]["ratio"] = ratio;
        let diff = ReportDiff::new(&saved(&twice), &saved(&worse));
        assert_eq!(outcomes(&diff, Figure::CapacityRatio), [Outcome::NoDifference, Outcome::Worse]);
    }

    #[test]
    fn a_share_of_another_capacity_is_compared_by_ratios_only() {
        let (mut slower, mut faster) = (report(), report());
        slower["result"]["loads"][0]["measured"]["load"] = "50000/s".into();
        faster["result"]["loads"][0]["measured"]["load"] = "60000/s".into();
        let diff = ReportDiff::new(&saved(&slower), &saved(&faster));
        assert_eq!((outcomes(&diff, Figure::P50Us).len(), outcomes(&diff, Figure::P50Ratio).len()), (0, 2));
        assert!(diff.notes[0].contains("50 %: at 50000/s, then 60000/s"), "{:?}", diff.notes);
    }

    #[test]
    fn ratios_to_another_reference_are_left_out() {
        let mut other = report();
        for row in 0..2 {
            other["result"]["loads"][0]["classes"][0]["rows"][row]["reference"] = "tokio".into();
        }
        other["config"]["contenders"][0] = "another".into();
        let diff = ReportDiff::new(&saved(&report()), &saved(&other));
        assert_eq!((outcomes(&diff, Figure::P50Ratio).len(), outcomes(&diff, Figure::P50Us).len()), (0, 0));
        assert!(diff.notes[0].contains("first server"), "{:?}", diff.notes);
    }

    #[test]
    fn a_file_that_is_no_report_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let (missing, wrong) = (folder.path().join("missing.json"), folder.path().join("wrong.json"));
        fs::write(&wrong, "{}").unwrap();
        let error = ReportDiff::read(&missing, &wrong).unwrap_err().to_string();
        assert!(error.contains("missing.json"), "{error}");
        let error = ReportDiff::read(&wrong, &missing).unwrap_err().to_string();
        assert!(error.contains("wrong.json: not a report") && error.contains("--output"), "{error}");
        let right = folder.path().join("right.json");
        fs::write(&right, report().to_string()).unwrap();
        assert!(ReportDiff::read(&right, &right).is_ok());
    }
}
