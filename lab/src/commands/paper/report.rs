//! The report of `lab paper`: for each table and figure the paper's numbers beside this machine's.

use policies::host::Machine;
use serde::Serialize;

use super::parts::{PaperConfig, Part, PartResult, Parts};
use super::programs::Programs;
use super::published::{CITATION, EXHIBITS, Exhibit, Needs, PublishedRow, SETUP};
use crate::commands::comparison::is_virtual;
use crate::cores::CoreAssignment;
use crate::instructions::{Counted, DEVICES, Row, counts_table};
use crate::report::plots::{Axis, lines};
use crate::report::tables::{NONE, class_suffix, classes, ratio, sections, series};
use crate::report::{Document, Section, Table};
use crate::rounds::{Figure, LoadKind, LoadResult};
use crate::testbed::CONGESTION_CONTROL;

#[derive(Debug, Serialize)]
pub struct PaperReport {
    pub paper: &'static str,
    pub paper_setup: &'static str,
    pub machine: Machine,
    pub cores: CoreAssignment,
    pub congestion_control: &'static str,
    pub cores_awake: bool,
    pub config: PaperConfig,
    pub programs: Programs,
    /// Of `lab instructions`, if it has run.
    pub counted: Option<Counted>,
    exhibits: Vec<Section>,
    pub parts: Parts,
}

impl PaperReport {
    pub fn new(
        config: PaperConfig,
        cores: CoreAssignment,
        cores_awake: bool,
        programs: Programs,
        parts: Parts,
        counted: Option<Counted>,
    ) -> Self {
        Self {
            paper: CITATION,
            paper_setup: SETUP,
            machine: Machine::read(),
            cores,
            congestion_control: CONGESTION_CONTROL,
            cores_awake,
            config,
            programs,
            exhibits: EXHIBITS.iter().map(|it| exhibit_section(it, &parts, counted.as_ref())).collect(),
            counted,
            parts,
        }
    }

    pub fn document(&self) -> Document {
        Document {
            title: "The paper on this machine".to_owned(),
            findings: vec![self.paper.to_owned()],
            conditions: self.conditions(),
            sections: self.exhibits.clone(),
        }
    }

    pub fn summary(&self) -> String {
        self.exhibits.iter().map(|exhibit| format!("{}: {}\n", exhibit.name, exhibit.glance)).collect()
    }

    fn conditions(&self) -> Vec<String> {
        let (server, client, packing) = (self.cores.server(), self.cores.client(), self.cores.packing);
        let PaperConfig { records, connection_records, .. } = &self.config;
        let mut sentences = vec![
            format!("This machine: {}{}.", self.machine, if is_virtual() { ", a virtual machine" } else { "" }),
            format!("The paper's: {SETUP}."),
            format!(
                "Server on core {server}, load on core {client}, packing on core {packing}; congestion control \
                 {CONGESTION_CONTROL}; idle cores {}.",
                if self.cores_awake { "poll" } else { "sleep, which adds to latencies" }
            ),
            format!("{records} records ({connection_records} for Figure 9), of the paper's 1000000."),
            "Figures are medians of rounds with 95 % intervals; ratios are taken within rounds. Turns with steal are \
             repeated until that has taken half of a load's time; later ones are kept, and the notes say how many. Turns \
             during which the distance of the cores changed are left out. Fewer than six rounds give no interval."
                .to_owned(),
        ];
        let parts = self.parts.iter().filter_map(|(_, result)| result.as_ref().ok());
        let mut rows = parts.flat_map(|part| &part.loads).flat_map(|load| &load.rows);
        if !rows.any(|row| row.figures.contains_key(&Figure::Instructions)) {
            sentences.push(
                "This machine counts no instructions, cycles and cache misses (no performance counters, or no permission). \
                 `lab instructions` counts them on an emulated machine, whose caches are a model, and Table 5 has them after it \
                 has run. Its user code contains the runtime and libraries, which the paper counts as Sys."
                    .to_owned(),
            );
        }
        sentences.extend(self.programs.nginx.as_ref().map(|version| format!("Other programs: {version}.")));
        sentences
    }
}

/// An exhibit of the paper, and what this machine shows of it.
fn exhibit_section(exhibit: &Exhibit, parts: &Parts, counted: Option<&Counted>) -> Section {
    let is_section = exhibit.section.starts_with(|first: char| first.is_ascii_digit());
    let place = if is_section { format!("section {}", exhibit.section) } else { exhibit.section.clone() };
    let mut section = Section {
        caption: format!("{} ({place})", exhibit.caption),
        statements: exhibit.statements.clone(),
        ..Section::new(&exhibit.id, &exhibit.name)
    };
    if exhibit.rows.is_empty() {
        let note = "the paper draws this as an image; its text has no numbers of the curves";
        section.notes.push(note.to_owned());
    } else {
        section.tables.push(published_table(exhibit));
    }
    let needed = match exhibit.needs {
        Needs::Part(needed) => part(needed, parts).map(|result| (needed, result)),
        Needs::UserLevelStack => Err("needs a network stack in user space, which lab no longer runs"),
        Needs::TwoNodes => Err(
            "needs a server on the cores of two NUMA nodes, which lab's testbed of one queue and one worker doesn't have",
        ),
    };
    match needed {
        Ok((needed, result)) => show(&mut section, exhibit, needed, result),
        Err(reason) => {
            miss(&mut section, reason);
            if let (Some(first), Some(last)) = (exhibit.rows.first(), exhibit.rows.last()) {
                let (system, first, ratio) = (&last.system, &first.system, exhibit.ratio(last));
                section.glance =
                    format!("the paper: {system} {ratio:.2} × {first}; here not measured: {reason}");
            }
        }
    }
    if exhibit.needs == Needs::Part(Part::Policies) && !exhibit.rows.is_empty() {
        section.tables.extend(counted.into_iter().flat_map(counted_tables));
    }
    section
}

/// What was measured for an exhibit.
fn show(section: &mut Section, exhibit: &Exhibit, part: Part, result: &PartResult) {
    let kind = kind(exhibit, part);
    section.notes.insert(0, format!("differs: {}", part.instead()));
    section.notes.extend(differs(result).map(|it| format!("differs: {it}")));
    section.notes.extend(result.notes.iter().cloned());
    let loads: Vec<LoadResult> = result.loads.iter().filter(|load| load.kind == kind).cloned().collect();
    if loads.is_empty() {
        return miss(section, "no round was completed");
    }
    section.glance = glance(exhibit, part, &loads);
    for of_kind in sections(&loads, &[]) {
        section.tables.extend(of_kind.tables);
        section.plots.extend(of_kind.plots);
    }
    if part == Part::Connections {
        let loads: Vec<&LoadResult> = loads.iter().collect();
        let x = Axis { title: "connections", logarithmic: true };
        let y = Axis { title: Figure::Throughput.title(), logarithmic: false };
        let svg = lines(x, y, &series(&loads, Figure::Throughput, |load, _| Some(load.at)));
        section.add_plot("requests per second by connections, 95 % intervals", svg);
    }
}

/// A figure of the policies is a curve over rates. All else is a closed loop.
fn kind(exhibit: &Exhibit, part: Part) -> LoadKind {
    match part {
        Part::Policies if exhibit.rows.is_empty() => LoadKind::Open,
        _ => LoadKind::Closed,
    }
}

fn miss(section: &mut Section, reason: &str) {
    section.glance = format!("not measured: {reason}");
    section.missing = Some(reason.to_owned());
}

fn part(part: Part, parts: &Parts) -> Result<&PartResult, &str> {
    match parts.iter().find(|(other, _)| *other == part) {
        Some((_, Ok(result))) if !result.loads.is_empty() => Ok(result),
        Some((_, Ok(_))) => Err("no round was completed"),
        Some((_, Err(reason))) => Err(reason),
        None => Err("it was not run"),
    }
}

fn published_table(exhibit: &Exhibit) -> Table {
    let header = [
        "",
        "QPT (T=1s)",
        "ratio",
        "IPQ App",
        "IPQ Sys",
        "IPQ Total",
        "Cycles App",
        "Cycles Sys",
        "IPC",
        "pkts/irq",
    ];
    let row = |row: &PublishedRow| {
        vec![
            row.system.clone(),
            row.queries.to_string(),
            format!("{:.2}", exhibit.ratio(row)),
            row.instructions_app.to_string(),
            row.instructions_system.to_string(),
            row.instructions.to_string(),
            format!("{}%", row.cycles_app),
            format!("{}%", row.cycles_system),
            row.instructions_per_cycle.to_string(),
            row.packets_per_interrupt.map_or_else(|| NONE.to_owned(), |packets| packets.to_string()),
        ]
    };
    Table::new("The paper", &header, exhibit.rows.iter().map(row).collect())
}

/// The row of the paper that a contender is beside.
fn published_row<'a>(exhibit: &'a Exhibit, part: Part, contender: &str) -> Option<&'a PublishedRow> {
    let systems: &[(&str, &str)] = match part {
        Part::Policies => &[
            ("vanilla", "Vanilla"),
            ("packing", "IRQ Packing"),
            ("suppression", "IRQ Suppression"),
            ("kernel-polling", "Kernel Polling"),
        ],
        Part::Web => &[("nginx, attached", "F-Stack"), ("nginx", "Vanilla")],
        Part::Connections => &[],
    };
    exhibit.row(systems.iter().find(|(prefix, _)| contender.starts_with(prefix))?.1)
}

fn differs(part: &PartResult) -> impl Iterator<Item = String> {
    [
        "one core of the server in the place of 8, or of the 1 of Table 1 and Figure 9",
        "a veth pair between two network namespaces in the place of a 10 GbE NIC; a real-time kernel thread stands in for \
         its interrupt, and packets per interrupt are per wake-up of that thread",
        &format!("load: {}; in the paper seven machines", part.workload),
        "kernel polling by this runtime's rule, which polls by the worker's timer, in the place of the authors' patch, \
         which masks interrupts while the application runs",
        "each avoided wake-up saves more CPU time in a virtual machine than an interrupt did on the paper's hardware, so ratios \
         are larger than they would be there",
    ]
    .map(str::to_owned)
    .into_iter()
}

/// The sentence of the overview: the first and the last of these loads, in the class in which they
/// have most rounds.
fn glance(exhibit: &Exhibit, part: Part, loads: &[LoadResult]) -> String {
    let class = classes(loads).first().copied();
    let mut loads: Vec<&LoadResult> = loads.iter().filter(|load| Some(load.class) == class).collect();
    loads.sort_by(|a, b| a.at.total_cmp(&b.at));
    let sentence = |load: &LoadResult| {
        // What is answered at a rate is the rate.
        let is_open = load.kind == LoadKind::Open;
        let figure = if is_open { Figure::CpuPerRequest } else { Figure::Throughput };
        let what = if is_open { "CPU time of a request " } else { "" };
        let rows = load.rows.iter().enumerate().skip(1).map(|(index, row)| {
            let here = ratio(load, index, figure);
            // Not every cell has a ratio.
            let is_ratio = here.starts_with(|first: char| first.is_ascii_digit());
            let here = if is_ratio { format!("{here} ×") } else { here };
            match published_row(exhibit, part, &row.contender) {
                Some(published) => {
                    let paper = exhibit.ratio(published);
                    format!("{} {here} (the paper's {}: {paper:.2} ×)", row.contender, published.system)
                }
                None => format!("{} {here}", row.contender),
            }
        });
        let (suffix, rows) = (class_suffix(load.class), rows.collect::<Vec<_>>().join("; "));
        format!("{}{suffix}, {what}over {}: {rows}", load.name, load.rows[0].contender)
    };
    let ends = loads.first().into_iter().chain(loads.last().filter(|_| loads.len() > 1));
    ends.map(|load| sentence(load)).collect::<Vec<_>>().join(". ")
}

/// What a machine without performance counters lacks of a table, as `lab instructions` has counted
/// it in a closed loop. A table for each emulated NIC.
fn counted_tables(counted: &Counted) -> Vec<Table> {
    let table = |device: &&str| {
        let mut rows = Vec::new();
        for row in &counted.rows {
            let is_closed = row.device == *device && row.driver == "epoll" && row.load.starts_with("0:");
            // Reports of before may have counted a policy twice.
            if is_closed && !rows.iter().any(|other: &&Row| other.policy == row.policy) {
                rows.push(row);
            }
        }
        let title = format!(
            "Counted by `lab instructions` on an emulated machine, a request (Linux {}, {device}, epoll, closed loop)",
            counted.kernel
        );
        (!rows.is_empty()).then(|| counts_table(title, &rows))
    };
    DEVICES.iter().filter_map(table).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounds::{DistanceClass, Turn, results_of};

    /// Vanilla, and kernel polling with 1.75 of its throughput.
    fn load(kind: LoadKind) -> LoadResult {
        let names = ["vanilla, epoll", "kernel-polling, epoll"];
        let mut results = results_of(&[("closed loop", kind, 500.0)], &names, &[0], 6, |_, contender, _| {
            let qps = [1000.0, 1750.0][contender];
            let cpu = (Figure::CpuPerRequest, [10.0, 8.0][contender]);
            Turn::new([(Figure::Throughput, qps), (Figure::App, 12.5), (Figure::P99, 300.0), cpu])
        });
        LoadResult { class: DistanceClass::Near, ..results.loads.remove(0) }
    }

    fn part(loads: Vec<LoadResult>, notes: &[&str]) -> Result<PartResult, String> {
        Ok(PartResult {
            workload: "a fleet".to_owned(),
            loads,
            notes: notes.iter().map(|&note| note.to_owned()).collect(),
        })
    }

    fn report_with(parts: Parts) -> PaperReport {
        let cores = CoreAssignment { servers: vec![0], clients: vec![1], packing: 1 };
        PaperReport::new(PaperConfig::new(true), cores, true, Programs::default(), parts, None)
    }

    #[test]
    fn table_5_has_the_counts_of_an_emulated_machine_below_the_papers() {
        // Those that the page on instructions shows.
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/benchmarks/instructions.json");
        let counted = Counted::read(std::path::Path::new(file)).unwrap();
        let tables = counted_tables(&counted);
        assert!(
            tables[0].title.contains("Linux 7.3.4+deb13-amd64, virtio-net-pci, epoll, closed loop"),
            "{tables:?}"
        );
        let names: Vec<&String> = tables[0].rows.iter().map(|row| &row[0]).collect();
        assert_eq!(names, ["vanilla", "packing", "suppression", "kernel-polling", "kernel-polling:200"]);
        // Instructions, those of user code, and packets per interrupt.
        let vanilla = &tables[0].rows[0];
        assert_eq!([&vanilla[1], &vanilla[3], &vanilla[13]], ["24826", "3393", "13.0"]);
        let cores = CoreAssignment { servers: vec![0], clients: vec![1], packing: 1 };
        let config = PaperConfig::new(true);
        let report = PaperReport::new(config, cores, true, Programs::default(), Vec::new(), Some(counted));
        let text = report.document().text();
        assert!(text.contains("on an emulated machine") && text.contains("24826"), "{text}");
    }

    #[test]
    fn a_distance_that_only_other_loads_have_most_rounds_at_does_not_hide_the_closed_loop() {
        // Far has more rounds over all, and none of the closed loop.
        let open = LoadResult { class: DistanceClass::Far, rounds: 50, ..load(LoadKind::Open) };
        let report = report_with(vec![(Part::Policies, part(vec![open, load(LoadKind::Closed)], &[]))]);
        let glance = |id: &str| &report.exhibits.iter().find(|exhibit| exhibit.id == id).unwrap().glance;
        assert!(glance("table-5").contains("kernel-polling, epoll 1.75"), "{}", glance("table-5"));
        let of_cpu = "CPU time of a request over vanilla, epoll: kernel-polling, epoll 0.80";
        assert!(glance("figure-5").contains(of_cpu), "{}", glance("figure-5"));
    }

    #[test]
    fn an_exhibit_without_its_rounds_keeps_the_notes_that_say_why() {
        let measured = part(vec![load(LoadKind::Closed)], &["another note"]);
        let report = report_with(vec![(Part::Policies, measured)]);
        let figure = report.exhibits.iter().find(|exhibit| exhibit.id == "figure-5").unwrap();
        assert_eq!(figure.glance, "not measured: no round was completed");
        assert!(figure.notes.iter().any(|note| note == "another note"), "{:?}", figure.notes);
    }
}
