//! Reports of results that were never measured.

use std::collections::BTreeMap;

use loadgen::interleaved_rounds::DistanceClass;
use loadgen::medians::median_interval;

use super::*;
use crate::experiments::paper::{Figure, LoadKind, MeasuredFigure, MeasuredLoad, MeasuredRow, PartResult};

fn figure(value: f64, ratio: Option<f64>) -> MeasuredFigure {
    MeasuredFigure {
        value: median_interval(&[value; 6]),
        ratio: ratio.map(|ratio| median_interval(&[ratio; 6])),
    }
}

fn row(system: &str, published: &str, ratio: Option<f64>) -> MeasuredRow {
    let qps = 1000.0 * ratio.unwrap_or(1.0);
    let figures = BTreeMap::from([
        (Figure::Throughput, figure(qps, ratio)),
        (Figure::App, figure(12.5, ratio)),
        (Figure::P99, figure(300.0, ratio)),
    ]);
    MeasuredRow { system: system.to_owned(), published: Some(published.to_owned()), figures }
}

fn load(kind: LoadKind) -> MeasuredLoad {
    let rows = vec![
        row("vanilla, epoll", "Vanilla", None),
        row("kernel-polling, epoll", "Kernel Polling", Some(1.75)),
    ];
    MeasuredLoad {
        name: "closed loop".to_owned(),
        kind,
        at: 500.0,
        class: DistanceClass::Near,
        rounds: 6,
        rows,
    }
}

fn report() -> PaperReport {
    let result = PartResult {
        reference: "vanilla, epoll".to_owned(),
        workload: "a fleet".to_owned(),
        loads: vec![load(LoadKind::Closed), load(LoadKind::Open)],
        notes: vec!["a <note>".to_owned()],
        failure: None,
    };
    let result = PaperResult::for_tests(vec![
        (Part::Policies, PartOutcome::Measured { saved: false, result }),
        (Part::UserLevel, PartOutcome::Missing("can't attach the XDP program".to_owned())),
        (Part::Web, PartOutcome::Missing("nginx is not installed".to_owned())),
    ]);
    let cores = CoreAssignment { server: 0, client: 1, packing: 1 };
    PaperReport::new(PaperConfig::new(true), cores, true, result)
}

#[test]
fn every_table_and_figure_is_in_both_reports_with_the_papers_numbers_beside_this_machines() {
    let report = report();
    for text in [report.markdown(), report.html().replace("&amp;", "&")] {
        for exhibit in &EXHIBITS {
            assert!(text.contains(&format!("{}: {}", exhibit.name, exhibit.caption)), "{}", exhibit.name);
        }
        for expected in
            ["947021", "1.31", "1750 [1750, 1750]", "1.75 [1.75, 1.75]", "18569 / not counted here"]
        {
            assert!(text.contains(expected), "no {expected} in {text}");
        }
        assert!(text.contains("Not measured here: nginx is not installed."), "{text}");
        assert!(text.contains("Not measured here: needs two NUMA nodes, and this machine has 1."), "{text}");
        assert!(text.contains("Not measured here: can't attach the XDP program."), "{text}");
    }
}

#[test]
fn the_user_level_stack_is_beside_f_stack_and_caladan_with_its_cpu_time_at_idle() {
    let mut load = load(LoadKind::Closed);
    load.rows.push(row("user-level", "user-level stack", Some(2.5)));
    load.rows[2].figures.insert(Figure::IdleCpu, figure(99.9, None));
    let result = PartResult {
        reference: "vanilla, epoll".to_owned(),
        workload: "a fleet".to_owned(),
        loads: vec![load],
        notes: Vec::new(),
        failure: None,
    };
    let result =
        PaperResult::for_tests(vec![(Part::UserLevel, PartOutcome::Measured { saved: false, result })]);
    let cores = CoreAssignment { server: 0, client: 1, packing: 1 };
    let text = PaperReport::new(PaperConfig::new(true), cores, true, result).markdown();
    for (system, queries) in [("F-Stack", "106468"), ("Caladan", "2108154")] {
        assert!(text.contains(&format!("| user-level | {system} | {queries} |")), "{text}");
    }
    assert!(text.contains("| user-level | 99.9 |"), "{text}");
}

#[test]
fn the_page_has_its_plots_in_it_and_escapes_text() {
    let html = report().html();
    assert_eq!(html.matches("<svg").count(), 2, "Table 5 and Figure 5");
    assert!(html.contains("a &lt;note&gt;") && !html.contains("{{"), "{html}");
    assert!(!html.contains("src=") && html.contains("prefers-color-scheme: dark"));
}

#[test]
fn files_of_the_report_are_written_beside_each_other() {
    let folder = tempfile::tempdir().unwrap();
    report().write(folder.path()).unwrap();
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(read("report.md").contains("(table-5.svg)"));
    assert!(read("table-5.svg").contains("prefers-color-scheme:dark"));
    let json: serde_json::Value = serde_json::from_str(&read("results.json")).unwrap();
    // Those of the paper, one beside Table 5, and scaling.
    assert_eq!(json["exhibits"].as_array().map(Vec::len), Some(EXHIBITS.len() + 2));
    assert!(read("figure-5.svg").contains("<svg"));
}

/// The report of a part.
fn report_of(part: Part, loads: Vec<MeasuredLoad>, notes: &[&str]) -> PaperReport {
    let result = PartResult {
        reference: "vanilla, epoll".to_owned(),
        workload: "a fleet".to_owned(),
        loads,
        notes: notes.iter().map(|&note| note.to_owned()).collect(),
        failure: None,
    };
    let result = PaperResult::for_tests(vec![(part, PartOutcome::Measured { saved: false, result })]);
    let cores = CoreAssignment { server: 0, client: 1, packing: 1 };
    PaperReport::new(PaperConfig::new(true), cores, true, result)
}

#[test]
fn a_distance_that_only_other_loads_have_most_rounds_at_does_not_hide_the_closed_loop() {
    // Far has more rounds over all, and none of the closed loop.
    let open = MeasuredLoad { class: DistanceClass::Far, rounds: 50, ..load(LoadKind::Open) };
    let report = report_of(Part::Policies, vec![open, load(LoadKind::Closed)], &[]);
    let glance = |id: &str| &report.exhibits.iter().find(|exhibit| exhibit.id == id).unwrap().glance;
    assert!(glance("table-5").contains("kernel-polling, epoll 1.75"), "{}", glance("table-5"));
    assert!(glance("figure-5").contains("kernel-polling, epoll 1.75"), "{}", glance("figure-5"));
    let report = report_of(Part::Attached, vec![load(LoadKind::Closed)], &[]);
    let attached = report.exhibits.iter().find(|exhibit| exhibit.id == "attached").unwrap();
    assert!(attached.glance.contains("(Lull's under kernel polling) 1.75"), "{}", attached.glance);
}

#[test]
fn memory_and_cpu_time_at_idle_do_not_make_a_row_without_a_valid_turn_measured() {
    let mut load = load(LoadKind::Closed);
    load.rows[1].figures = BTreeMap::from([(Figure::IdleCpu, figure(99.9, None))]);
    assert_eq!(super::tables::value(&load.rows[1], Figure::CpuPerRequest), "not measured");
    assert_eq!(super::tables::value(&load.rows[0], Figure::CpuPerRequest), "not counted here");
    assert_eq!(super::tables::value(&load.rows[0], Figure::Capacity), "not measured");
}

#[test]
fn an_exhibit_without_its_rounds_keeps_the_notes_that_say_why() {
    let why = "no rates: no capacity was found that they could be shares of: the fleet sent late";
    let report = report_of(Part::Policies, vec![load(LoadKind::Closed)], &[why, "another note"]);
    let figure = report.exhibits.iter().find(|exhibit| exhibit.id == "figure-5").unwrap();
    assert_eq!(figure.glance, format!("not measured: {why}"));
    assert!(figure.notes.iter().any(|note| note == "another note"), "{:?}", figure.notes);
}
