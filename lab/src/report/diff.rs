//! Two saved reports, figure by figure.

use std::fmt;
use std::path::Path;

use loadgen::medians::Interval;
use policies::host::Machine;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::document::{Document, Section, Table};
use super::figures::class_suffix;
use super::files::read;
use super::table::interval_text;
use crate::Error;
use crate::engine::{Figure, LoadKind, LoadResult, Row, Status};

/// How far the rates of a share may differ, as after over before, for its latencies and its CPU
/// time to be compared.
const SAME_RATE: std::ops::RangeInclusive<f64> = 0.95..=1.05;
const FIGURES: [Figure; 7] = [
    Figure::Capacity,
    Figure::Throughput,
    Figure::P50,
    Figure::P99,
    Figure::CpuPerRequest,
    Figure::RoundTrip,
    Figure::CpuShare,
];

/// What is read of a report's `results.json`. Unknown fields are passed over.
#[derive(Debug, Clone, Deserialize)]
struct Saved {
    machine: Machine,
    #[serde(default)]
    cores_awake: Value,
    #[serde(default)]
    congestion_control: Value,
    #[serde(default)]
    experiment: Value,
    results: SavedResults,
}

#[derive(Debug, Clone, Deserialize)]
struct SavedResults {
    loads: Vec<LoadResult>,
}

/// Two saved reports, compared figure by figure.
///
/// The ratio of two medians lies between the quotients of their intervals' ends with 90 %
/// probability or more, as each interval contains its median with 95 %.
#[derive(Debug, Serialize)]
pub struct ReportDiff {
    pub machines: [Machine; 2],
    /// What makes the reports less comparable, a sentence each.
    pub notes: Vec<String>,
    rows: Vec<FigureDiff>,
}

#[derive(Debug, Serialize)]
struct FigureDiff {
    load: String,
    server: String,
    figure: Figure,
    /// Whether it is the ratio to the run's own reference.
    is_ratio: bool,
    before: Interval,
    after: Interval,
    outcome: &'static str,
}

/// Whether the second is better or worse: only if the 95 % intervals don't overlap. `-`: too few
/// rounds for an interval.
fn outcome(figure: Figure, before: &Interval, after: &Interval) -> &'static str {
    let (is_higher, is_lower) = (after.low > before.high, after.high < before.low);
    match (is_higher || is_lower, is_higher == figure.is_better_when_higher()) {
        _ if !before.reaches_target() || !after.reaches_target() => "-",
        (false, _) => "no difference",
        (true, true) => "better",
        (true, false) => "worse",
    }
}

impl ReportDiff {
    /// Reads two reports: folders that `lab` has written, or their `results.json`. Ratios to a
    /// run's own reference are always compared, figures with a unit only between reports of one
    /// machine, kernel and load.
    pub fn read(before: &Path, after: &Path) -> Result<Self, Error> {
        Ok(Self::new(&read(before)?, &read(after)?))
    }

    fn new(before: &Saved, after: &Saved) -> Self {
        let mut notes = differences(before, after);
        let with_units = notes.is_empty();
        if !with_units {
            notes.push("only ratios to each run's own reference are compared, for these reasons".to_owned());
        }
        let mut rows = Vec::new();
        let missing =
            |load: &LoadResult, which: &str| format!("{}: measured in the {which} report only", name(load));
        for load in &after.results.loads {
            match before.results.loads.iter().find(|it| is_same(it, load)) {
                None => notes.push(missing(load, "second")),
                Some(earlier) => {
                    let has_moved =
                        load.kind == LoadKind::Open && !SAME_RATE.contains(&(load.at / earlier.at));
                    if has_moved {
                        let (before, after) = (&earlier.name, &load.name);
                        notes.push(format!(
                            "{}: at {before}, then {after}: only its ratios are compared",
                            name(load)
                        ));
                    }
                    rows.extend(load_rows(earlier, load, with_units && !has_moved));
                }
            }
        }
        let gone = |load: &&LoadResult| !after.results.loads.iter().any(|it| is_same(it, load));
        notes.extend(before.results.loads.iter().filter(gone).map(|load| missing(load, "first")));
        if rows.is_empty() {
            notes.push("no server was measured in one class of distance in both reports".to_owned());
        }
        Self { machines: [before.machine.clone(), after.machine.clone()], notes, rows }
    }

    pub fn document(&self) -> Document {
        let [before, after] = &self.machines;
        let count = |outcome| self.rows.iter().filter(|row| row.outcome == outcome).count();
        let table = Table::new(
            "",
            &["load", "server", "figure", "before", "after", "after / before", ""],
            self.rows.iter().map(FigureDiff::cells).collect(),
        );
        let section = Section {
            tables: vec![Table { names: 3, ..table }],
            notes: self.notes.clone(),
            ..Section::new("figures", "Figure by figure")
        };
        Document {
            title: "Two reports".to_owned(),
            conditions: vec![format!("before: {before}"), format!("after: {after}")],
            findings: vec![format!(
                "Of {} figures {} are better, {} are worse, {} show no difference, and {} have too few rounds for an interval.",
                self.rows.len(),
                count("better"),
                count("worse"),
                count("no difference"),
                count("-"),
            )],
            sections: vec![section],
        }
    }
}

/// A condition of an experiment. Reports from before there were others had the receiver `fifo`.
fn condition(experiment: &Value, field: &str) -> Value {
    match (&experiment[field], field) {
        (Value::Null, "receiver") => "fifo".into(),
        (value, _) => value.clone(),
    }
}

/// Why figures with a unit of two reports can't be compared.
fn differences(before: &Saved, after: &Saved) -> Vec<String> {
    let mut differences = Vec::new();
    let mut differ = |what: &str, before: &dyn fmt::Display, after: &dyn fmt::Display| {
        let (before, after) = (before.to_string(), after.to_string());
        if before != after {
            differences.push(format!("{what}: {before}, then {after}"));
        }
    };
    differ("CPU", &before.machine.cpu, &after.machine.cpu);
    differ("cores", &before.machine.cores, &after.machine.cores);
    differ("kernel", &before.machine.kernel, &after.machine.kernel);
    differ("congestion control", &before.congestion_control, &after.congestion_control);
    differ("idle cores poll", &before.cores_awake, &after.cores_awake);
    for (field, what) in [
        ("receiver", "receiver"),
        ("connections", "connections"),
        ("depth", "requests in flight"),
        ("capacity_p99_us", "99th percentile of the capacity, µs"),
        ("requests", "requests"),
        ("references", "references, of whose capacity rates are shares"),
    ] {
        differ(what, &condition(&before.experiment, field), &condition(&after.experiment, field));
    }
    differences
}

/// What two reports' loads have in common. The rates of a share differ, as the capacities do.
fn is_same(one: &LoadResult, other: &LoadResult) -> bool {
    let is_named =
        if one.kind == LoadKind::Capacity { true } else { one.share.is_some() || one.name == other.name };
    one.kind == other.kind && one.class == other.class && one.share == other.share && is_named
}

fn name(load: &LoadResult) -> String {
    let name = load.share.map_or_else(|| load.name.clone(), |share| format!("{:.0} %", share * 100.0));
    name + &class_suffix(load.class)
}

fn load_rows(before: &LoadResult, after_load: &LoadResult, with_units: bool) -> Vec<FigureDiff> {
    let mut rows = Vec::new();
    for (index, row) in after_load.rows.iter().enumerate() {
        // A contender may be named twice: its rows are paired in order.
        let is_same = |it: &&Row| it.contender == row.contender;
        let nth = after_load.rows[..index].iter().filter(is_same).count();
        let Some(earlier) = before.rows.iter().filter(is_same).nth(nth) else { continue };
        for figure in FIGURES {
            let (Some(one), Some(other)) = (earlier.figures.get(&figure), row.figures.get(&figure)) else {
                continue;
            };
            let mut add = |is_ratio, before: Interval, after: Interval| {
                let (load, server, outcome) =
                    (name(after_load), row.contender.clone(), outcome(figure, &before, &after));
                rows.push(FigureDiff { load, server, figure, is_ratio, before, after, outcome });
            };
            let comparable = earlier.status == Status::Comparable && row.status == Status::Comparable;
            // A ratio to another server is another figure.
            if let (Some(before), Some(after)) = (one.ratio, other.ratio)
                && one.reference == other.reference
                && comparable
            {
                add(true, before, after);
            }
            if with_units {
                add(false, one.value, other.value);
            }
        }
    }
    rows
}

impl FigureDiff {
    fn cells(&self) -> Vec<String> {
        let Self { load, server, figure, is_ratio, before, after, outcome } = self;
        let digits = if *is_ratio { 2 } else { figure.digits() };
        let over = after.median / before.median;
        let ratio = match *outcome {
            _ if !over.is_finite() => "-".to_owned(),
            "-" => format!("{over:.2}"),
            _ => format!("{over:.2} [{:.2}, {:.2}]", after.low / before.high, after.high / before.low),
        };
        vec![
            load.clone(),
            server.clone(),
            format!("{}{}", figure.title(), if *is_ratio { ", ratio" } else { "" }),
            interval_text(before, digits),
            interval_text(after, digits),
            ratio,
            outcome.to_string(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;
    use crate::engine::{Turn, results_of};

    /// A report as a file holds it: kernel polling has `ratio` times vanilla's capacity.
    fn report(ratio: f64) -> Value {
        let results = results_of(
            &[("capacity", LoadKind::Capacity, 0.0, None), ("50000/s", LoadKind::Open, 50e3, Some(0.5))],
            &["vanilla", "polling"],
            &[0],
            8,
            |load, contender, round| {
                let noise = 1.0 + 0.01 * (round % 3) as f64 * contender as f64;
                let polling = if contender == 1 { ratio } else { 1.0 };
                if load == "capacity" {
                    return Turn::new([(Figure::Capacity, 1e5 * polling * noise)]);
                }
                Turn::new([(Figure::P50, 10.0 * noise), (Figure::CpuPerRequest, 5.0 / polling * noise)])
            },
        );
        json!({
            "machine": Machine::read(),
            "cores_awake": true,
            "congestion_control": "reno",
            "experiment": {"connections": 64},
            "results": results,
        })
    }

    fn saved(report: &Value) -> Saved {
        serde_json::from_value(report.clone()).unwrap()
    }

    fn outcomes(diff: &ReportDiff, figure: Figure, is_ratio: bool) -> Vec<&'static str> {
        let rows = diff.rows.iter().filter(|row| row.figure == figure && row.is_ratio == is_ratio);
        rows.map(|row| row.outcome).collect()
    }

    #[test]
    fn a_report_shows_no_difference_to_itself() {
        let diff = ReportDiff::new(&saved(&report(2.0)), &saved(&report(2.0)));
        // Values of two servers, and the ratios of one.
        assert_eq!(diff.rows.len(), 3 * 3);
        assert!(diff.rows.iter().all(|row| row.outcome == "no difference"), "{diff:?}");
        assert_eq!(diff.notes, [""; 0]);
    }

    #[test]
    fn figures_of_another_version_are_passed_over() {
        let mut old = report(2.0);
        let figures =
            old.pointer_mut("/results/loads/0/rows/0/figures").and_then(Value::as_object_mut).unwrap();
        let one = figures.values().next().unwrap().clone();
        figures.insert("gone".to_owned(), one);
        assert_eq!(ReportDiff::new(&saved(&old), &saved(&report(2.0))).rows.len(), 3 * 3);
    }

    #[test]
    fn intervals_that_do_not_overlap_are_better_or_worse() {
        let (before, after) = (saved(&report(2.0)), saved(&report(1.5)));
        let diff = ReportDiff::new(&before, &after);
        assert_eq!(outcomes(&diff, Figure::Capacity, true), ["worse"]);
        assert_eq!(outcomes(&diff, Figure::Capacity, false), ["no difference", "worse"]);
        // More CPU time is worse.
        assert_eq!(outcomes(&diff, Figure::CpuPerRequest, true), ["worse"]);
        let back = ReportDiff::new(&after, &before);
        assert_eq!(outcomes(&back, Figure::Capacity, true), ["better"]);
        let text = diff.document().text();
        assert!(text.contains(" worse |") && text.contains(" 4 are worse"), "{text}");
    }

    #[test]
    fn other_machines_and_other_rates_are_compared_by_ratios_only() {
        let mut other = report(2.0);
        other["machine"]["kernel"] = "6.99".into();
        let diff = ReportDiff::new(&saved(&report(2.0)), &saved(&other));
        assert!(diff.rows.len() == 3 && diff.rows.iter().all(|row| row.is_ratio), "{diff:?}");
        assert!(diff.notes[0].starts_with("kernel: "), "{:?}", diff.notes);
        let mut faster = report(2.0);
        faster["results"]["loads"][1]["at"] = 60e3.into();
        let diff = ReportDiff::new(&saved(&report(2.0)), &saved(&faster));
        assert!(outcomes(&diff, Figure::P50, false).is_empty());
        assert_eq!(outcomes(&diff, Figure::P50, true), ["no difference"]);
    }

    #[test]
    fn classes_loads_and_references_are_not_mixed() {
        let mut other = report(2.0);
        other["results"]["loads"][0]["class"] = "near".into();
        other["results"]["loads"][1]["share"] = 0.9.into();
        let diff = ReportDiff::new(&saved(&report(2.0)), &saved(&other));
        assert_eq!(diff.rows.len(), 0);
        let notes = diff.notes.join("\n");
        for note in ["90 %: measured in the second", "50 %: measured in the first", "no server was measured"]
        {
            assert!(notes.contains(note), "no {note:?} in {notes}");
        }
        let mut other = report(2.0);
        other["results"]["loads"][0]["rows"][1]["figures"]["capacity"]["reference"] = "tokio".into();
        let diff = ReportDiff::new(&saved(&report(2.0)), &saved(&other));
        assert!(outcomes(&diff, Figure::Capacity, true).is_empty());
    }

    #[test]
    fn folders_are_read_and_a_file_that_is_no_report_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let (missing, wrong) = (folder.path().join("missing.json"), folder.path().join("wrong.json"));
        fs::write(&wrong, "{}").unwrap();
        let error = ReportDiff::read(&missing, &wrong).unwrap_err().to_string();
        assert!(error.contains("missing.json"), "{error}");
        let error = ReportDiff::read(&wrong, &missing).unwrap_err().to_string();
        assert!(error.contains("wrong.json: not a report") && error.contains("--output"), "{error}");
        fs::write(folder.path().join("results.json"), report(2.0).to_string()).unwrap();
        assert!(ReportDiff::read(folder.path(), folder.path()).is_ok());
    }
}
