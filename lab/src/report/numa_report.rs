//! The report on servers on one NUMA node and on two.

use std::fmt::Write;
use std::fs;

use loadgen::interleaved_rounds::DistanceClass;
use policies::host::Machine;
use serde::Serialize;

use super::class_tables::{by_class, class_title};
use super::table::{interval_text, plain_table};
use crate::experiments::numa::{NumaConfig, NumaCores, NumaMeasurements, NumaRow, NumaTurn, numa_rows};

/// From this busy share on, the load may be the bottleneck.
const BUSY_LOAD: f64 = 0.95;
/// The workers of the paper's servers.
const PAPERS_WORKERS: usize = 8;

/// The report on servers on one NUMA node and on two.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct NumaReport {
    /// The machine.
    pub machine: Machine,
    /// Which cores ran what.
    pub cores: NumaCores,
    /// How much was measured.
    pub config: NumaConfig,
    /// What to know before relying on it, a sentence each.
    pub notes: Vec<String>,
    /// The rows of each load's tables, the closed loop's first.
    pub rows: Vec<Vec<NumaRow>>,
    /// Every turn.
    pub measured: NumaMeasurements,
}

impl NumaReport {
    /// Computes the rows. `cores_awake`: idle cores were kept awake.
    pub fn new(
        machine: Machine,
        cores: NumaCores,
        cores_awake: bool,
        config: NumaConfig,
        measured: NumaMeasurements,
    ) -> Self {
        let rows: Vec<Vec<NumaRow>> = measured.loads.iter().map(|load| numa_rows(&config, load)).collect();
        let mut notes = notes(&cores, cores_awake, &measured);
        for row in rows.iter().flatten().filter(|row| row.load_busy > BUSY_LOAD) {
            notes.push(format!(
                "{}: the load's threads were {:.0} % busy, so the server may be capable of more",
                row.contestant,
                row.load_busy * 100.0
            ));
        }
        Self { machine, cores, config, notes, rows, measured }
    }

    /// The report as text.
    pub fn text(&self) -> String {
        let Machine { cpu, cores, kernel, .. } = &self.machine;
        let [first, second, both] = &self.cores.workers;
        let [one, two] = self.cores.nodes;
        let mut text = format!(
            "{cpu}, {cores} cores, Linux {kernel}, {}\n\
             first node: node {one}, workers on cores {first}; second node: node {two}, cores {second}; both nodes: cores {both}; \
             load: cores {}\n",
            self.config.driver, self.cores.load
        );
        for (load, rows) in self.rows.iter().enumerate() {
            let title = match self.measured.rate.filter(|_| load > 0) {
                None => "Closed loop".to_owned(),
                Some(rate) => format!("Open loop, {rate:.0} requests/s"),
            };
            let _ = writeln!(text, "\n{title}");
            if rows.is_empty() {
                text.push_str("not measured: no round was completed\n");
            }
            for (class, rows) in by_class(rows, |row| row.class) {
                text.push_str(&table(class, &rows, load == 0));
            }
        }
        text.push('\n');
        for note in &self.notes {
            let _ = writeln!(text, "note: {note}");
        }
        text
    }
}

fn table(class: DistanceClass, rows: &[&NumaRow], closed: bool) -> String {
    let header = [
        "policy, workers on",
        "requests/s",
        "p50, µs",
        "p99, µs",
        if closed { "requests/s / first node" } else { "p99 / first node" },
        "requests/s / vanilla",
        "CPU, µs",
        "IPQ",
        "IPC",
        "memory on first node, %",
    ];
    let counted = |count: Option<f64>, digits| count.map_or("-".to_owned(), |it| format!("{it:.digits$}"));
    let cells = |row: &&NumaRow| {
        vec![
            row.contestant.to_string(),
            interval_text(&row.qps, 0),
            interval_text(&row.p50_us, 0),
            interval_text(&row.p99_us, 0),
            interval_text(if closed { &row.qps_to_first_node } else { &row.p99_to_first_node }, 2),
            row.qps_to_vanilla.as_ref().map_or("-".to_owned(), |ratio| interval_text(ratio, 2)),
            interval_text(&row.cpu_us, 1),
            counted(row.ipq, 0),
            counted(row.ipc, 2),
            format!("{:.0}", row.on_first_node * 100.0),
        ]
    };
    class_title(class) + &plain_table(header, rows.iter().map(cells), &[0]) + "\n"
}

fn notes(cores: &NumaCores, cores_awake: bool, measured: &NumaMeasurements) -> Vec<String> {
    let mut notes = vec![
        "the testbed's veth pair is of no node: workers, the threads that poll their queues, and memory are placed, but no \
         device; so `first node` and `second node` differ by chance only, unless the machine's nodes differ"
            .to_owned(),
        "the paper (Table 4, vanilla): 4 + 4 cores had 0.83 of the throughput of 8 cores of one node; (Figure 7) kernel \
         polling had 1.30 to 1.31 of vanilla's on one node, and 1.43 to 1.46 on two"
            .to_owned(),
    ];
    let workers = cores.count();
    if workers < PAPERS_WORKERS {
        notes.push(format!(
            "{workers} workers each ({} + {} on both nodes), where the paper had {PAPERS_WORKERS}: the load has as many \
             cores, so that takes 12 cores a node",
            workers / 2,
            workers / 2
        ));
    }
    notes.extend(
        measured.loads.iter().map(|load| format!("{}; distance is that of the nodes", load.summary())),
    );
    if measured.rate.is_none() {
        notes.push("the open loop was not measured: no round of the closed loop tells its rate".to_owned());
    }
    let balancing = fs::read_to_string("/proc/sys/kernel/numa_balancing").unwrap_or_default();
    if !["", "0"].contains(&balancing.trim()) {
        notes.push(
            "automatic NUMA balancing is on, which samples and moves pages; the paper turned it off: sysctl \
             kernel.numa_balancing=0"
                .to_owned(),
        );
    }
    if !cores_awake {
        notes.push("idle cores may sleep deeply: /dev/cpu_dma_latency can't be written".to_owned());
    }
    let turns = || {
        let classes = measured.loads.iter().flat_map(|load| &load.finished.classes);
        let turns = classes.flat_map(|class| &class.rounds).flat_map(|round| &round.turns);
        turns.filter_map(|turn| turn.value.as_ref())
    };
    let steps_down = |turn: &NumaTurn| format!("{} ran: {}", turn.ran, turn.steps_down.join("; "));
    let mut stepped: Vec<String> = turns().filter(|it| !it.steps_down.is_empty()).map(steps_down).collect();
    stepped.sort_unstable();
    stepped.dedup();
    notes.extend(stepped);
    let misaligned: u64 = turns().map(|turn| turn.server.misaligned).sum();
    if misaligned > 0 {
        notes.push(format!("{misaligned} connections were not served by the worker of their NAPI"));
    }
    notes
}

#[cfg(test)]
mod tests {
    use loadgen::interleaved_rounds::{Conditions, Rounds};
    use policies::Policy;
    use runtime::DriverKind;

    use super::*;
    use crate::experiment_process::{LatencyPercentiles, LoadMeasurement, ServerMeasurement};
    use crate::experiments::MeasuredRounds;
    use crate::experiments::numa::NumaContestant;

    fn cores() -> NumaCores {
        let cpus = |list: &str| list.parse().unwrap();
        NumaCores { nodes: [0, 1], workers: [cpus("0-1"), cpus("4-5"), cpus("0,4")], load: cpus("2,6") }
    }

    fn turn(qps: f64, pages: [u64; 2]) -> NumaTurn {
        let latency = LatencyPercentiles { p50: 1e6 / qps, p99: 3e6 / qps, p999: 4e6 / qps, max: 5e6 / qps };
        let load = LoadMeasurement {
            qps,
            latency,
            client_busy: 0.5,
            errors: 0,
            unanswered: 0,
            misses: 0,
            ring_drops: 0,
            warnings: Vec::new(),
        };
        let server = ServerMeasurement {
            requests: 1000,
            seconds: 1.0,
            core_busy: 0.01,
            kernel_thread_elsewhere: 0.0,
            thread_cpu: 0.01,
            kernel_thread_cpu: 0.0,
            waits: 0,
            rx_packets: 1000,
            packets_per_event: None,
            per: "wake-up".to_owned(),
            busy_poll_share: 0.0,
            net_rx: Vec::new(),
            steal: 0.0,
            ipq: Some(20_000.0),
            ipc: None,
            aligned: 64,
            misaligned: 0,
            grace_time_rounds: None,
        };
        NumaTurn { ran: "vanilla".to_owned(), steps_down: Vec::new(), load, server, pages }
    }

    /// On both nodes vanilla has 0.8 of the first node's throughput, and kernel polling 0.9; kernel polling 1.5 times
    /// vanilla's on one node.
    fn report(rounds: usize) -> NumaReport {
        let policies = vec![Policy::Vanilla, Policy::KernelPolling];
        let config = NumaConfig::new(policies, DriverKind::Epoll, true);
        let contestants: Vec<NumaContestant> = config.contestants();
        let mut measured = Rounds::new(contestants.len(), rounds);
        while let Some(turn_of) = measured.next_turn() {
            let index = turn_of.contestant();
            let (qps, pages) = [
                (1000.0, [99, 1]),
                (1000.0, [0, 100]),
                (800.0, [50, 50]),
                (1500.0, [99, 1]),
                (1500.0, [0, 100]),
                (1350.0, [50, 50]),
            ][index];
            let conditions = Conditions::default().with_distance(300.0, 300.0);
            measured.finish_turn(turn_of, Some(turn(qps, pages)), conditions);
        }
        let closed = MeasuredRounds {
            load: "closed loop".to_owned(),
            contestants: contestants.iter().map(ToString::to_string).collect(),
            finished: measured.finish(),
        };
        let machine = Machine::read();
        let measured = NumaMeasurements { loads: vec![closed], rate: None };
        NumaReport::new(machine, cores(), true, config, measured)
    }

    #[test]
    fn a_row_compares_with_the_first_node_and_with_vanilla_at_the_same_place() {
        let text = report(6).text();
        let words: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        for line in [
            "vanilla, both nodes 800 [800, 800] 1250 [1250, 1250] 3750 [3750, 3750] 0.80 [0.80, 0.80] 1.00 [1.00, 1.00] 10.0 [10.0, 10.0] 20000 - 50",
            "kernel-polling, second node 1500 [1500, 1500] 667 [667, 667] 2000 [2000, 2000] 1.00 [1.00, 1.00] 1.50 [1.50, 1.50] 10.0 [10.0, 10.0] 20000 - 0",
        ] {
            assert!(words.iter().any(|it| it == line), "no {line:?} in\n{text}");
        }
        assert!(text.contains("both nodes: cores 0,4; load: cores 2,6"), "{text}");
        assert!(text.contains("2 workers each (1 + 1 on both nodes), where the paper had 8"), "{text}");
        assert!(text.contains("the open loop was not measured"), "{text}");
    }

    #[test]
    fn what_was_not_measured_is_said_and_too_few_rounds_have_no_interval() {
        assert!(report(0).text().contains("not measured: no round was completed"));
        assert!(report(2).text().contains("0.80 (no interval, 2 rounds)"));
    }
}
