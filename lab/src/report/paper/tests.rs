//! Reports of results that were never measured.

use crate::engine::DistanceClass;

use super::*;
use crate::engine::{Figure, LoadKind, LoadResult, Measured, Turn, results_of};
use crate::experiments::paper::PartResult;

/// Vanilla, and kernel polling with 1.75 of its throughput.
fn load(kind: LoadKind) -> LoadResult {
    let names = ["vanilla, epoll", "kernel-polling, epoll"];
    let mut results =
        results_of(&[("closed loop", kind, 500.0, None)], &names, &[0], 6, |_, contender, _| {
            let qps = [1000.0, 1750.0][contender];
            Turn::new([(Figure::Throughput, qps), (Figure::App, 12.5), (Figure::P99, 300.0)])
        });
    LoadResult { class: DistanceClass::Near, ..results.loads.remove(0) }
}

fn part(loads: Vec<LoadResult>, notes: &[&str]) -> PartOutcome {
    let published = ["Vanilla", "Kernel Polling"].map(|name| Some(name.to_owned())).into();
    let notes = notes.iter().map(|&note| note.to_owned()).collect();
    PartOutcome::Measured {
        saved: false,
        result: PartResult { published, loads, notes, ..PartResult::empty() },
    }
}

/// The report of a part.
fn report_of(of: Part, loads: Vec<LoadResult>, notes: &[&str]) -> PaperReport {
    report_with(vec![(of, part(loads, notes))])
}

fn report_with(parts: Vec<(Part, PartOutcome)>) -> PaperReport {
    let cores = CoreAssignment { server: 0, client: 1, packing: 1 };
    PaperReport::new(PaperConfig::new(true), cores, true, PaperResult::for_tests(parts))
}

fn report() -> PaperReport {
    report_with(vec![
        (Part::Policies, part(vec![load(LoadKind::Closed), load(LoadKind::Open)], &["a <note>"])),
        (Part::Web, PartOutcome::Missing("nginx is not installed".to_owned())),
    ])
}

#[test]
fn every_table_and_figure_is_in_both_reports_with_the_papers_numbers_beside_this_machines() {
    let report = report();
    for text in [report.document().markdown(), report.document().html().replace("&amp;", "&")] {
        for exhibit in &EXHIBITS {
            assert!(text.contains(&format!("{}: {}", exhibit.name, exhibit.caption)), "{}", exhibit.name);
        }
        for expected in
            ["947021", "1.31", "1750 [1750, 1750]", "1.75 [1.75, 1.75]", "18569 / not counted here"]
        {
            assert!(text.contains(expected), "no {expected} in {text}");
        }
        assert!(text.contains("Not measured here: nginx is not installed."), "{text}");
        assert!(text.contains("Not measured here: needs a server on the cores of two NUMA nodes"), "{text}");
        assert!(text.contains("Not measured here: needs a network stack in user space"), "{text}");
    }
}

#[test]
fn the_page_has_its_plots_in_it_and_escapes_text() {
    let html = report().document().html();
    assert_eq!(html.matches("<svg").count(), 2, "Table 5 and Figure 5");
    assert!(html.contains("a &lt;note&gt;") && !html.contains("{{"), "{html}");
    assert!(!html.contains("src=") && html.contains("prefers-color-scheme: dark"));
}

#[test]
fn files_of_the_report_are_written_beside_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let report = report();
    report.document().write(folder.path(), &report).unwrap();
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(read("report.md").contains("(table-5.svg)"));
    assert!(read("table-5.svg").contains("prefers-color-scheme:dark"));
    let json: serde_json::Value = serde_json::from_str(&read("results.json")).unwrap();
    // Those of the paper, and one beside Table 5.
    assert_eq!(json["exhibits"].as_array().map(Vec::len), Some(EXHIBITS.len() + 1));
    assert!(read("figure-5.svg").contains("<svg"));
}

#[test]
fn a_distance_that_only_other_loads_have_most_rounds_at_does_not_hide_the_closed_loop() {
    // Far has more rounds over all, and none of the closed loop.
    let open = LoadResult { class: DistanceClass::Far, rounds: 50, ..load(LoadKind::Open) };
    let report = report_of(Part::Policies, vec![open, load(LoadKind::Closed)], &[]);
    let glance = |id: &str| &report.exhibits.iter().find(|exhibit| exhibit.id == id).unwrap().glance;
    assert!(glance("table-5").contains("kernel-polling, epoll 1.75"), "{}", glance("table-5"));
    assert!(glance("figure-5").contains("kernel-polling, epoll 1.75"), "{}", glance("figure-5"));
    let report = report_of(Part::Attached, vec![load(LoadKind::Closed)], &[]);
    let attached = report.exhibits.iter().find(|exhibit| exhibit.id == "attached").unwrap();
    assert!(attached.glance.contains("(Lull's under kernel polling) 1.75"), "{}", attached.glance);
}

#[test]
fn memory_does_not_make_a_row_without_a_valid_turn_measured() {
    let mut load = load(LoadKind::Closed);
    load.rows[1].figures.clear();
    load.rows[1].figures.insert(Figure::ConnectionBytes, Measured::once(99.9));
    assert_eq!(super::tables::value(&load.rows[1], Figure::CpuPerRequest), "not measured");
    assert_eq!(super::tables::value(&load.rows[0], Figure::CpuPerRequest), "not counted here");
    assert_eq!(super::tables::value(&load.rows[0], Figure::Capacity), "not measured");
}

#[test]
fn an_exhibit_without_its_rounds_keeps_the_notes_that_say_why() {
    let why = "no capacity was found that rates could be shares of: the fleet sent late";
    let report = report_of(Part::Policies, vec![load(LoadKind::Closed)], &[why, "another note"]);
    let figure = report.exhibits.iter().find(|exhibit| exhibit.id == "figure-5").unwrap();
    assert_eq!(figure.glance, format!("not measured: {why}"));
    assert!(figure.notes.iter().any(|note| note == "another note"), "{:?}", figure.notes);
}
