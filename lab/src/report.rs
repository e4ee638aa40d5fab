//! What an experiment showed, for people and for programs.

use std::fs;

use comfy_table::{CellAlignment, Table, presets};
use loadgen::medians::Interval;
use loadgen::rounds;
use policies::{GraceTime, Policy};
use serde::Serialize;

use crate::calibration::Calibration;
use crate::experiment::{Bench, Cores, Plan, Round, Row};

/// The machine that it was measured on.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// The CPU's name.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// The kernel's release.
    pub kernel: String,
}

impl Machine {
    /// Reads it from `/proc`.
    pub fn read() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            cpu: cpu.map_or_else(|| "unknown CPU".to_owned(), |(_, name)| name.trim().to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: kernel.trim().to_owned(),
        }
    }
}

/// The whole report.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Where.
    pub machine: Machine,
    /// `testbed` or `loopback`.
    pub place: &'static str,
    /// Where the network's work went, in words.
    pub routing: Vec<String>,
    /// Which core did what.
    pub cores: Cores,
    /// What was to be measured.
    pub plan: Plan,
    /// The grace times tried.
    pub grace_tried: Option<Calibration>,
    /// The grace time chosen.
    pub grace_time: GraceTime,
    /// At saturation, closed loop.
    pub rows: Vec<Row>,
    /// At fixed rates, open loop.
    pub curve: Vec<Row>,
    /// One sentence.
    pub verdict: String,
    /// What to know before believing the figures.
    pub notes: Vec<String>,
    /// Rounds that were run again.
    pub repeated: Vec<String>,
    /// Rounds that steal spoilt and that stayed in.
    pub spoilt: Vec<String>,
    /// Every round at saturation, with the knobs read back.
    pub rounds: Vec<Vec<Round>>,
    /// Every round at a rate.
    pub curve_rounds: Vec<Vec<Round>>,
}

/// A client busier than this may be what limits a row.
const CLIENT_LIMIT: f64 = 0.95;

impl Report {
    /// Puts it together.
    pub fn new(
        bench: &Bench,
        grace_tried: Option<Calibration>,
        rounds: Vec<rounds::Round<Round>>,
        curve_rounds: Vec<rounds::Round<Round>>,
        curve: Vec<Row>,
    ) -> Self {
        let rows = crate::experiment::rows(&bench.plan.contestants, &rounds);
        let in_order = |round: rounds::Round<Round>| -> Vec<Round> {
            round.turns.into_iter().filter_map(|turn| turn.value).collect()
        };
        let rounds: Vec<Vec<Round>> = rounds.into_iter().map(in_order).collect();
        let curve_rounds: Vec<Vec<Round>> = curve_rounds.into_iter().map(in_order).collect();
        let notes = notes(bench, &rows, &rounds, &curve_rounds);
        Self {
            machine: Machine::read(),
            place: if bench.has_testbed() { "testbed" } else { "loopback" },
            routing: routing(bench),
            cores: bench.cores,
            plan: bench.plan.clone(),
            grace_tried,
            grace_time: bench.grace_time,
            verdict: verdict(&rows),
            rows,
            curve,
            notes,
            repeated: bench.repeated.clone(),
            spoilt: bench.spoilt.clone(),
            rounds,
            curve_rounds,
        }
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let machine = &self.machine;
        let mut text =
            format!("{}, {} cores, Linux {}; {}\n", machine.cpu, machine.cores, machine.kernel, self.place);
        self.routing.iter().for_each(|line| text.push_str(&format!("{line}\n")));
        if let Some(tried) = &self.grace_tried {
            let tried = tried.line();
            text.push_str(&format!(
                "grace time (gro-flush-timeout): {} µs; tried: {tried}\n",
                self.grace_time
            ));
        }
        let rounds = self.rounds.len();
        text.push_str(&format!(
            "\nAt saturation: closed loop, {} connections, medians of {rounds} interleaved rounds\n",
            self.plan.connections
        ));
        text.push_str(&table(&self.rows, false));
        text.push_str(&format!("\n{}\n", self.verdict));
        if !self.curve.is_empty() {
            text.push_str(&format!(
                "\nAt fixed rates: open loop, latency from the scheduled time, medians of {} rounds\n",
                self.plan.load_rounds
            ));
            text.push_str(&table(&self.curve, true));
            text.push('\n');
        }
        for note in &self.notes {
            text.push_str(&format!("note: {note}\n"));
        }
        for round in &self.repeated {
            text.push_str(&format!("repeated: {round}\n"));
        }
        for round in &self.spoilt {
            text.push_str(&format!("spoilt, and kept for lack of time: {round}\n"));
        }
        text
    }
}

fn table(rows: &[Row], with_rate: bool) -> String {
    let mut table = Table::new();
    let mut header = vec![
        "asked",
        "driver",
        "ran",
        "QPS",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "CPU µs/req",
        "pkts/softirq",
        "busy-poll share",
        "ratio to vanilla",
        "CPU ratio",
    ];
    if with_rate {
        header.insert(0, "rate");
    }
    table.load_style(presets::NOTHING).set_header(header);
    for row in rows {
        let interval =
            |ratio: &Interval| format!("{:.2} [{:.2}, {:.2}]", ratio.median, ratio.low, ratio.high);
        let mut cells = vec![
            row.asked.to_string(),
            row.driver.to_string(),
            row.ran.clone(),
            format!("{:.0}", row.qps),
            format!("{:.0}", row.p50_us),
            format!("{:.0}", row.p99_us),
            format!("{:.0}", row.p999_us),
            format!("{:.2}", row.cpu_us_per_request),
            format!("{:.1}", row.packets_per_softirq),
            format!("{:.3}", row.busy_poll_share),
            interval(&row.ratio_to_vanilla),
            interval(&row.cpu_ratio_to_vanilla),
        ];
        if let Some(rate) = row.asked_qps.filter(|_| with_rate) {
            cells.insert(0, format!("{rate:.0}"));
        }
        table.add_row(cells);
    }
    let text_columns = if with_rate { 1..4 } else { 0..3 };
    for index in 0..table.column_count() {
        if let Some(column) = table.column_mut(index).filter(|_| !text_columns.contains(&index)) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    format!("{}\n", table.trim_fmt())
}

/// One sentence: would kernel polling help here, and how much.
fn verdict(rows: &[Row]) -> String {
    let polling = rows.iter().rfind(|row| row.asked == Policy::KernelPolling);
    let (Some(vanilla), Some(polling)) = (rows.first(), polling) else {
        return "Nothing was measured.".to_owned();
    };
    if polling.ran != "kernel-polling" {
        return format!(
            "Kernel polling could not run here ({} ran instead), so this says nothing about it.",
            polling.ran
        );
    }
    let ratio = &polling.ratio_to_vanilla;
    let cpu = polling.cpu_us_per_request / vanilla.cpu_us_per_request;
    let judged = if ratio.low > 1.0 {
        "Kernel polling helps"
    } else if ratio.high < 1.0 {
        "Kernel polling hurts"
    } else {
        "Kernel polling makes no difference that these rounds can show"
    };
    format!(
        "{judged}: {:.2} times vanilla's throughput ({:.2} to {:.2}, {:.0} % confidence) at {:.0} % of its CPU a request, p99 {:.0} µs against {:.0} µs.",
        ratio.median,
        ratio.low,
        ratio.high,
        ratio.confidence * 100.0,
        cpu * 100.0,
        polling.p99_us,
        vanilla.p99_us
    )
}

fn routing(bench: &Bench) -> Vec<String> {
    let Cores { server, client, packing } = bench.cores;
    if !bench.has_testbed() {
        return vec![format!("routing: loopback; server on core {server}, client on core {client}")];
    }
    vec![
        format!(
            "routing: server on core {server}, client on core {client}, packing on core {packing}; a veth pair in two network namespaces"
        ),
        "routing: the client is on the epoll driver, whatever the server's is".to_owned(),
        format!(
            "routing: under vanilla the server's packets are handed to core {server} (RPS), asynchronously to its worker; the client's queue is polled by a kernel thread on core {client}, at half the weight of the load's thread"
        ),
    ]
}

fn notes(bench: &Bench, rows: &[Row], rounds: &[Vec<Round>], curve: &[Vec<Round>]) -> Vec<String> {
    let mut notes = Vec::new();
    if !bench.has_testbed() {
        notes.push("loopback has no NAPI: no policy can do anything there, and all rows run the same; run it as root for the testbed".to_owned());
    }
    if bench.cores.server == bench.cores.client {
        notes.push("one core: server and client take it from each other".to_owned());
    } else if bench.cores.packing == bench.cores.client {
        notes.push(
            "there is no third core: packing's network work and the client share one, which packing pays for"
                .to_owned(),
        );
    }
    for row in rows.iter().filter(|row| row.client_busy > CLIENT_LIMIT) {
        notes.push(format!(
            "{} on {}: the client's thread was {:.0} % busy, so the server may be able to do more",
            row.asked,
            row.driver,
            row.client_busy * 100.0
        ));
    }
    let all = || rounds.iter().chain(curve).flatten();
    let mut reasons: Vec<String> = all()
        .filter(|round| !round.steps_down.is_empty())
        .map(|round| format!("{} asked, {} ran: {}", round.asked, round.ran, round.steps_down.join("; ")))
        .collect();
    reasons.sort_unstable();
    reasons.dedup();
    notes.extend(reasons);
    let failed: u64 = all().map(|round| round.load.errors).sum();
    let misses: u64 = all().map(|round| round.load.misses).sum();
    if failed + misses > 0 {
        notes.push(format!(
            "{failed} requests failed and {misses} found nothing: the figures are not to be trusted"
        ));
    }
    for round in all().filter(|round| round.load.ring_drops > 0) {
        let at = round.rate.map_or_else(|| "saturated".to_owned(), |rate| format!("at {rate:.0}/s"));
        notes.push(format!(
            "{}, {at}: {} packets found the server's receive ring full, and TCP had to send them again (p99 {:.0} µs)",
            round.asked, round.load.ring_drops, round.load.latency.p99
        ));
    }
    let misaligned: u64 = all().map(|round| round.server.misaligned).sum();
    if misaligned > 0 {
        notes.push(format!("{misaligned} connections were not on their NAPI's worker"));
    }
    if all().all(|round| round.server.ipc.is_none()) {
        notes.push(
            "cycles and instructions: not supported by this machine; CPU time a request stands for them"
                .to_owned(),
        );
    }
    notes
}
