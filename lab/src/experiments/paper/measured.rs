//! What the parts measured, in a form that is saved and read again.

use std::collections::BTreeMap;

use loadgen::interleaved_rounds::{DistanceClass, Round, figures, ratios};
use loadgen::medians::{Interval, median_interval};
use serde::{Deserialize, Serialize};

use super::super::fleet_comparison::ServerFigures;

/// A figure of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figure {
    /// Requests per second.
    Throughput,
    /// The highest rate that keeps the 99th percentile within a bound, requests per second.
    Capacity,
    /// Median latency, µs.
    P50,
    /// 99th percentile of the latency, µs.
    P99,
    /// CPU time of the server and of the kernel thread that receives for it, µs per request.
    CpuPerRequest,
    /// Instructions of the server's core per request.
    Instructions,
    /// Instructions per cycle.
    InstructionsPerCycle,
    /// The server's code, % of the CPU time of the server and of the kernel thread that receives for it.
    App,
    /// The kernel on behalf of both, % of the same.
    System,
    /// Softirqs beside those of system calls, % of the same.
    Softirq,
    /// Packets per interrupt, or per wake-up of the kernel thread that stands in for it.
    PacketsPerInterrupt,
    /// Misses of the last-level cache per request.
    CacheMisses,
    /// Resident memory of the server per connection, bytes.
    ConnectionBytes,
    /// Memory of the kernel per connection, bytes.
    KernelConnectionBytes,
    /// CPU time of the server and of the kernel thread that receives for it while nothing is asked, % of a core.
    IdleCpu,
}

impl Figure {
    /// The heading of its column.
    pub fn title(self) -> &'static str {
        match self {
            Self::Throughput => "requests/s",
            Self::Capacity => "capacity",
            Self::P50 => "p50 µs",
            Self::P99 => "p99 µs",
            Self::CpuPerRequest => "CPU µs/req",
            Self::Instructions => "instructions/req (IPQ)",
            Self::InstructionsPerCycle => "IPC",
            Self::App => "App %",
            Self::System => "system %",
            Self::Softirq => "softirq %",
            Self::PacketsPerInterrupt => "pkts/irq",
            Self::CacheMisses => "LLC misses/req",
            Self::ConnectionBytes => "bytes/connection",
            Self::KernelConnectionBytes => "kernel bytes/connection",
            Self::IdleCpu => "CPU at idle %",
        }
    }

    /// Digits after the point.
    pub fn digits(self) -> usize {
        match self {
            Self::CpuPerRequest | Self::InstructionsPerCycle | Self::CacheMisses => 2,
            Self::P50
            | Self::IdleCpu
            | Self::App
            | Self::System
            | Self::Softirq
            | Self::PacketsPerInterrupt => 1,
            _ => 0,
        }
    }
}

/// The median of the rounds, and of the ratios within rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MeasuredFigure {
    /// The figure.
    pub value: Interval,
    /// The figure over the reference's in the same round. `None` for the reference itself, and where there is none.
    pub ratio: Option<Interval>,
}

/// One contestant under one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredRow {
    /// The server and its policy, for example `kernel-polling, epoll`.
    pub system: String,
    /// The paper's row that it corresponds to.
    pub published: Option<String>,
    /// The figures. What the machine does not count is not there.
    pub figures: BTreeMap<Figure, MeasuredFigure>,
}

impl MeasuredRow {
    /// Whether a turn beside the search for the capacity was valid. Memory and CPU time at idle are measured without one.
    pub fn has_valid_turn(&self) -> bool {
        self.figures.contains_key(&Figure::Throughput)
    }
}

/// How a load is paced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoadKind {
    /// A search for the capacity.
    Capacity,
    /// Requests at a given rate.
    Open,
    /// Each connection sends again when it has its reply.
    Closed,
}

/// All contestants under one load, with the cores at one distance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredLoad {
    /// For example `closed loop`.
    pub name: String,
    /// How it is paced.
    pub kind: LoadKind,
    /// What loads differ in: requests per second, bytes of a file, or connections.
    pub at: f64,
    /// The distance of the cores.
    pub class: DistanceClass,
    /// Complete rounds.
    pub rounds: usize,
    /// The contestants.
    pub rows: Vec<MeasuredRow>,
}

/// The result of a part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartResult {
    /// What ratios refer to.
    pub reference: String,
    /// The load generator, the connections and the records, in a sentence.
    pub workload: String,
    /// All loads, those of the class with most rounds first.
    pub loads: Vec<MeasuredLoad>,
    /// What to doubt, a sentence each.
    pub notes: Vec<String>,
    /// Why later loads were not measured, if something failed. The next run measures such a part again.
    #[serde(default)]
    pub failure: Option<String>,
}

impl PartResult {
    /// The distances at which loads of one kind have rounds, the one with most of them first.
    pub fn classes_of(&self, kind: LoadKind) -> Vec<DistanceClass> {
        let loads = self.loads.iter().filter(|load| load.kind == kind);
        super::super::order_by_rounds(loads.map(|load| (load.class, load.rounds)))
    }

    /// Whether anything beside a capacity was measured.
    pub(super) fn has_figures(&self) -> bool {
        let loads = self.loads.iter().filter(|load| load.kind != LoadKind::Capacity);
        loads.flat_map(|load| &load.rows).any(MeasuredRow::has_valid_turn)
    }

    /// Puts the loads of the class with most rounds first.
    pub(super) fn sort_classes(&mut self) {
        let order = super::super::order_by_rounds(self.loads.iter().map(|load| (load.class, load.rounds)));
        self.loads.sort_by_key(|load| order.iter().position(|class| *class == load.class));
    }
}

/// Collects the figures of one contestant from the rounds.
#[derive(Debug)]
pub(super) struct FigureCollector<'a, T> {
    pub(super) rounds: &'a [Round<T>],
    pub(super) contestant: usize,
    pub(super) reference: usize,
    pub(super) figures: BTreeMap<Figure, MeasuredFigure>,
}

impl<'a, T> FigureCollector<'a, T> {
    pub(super) fn new(rounds: &'a [Round<T>], contestant: usize, reference: usize) -> Self {
        Self { rounds, contestant, reference, figures: BTreeMap::new() }
    }

    /// Adds a figure, if at least one round has it.
    pub(super) fn add(&mut self, figure: Figure, read: impl Fn(&T) -> Option<f64>) {
        let read = |value: &T| read(value).unwrap_or(f64::NAN);
        let finite = |mut values: Vec<f64>| {
            values.retain(|value| value.is_finite());
            (!values.is_empty()).then(|| median_interval(&values))
        };
        let Some(value) = finite(figures(self.rounds, self.contestant, read)) else { return };
        let ratio = (self.contestant != self.reference)
            .then(|| finite(ratios(self.rounds, self.contestant, self.reference, read)))
            .flatten();
        self.figures.insert(figure, MeasuredFigure { value, ratio });
    }

    /// Adds what the host counted.
    pub(super) fn add_server(&mut self, server: impl Fn(&T) -> ServerFigures) {
        self.add(Figure::CpuPerRequest, |it| Some(server(it).cpu_us));
        self.add(Figure::Instructions, |it| server(it).instructions_per_reply);
        self.add(Figure::InstructionsPerCycle, |it| server(it).instructions_per_cycle);
        self.add(Figure::CacheMisses, |it| server(it).cache_misses_per_reply);
        self.add(Figure::App, |it| Some(server(it).user_share * 100.0));
        self.add(Figure::System, |it| Some(server(it).system_share * 100.0));
        self.add(Figure::Softirq, |it| Some(server(it).softirq_share * 100.0));
        self.add(Figure::PacketsPerInterrupt, |it| server(it).packets_per_interrupt);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_cpu_time_at_idle_alone_are_no_figures_to_save() {
        let mut row = MeasuredRow { system: "vanilla".to_owned(), published: None, figures: BTreeMap::new() };
        let figure = MeasuredFigure { value: median_interval(&[1.0; 6]), ratio: None };
        row.figures.insert(Figure::IdleCpu, figure);
        row.figures.insert(Figure::ConnectionBytes, figure);
        let load = |row| MeasuredLoad {
            name: "closed loop".to_owned(),
            kind: LoadKind::Closed,
            at: 1.0,
            class: DistanceClass::Single,
            rounds: 6,
            rows: vec![row],
        };
        let part = |row| PartResult {
            reference: "vanilla".to_owned(),
            workload: "ETC".to_owned(),
            loads: vec![load(row)],
            notes: Vec::new(),
            failure: None,
        };
        assert!(!part(row.clone()).has_figures());
        row.figures.insert(Figure::Throughput, figure);
        assert!(part(row).has_figures());
    }
}
