//! A table or figure of the paper, and what this machine shows of it.

use crate::engine::DistanceClass;

use super::super::document::{Plot, Section, Table};
use super::super::figures::{class_suffix, rate_plot};
use super::plots::{connections_plot, ratio_plot};
use super::tables;
use crate::engine::{Figure, LoadKind, LoadResult};
use crate::experiments::paper::{Exhibit, Needs, PaperResult, Part, PartOutcome, PartResult};

/// An exhibit of the paper.
pub(super) fn exhibit_section(exhibit: &Exhibit, result: &PaperResult) -> Section {
    let mut report = Section {
        caption: exhibit.caption.to_owned(),
        place: format!("{}, {}", exhibit.name, section(exhibit)),
        statements: exhibit.statements.iter().map(|&statement| statement.to_owned()).collect(),
        tables: tables::published(exhibit).into_iter().collect(),
        ..Section::new(exhibit.id, exhibit.name)
    };
    if exhibit.rows.is_empty() {
        report
            .notes
            .push("the paper draws this as an image; its text has no numbers of the curves".to_owned());
    }
    match measured_or_reason(exhibit, result) {
        Ok(part) => show(&mut report, exhibit, part),
        Err(reason) => miss(&mut report, exhibit, reason),
    }
    report
}

/// What the paper doesn't have: memcached as it runs and attached to, beside Lull's, so that the policy's part of a
/// gain is told from the runtime's.
pub(super) fn attached_section(table_5: &Exhibit, result: &PaperResult) -> Section {
    let mut report = Section {
        caption: "unmodified memcached, memcached under `policies attach`, and Lull's: how much of a gain comes from the policy"
            .to_owned(),
        place: "not in the paper, which changed the kernel under one memcached".to_owned(),
        ..Section::new("attached", "Beside Table 5")
    };
    match part(Part::Attached, result) {
        Ok(part) => {
            report.differs.extend(differs(part));
            report.tables.extend(capacity_tables(part));
            report.tables.extend(closed_loop_tables(table_5, part));
            report.tables.extend(latency_tables(part));
            add_plots(
                &mut report,
                [
                    leading(part, LoadKind::Closed)
                        .and_then(|class| ratio_plot(table_5, part, class))
                        .map(|plot| plot.map(|it| Plot { name: "attached".to_owned(), ..it })),
                    latency_plot("attached-latency", part),
                ],
            );
            report.glance = parts_of_gain(part);
            report.notes.extend(part.notes.iter().cloned());
        }
        Err(reason) => refuse(&mut report, reason),
    }
    report
}

fn show(report: &mut Section, exhibit: &Exhibit, part: &PartResult) {
    report.differs.extend(differs(part));
    report.differs.push(
        match exhibit.id {
            "table-2" => {
                "nginx of this machine, with kernel polling attached from outside, in the place of F-Stack, which is \
                 not measured: it needs a NIC with DPDK"
            }
            "figure-9" => "Lull's memcached on the kernel's stack; no user-level stack takes part",
            _ => "Lull's memcached on epoll in the place of memcached 1.6.9",
        }
        .to_owned(),
    );
    report.notes.extend(part.notes.iter().cloned());
    let kind = match exhibit.id {
        "figure-5" => {
            report.tables.extend(capacity_tables(part));
            report.tables.extend(latency_tables(part));
            LoadKind::Open
        }
        "figure-9" => {
            let figures = [
                Figure::Throughput,
                Figure::CpuPerRequest,
                Figure::ConnectionBytes,
                Figure::KernelConnectionBytes,
                Figure::CacheMisses,
            ];
            let ratios = [Figure::Throughput];
            report.tables.extend(tables::figures(
                "By connections",
                part,
                LoadKind::Closed,
                &figures,
                &ratios,
            ));
            LoadKind::Closed
        }
        _ => {
            report.tables.extend(closed_loop_tables(exhibit, part));
            LoadKind::Closed
        }
    };
    let Some(class) = leading(part, kind) else {
        let reason = part.notes.iter().find(|note| note.starts_with("no capacity"));
        let reason = reason.filter(|_| kind == LoadKind::Open).cloned();
        refuse(report, reason.unwrap_or_else(|| "no round was completed".to_owned()));
        return;
    };
    let plots = match exhibit.id {
        "figure-5" => [latency_plot(exhibit.id, part), None],
        "figure-9" => [
            connections_plot(exhibit.id, Figure::Throughput, part, class),
            connections_plot("figure-9-misses", Figure::CacheMisses, part, class),
        ],
        _ => [ratio_plot(exhibit, part, class), None],
    };
    add_plots(report, plots);
    report.glance = glance(exhibit, part);
}

fn add_plots(report: &mut Section, plots: [Option<Result<Plot, String>>; 2]) {
    plots.into_iter().flatten().for_each(|plot| report.add_plot(plot));
}

/// Not measured, with the paper's numbers beside the reason.
fn miss(report: &mut Section, exhibit: &Exhibit, reason: String) {
    refuse(report, reason.clone());
    if let (Some(first), Some(last)) = (exhibit.rows.first(), exhibit.rows.last()) {
        let ratio = exhibit.ratio(last);
        report.glance =
            format!("the paper: {} {ratio:.2} × {}; here not measured: {reason}", last.system, first.system);
    }
}

fn refuse(report: &mut Section, reason: String) {
    report.glance = format!("not measured: {reason}");
    report.missing = Some(reason);
}
/// The 99th percentile against throughput.
fn latency_plot(name: &str, part: &PartResult) -> Option<Result<Plot, String>> {
    rate_plot(name, &tables::loads(part, LoadKind::Open, leading(part, LoadKind::Open)?), Figure::P99)
}

/// The distance of the cores at which most rounds of a kind of load were completed.
fn leading(part: &PartResult, kind: LoadKind) -> Option<DistanceClass> {
    tables::classes_of(part, kind).first().copied()
}

/// The tables of the closed loop, for each distance at which it has rounds.
fn closed_loop_tables(exhibit: &Exhibit, part: &PartResult) -> Vec<Table> {
    let classes = tables::classes_of(part, LoadKind::Closed).into_iter();
    let tables = |class| [tables::throughput(exhibit, part, class), tables::breakdown(exhibit, part, class)];
    classes.flat_map(tables).collect()
}

fn latency_tables(part: &PartResult) -> Vec<Table> {
    let figures = [Figure::Throughput, Figure::P50, Figure::P99, Figure::CpuPerRequest];
    let ratios = [Figure::P99, Figure::CpuPerRequest];
    tables::figures("Latency against throughput", part, LoadKind::Open, &figures, &ratios)
}

fn capacity_tables(part: &PartResult) -> Vec<Table> {
    tables::figures("Highest rate", part, LoadKind::Capacity, &[Figure::Capacity], &[Figure::Capacity])
}

/// Where the paper has an exhibit.
fn section(exhibit: &Exhibit) -> String {
    if exhibit.section.starts_with(|first: char| first.is_ascii_digit()) {
        format!("section {}", exhibit.section)
    } else {
        exhibit.section.to_owned()
    }
}

/// The part that measured an exhibit, or why none did.
fn measured_or_reason<'a>(exhibit: &Exhibit, result: &'a PaperResult) -> Result<&'a PartResult, String> {
    match exhibit.needs {
        Needs::Part(needed) => part(needed, result),
        Needs::UserLevelStack => {
            Err("needs a network stack in user space, which lab no longer runs".to_owned())
        }
        Needs::TwoNodes => Err(format!(
            "needs a server on the cores of two NUMA nodes, which lab's testbed of one queue and one worker doesn't have; \
             this machine has {}",
            result.numa_nodes
        )),
    }
}

fn part(part: Part, result: &PaperResult) -> Result<&PartResult, String> {
    match result.outcome(part) {
        Some(PartOutcome::Measured { result, .. }) if !result.loads.is_empty() => Ok(result),
        Some(PartOutcome::Measured { .. }) => Err("no round was completed".to_owned()),
        Some(PartOutcome::Missing(reason)) => Err(reason.clone()),
        None => Err("it was not run".to_owned()),
    }
}

/// What differs for all that was measured.
fn differs(part: &PartResult) -> Vec<String> {
    vec![
        "one core of the server in the place of 8, or of the 1 of Table 1 and Figure 9".to_owned(),
        "a veth pair between two network namespaces in the place of a 10 GbE NIC; a real-time kernel thread stands in for \
         its interrupt, and packets per interrupt are per wake-up of that thread"
            .to_owned(),
        format!("load: {}; in the paper seven machines", part.workload),
        "kernel polling by the law of this runtime, which at saturation polls by a timer, in the place of the authors' patch, \
         which masks interrupts while the application runs"
            .to_owned(),
        "each avoided wake-up saves more CPU time in a virtual machine than an interrupt did on the paper's hardware, so ratios \
         are not comparable with the paper's before that is taken out"
            .to_owned(),
    ]
}

/// The ratio of one row under the first load of a kind.
fn ratio_of(part: &PartResult, kind: LoadKind, figure: Figure, system: &str) -> Option<String> {
    let load = tables::loads(part, kind, leading(part, kind)?).into_iter().next()?;
    let row = load.rows.iter().find(|row| row.contender == system)?;
    Some(tables::ratio(row, figure))
}

/// The sentence of the overview: the first and the last load.
fn glance(exhibit: &Exhibit, part: &PartResult) -> String {
    let (kind, figure) = match exhibit.id {
        "figure-5" if leading(part, LoadKind::Capacity).is_some() => (LoadKind::Capacity, Figure::Capacity),
        "figure-5" => (LoadKind::Open, Figure::Throughput),
        _ => (LoadKind::Closed, Figure::Throughput),
    };
    let Some(class) = leading(part, kind) else {
        return "not measured: no round was completed".to_owned();
    };
    let loads = tables::loads(part, kind, class);
    let ends = if loads.len() > 1 { vec![loads[0], loads[loads.len() - 1]] } else { loads };
    let sentence = |load: &LoadResult| {
        let others = load.rows.iter().enumerate().filter(|(_, row)| row.contender != part.reference);
        let rows = others.map(|(index, row)| {
            let here = times(&tables::ratio(row, figure));
            match tables::beside(exhibit, part, load, index) {
                Some(published) => {
                    let paper = exhibit.ratio(published);
                    format!("{} {here} (the paper's {}: {paper:.2} ×)", row.contender, published.system)
                }
                None => format!("{} {here}", row.contender),
            }
        });
        let class = class_suffix(class);
        format!("{}{class}, over {}: {}", load.name, part.reference, rows.collect::<Vec<_>>().join("; "))
    };
    ends.into_iter().map(sentence).collect::<Vec<_>>().join(". ")
}

/// A ratio with its sign, unless it was not measured.
fn times(ratio: &str) -> String {
    if ratio.starts_with(|first: char| first.is_ascii_digit()) {
        format!("{ratio} ×")
    } else {
        ratio.to_owned()
    }
}

/// What of a gain is the policy's, and what the runtime's.
fn parts_of_gain(part: &PartResult) -> String {
    let ratio = |system: &str| {
        ratio_of(part, LoadKind::Closed, Figure::Throughput, system)
            .unwrap_or_else(|| "not measured".to_owned())
    };
    let load = part.loads.iter().find(|load| load.kind == LoadKind::Closed);
    let attached = load.and_then(|load| load.rows.iter().find(|row| row.contender.contains("attached")));
    let attached = attached.map(|row| ratio(&row.contender)).unwrap_or_else(|| "not measured".to_owned());
    format!(
        "closed loop, over memcached as it runs: the policy alone (attached) {attached}; the runtime alone (Lull's under \
         vanilla) {}; both (Lull's under kernel polling) {}",
        ratio("vanilla, epoll"),
        ratio("kernel-polling, epoll")
    )
}
