//! A table or figure of the paper, and what this machine shows of it.

use loadgen::interleaved_rounds::DistanceClass;
use serde::Serialize;

use super::plots::{ReportPlot, connections_plot, latency_plot, ratio_plot};
use super::tables::{self, ReportTable};
use crate::experiments::paper::{
    Exhibit, Figure, LoadKind, MeasuredLoad, Needs, PaperResult, Part, PartOutcome, PartResult,
};

/// Whether it is measured here.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Status {
    /// It is.
    Measured,
    /// It is not, for this reason.
    NotMeasured(String),
}

/// An exhibit of the report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ExhibitReport {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) caption: String,
    /// Where the paper has it.
    pub(super) place: String,
    pub(super) status: Status,
    /// One sentence for the overview.
    pub(super) glance: String,
    /// What the paper's text says of it in numbers.
    pub(super) statements: Vec<String>,
    /// What differs from the paper.
    pub(super) differs: Vec<String>,
    /// The paper's rows, and those of this machine.
    pub(super) tables: Vec<ReportTable>,
    pub(super) plots: Vec<ReportPlot>,
    pub(super) notes: Vec<String>,
}

impl ExhibitReport {
    /// An exhibit of the paper.
    pub(super) fn new(exhibit: &Exhibit, result: &PaperResult) -> Self {
        let mut report = Self {
            id: exhibit.id.to_owned(),
            name: exhibit.name.to_owned(),
            caption: exhibit.caption.to_owned(),
            place: format!("{}, {}", exhibit.name, section(exhibit)),
            status: Status::Measured,
            glance: String::new(),
            statements: exhibit.statements.iter().map(|&statement| statement.to_owned()).collect(),
            differs: Vec::new(),
            tables: tables::published(exhibit).into_iter().collect(),
            plots: Vec::new(),
            notes: Vec::new(),
        };
        if exhibit.rows.is_empty() {
            report
                .notes
                .push("the paper draws this as an image; its text has no numbers of the curves".to_owned());
        }
        match measured_or_reason(exhibit, result) {
            Ok(part) => report.show(exhibit, part),
            Err(reason) => report.miss(exhibit, reason),
        }
        report
    }

    /// What the paper doesn't have: memcached as it runs and attached to, beside Lull's, so that the policy's part of a
    /// gain is told from the runtime's.
    pub(super) fn attached(table_5: &Exhibit, result: &PaperResult) -> Self {
        let mut report = Self {
            id: "attached".to_owned(),
            name: "Beside Table 5".to_owned(),
            caption: "unmodified memcached, memcached under `policies attach`, and Lull's: how much of a gain comes from the policy"
                .to_owned(),
            place: "not in the paper, which changed the kernel under one memcached".to_owned(),
            status: Status::Measured,
            glance: String::new(),
            statements: Vec::new(),
            differs: Vec::new(),
            tables: Vec::new(),
            plots: Vec::new(),
            notes: Vec::new(),
        };
        match part(Part::Attached, result) {
            Ok(part) => {
                report.differs.extend(differs(part));
                report.tables.extend(capacity_tables(part));
                report.tables.extend(closed_loop_tables(table_5, part));
                report.tables.extend(latency_tables(part));
                report.add_plots([
                    leading(part, LoadKind::Closed)
                        .and_then(|class| ratio_plot(table_5, part, class))
                        .map(|plot| plot.map(|it| ReportPlot { name: "attached".to_owned(), ..it })),
                    leading(part, LoadKind::Open)
                        .and_then(|class| latency_plot("attached-latency", part, class)),
                ]);
                report.glance = parts_of_gain(part);
                report.notes.extend(part.notes.iter().cloned());
            }
            Err(reason) => report.refuse(reason),
        }
        report
    }

    fn show(&mut self, exhibit: &Exhibit, part: &PartResult) {
        self.differs.extend(differs(part));
        self.differs.push(
            match exhibit.id {
                "table-2" => {
                    "nginx of this machine, with kernel polling attached from outside, in the place of F-Stack, which is \
                     not measured: it needs a NIC with DPDK"
                }
                "figure-9" => "Lull's memcached on the kernel's stack; no user-level stack takes part",
                "table-1" => {
                    "Lull's memcached on epoll in the place of memcached 1.6.9, and on smoltcp over AF_XDP in the place of \
                     F-Stack over DPDK, which has FreeBSD's TCP and a NIC without the kernel"
                }
                "table-3" => {
                    "Lull's memcached on epoll in the place of memcached 1.6.9, and on smoltcp over AF_XDP in the place of \
                     Caladan, which has a TCP and a scheduler of its own, and moves cores between applications; one core in \
                     the place of 6"
                }
                _ => "Lull's memcached on epoll in the place of memcached 1.6.9",
            }
            .to_owned(),
        );
        self.notes.extend(part.notes.iter().cloned());
        let kind = match exhibit.id {
            "figure-5" => {
                self.tables.extend(capacity_tables(part));
                self.tables.extend(latency_tables(part));
                LoadKind::Open
            }
            "figure-9" => {
                let classes = part.classes_of(LoadKind::Closed);
                self.tables.extend(classes.into_iter().map(|class| tables::connections(part, class)));
                LoadKind::Closed
            }
            _ => {
                self.tables.extend(closed_loop_tables(exhibit, part));
                LoadKind::Closed
            }
        };
        if matches!(exhibit.id, "table-1" | "table-3") {
            self.tables.extend(capacity_tables(part));
            self.tables.extend(latency_tables(part));
        }
        self.tables.extend(tables::idle(part));
        let Some(class) = leading(part, kind) else {
            let reason = part.notes.iter().find(|note| note.starts_with("no rates"));
            let reason = reason.filter(|_| kind == LoadKind::Open).cloned();
            self.refuse(reason.unwrap_or_else(|| "no round was completed".to_owned()));
            return;
        };
        let plots = match exhibit.id {
            "figure-5" => [latency_plot(exhibit.id, part, class), None],
            "figure-9" => [
                connections_plot(exhibit.id, Figure::Throughput, part, class),
                connections_plot("figure-9-misses", Figure::CacheMisses, part, class),
            ],
            _ => [ratio_plot(exhibit, part, class), None],
        };
        self.add_plots(plots);
        self.glance = glance(exhibit, part);
    }

    fn add_plots(&mut self, plots: [Option<Result<ReportPlot, String>>; 2]) {
        for plot in plots.into_iter().flatten() {
            match plot {
                Ok(plot) => self.plots.push(plot),
                Err(error) => self.notes.push(error),
            }
        }
    }

    /// Not measured, with the paper's numbers beside the reason.
    fn miss(&mut self, exhibit: &Exhibit, reason: String) {
        self.refuse(reason.clone());
        if let (Some(first), Some(last)) = (exhibit.rows.first(), exhibit.rows.last()) {
            let ratio = exhibit.ratio(last);
            self.glance = format!(
                "the paper: {} {ratio:.2} × {}; here not measured: {reason}",
                last.system, first.system
            );
        }
    }

    fn refuse(&mut self, reason: String) {
        self.glance = format!("not measured: {reason}");
        self.status = Status::NotMeasured(reason);
    }
}

/// The distance of the cores at which most rounds of a kind of load were completed.
fn leading(part: &PartResult, kind: LoadKind) -> Option<DistanceClass> {
    part.classes_of(kind).first().copied()
}

/// The tables of the closed loop, for each distance at which it has rounds.
fn closed_loop_tables(exhibit: &Exhibit, part: &PartResult) -> Vec<ReportTable> {
    let classes = part.classes_of(LoadKind::Closed).into_iter();
    let tables = |class| [tables::throughput(exhibit, part, class), tables::breakdown(exhibit, part, class)];
    classes.flat_map(tables).collect()
}

fn latency_tables(part: &PartResult) -> Vec<ReportTable> {
    part.classes_of(LoadKind::Open).into_iter().map(|class| tables::latency(part, class)).collect()
}

fn capacity_tables(part: &PartResult) -> Vec<ReportTable> {
    let classes = part.classes_of(LoadKind::Capacity).into_iter();
    classes.filter_map(|class| tables::capacities(part, class)).collect()
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
        Needs::TwoNodes if result.numa_nodes < 2 => {
            Err(format!("needs two NUMA nodes, and this machine has {}", result.numa_nodes))
        }
        Needs::TwoNodes => Err(format!(
            "this machine has {} NUMA nodes: `lab numa` compares servers on one of them and on two",
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
        "interrupt suspension of this kernel (Linux 6.13 and later) in the place of the authors' patch".to_owned(),
    ]
}

/// The ratio of one row under the first load of a kind.
fn ratio_of(part: &PartResult, kind: LoadKind, figure: Figure, system: &str) -> Option<String> {
    let load = tables::loads(part, kind, leading(part, kind)?).into_iter().next()?;
    let row = load.rows.iter().find(|row| row.system == system)?;
    Some(tables::ratio(row, figure, &part.reference))
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
    let sentence = |load: &MeasuredLoad| {
        let rows = load.rows.iter().filter(|row| row.system != part.reference).map(|row| {
            let here = times(&tables::ratio(row, figure, &part.reference));
            match tables::beside(exhibit, load, row) {
                Some(published) => {
                    let paper = exhibit.ratio(published);
                    format!("{} {here} (the paper's {}: {paper:.2} ×)", row.system, published.system)
                }
                None => format!("{} {here}", row.system),
            }
        });
        let class = tables::class_suffix(class);
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
    let attached = load.and_then(|load| load.rows.iter().find(|row| row.system.contains("attached")));
    let attached = attached.map(|row| ratio(&row.system)).unwrap_or_else(|| "not measured".to_owned());
    format!(
        "closed loop, over memcached as it runs: the policy alone (attached) {attached}; the runtime alone (Lull's under \
         vanilla) {}; both (Lull's under kernel polling) {}",
        ratio("vanilla, epoll"),
        ratio("kernel-polling, epoll")
    )
}
