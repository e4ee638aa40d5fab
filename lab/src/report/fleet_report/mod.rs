//! The report on a comparison under a fleet.

mod attach_notes;
mod last_result;
mod slowest_turns;

use std::fmt::Write;

use loadgen::interleaved_rounds::DistanceClass;
use loadgen::medians::Interval;
use policies::Policy;
use policies::explain::measured::Measured;
use policies::host::Machine;
use serde::Serialize;

use self::attach_notes::attach_notes;
use self::last_result::measured;
use self::slowest_turns::slowest_turns;
use super::class_tables::class_title;
use super::kernel_client_report::KernelClientReport;
use super::policy_table::judgement;
use super::table::{interval_text, plain_table};
use crate::experiments::fleet_comparison::{
    CapacityRow, ClassRows, Contender, FleetComparisonConfig, FleetComparisonResult, FleetRow, LoadResult,
    TurnMeasurement,
};
use crate::experiments::{CoreAssignment, order_by_rounds};
use crate::fleet::FleetPacing;
use crate::testbed::CONGESTION_CONTROL;

/// The share of vanilla's capacity at which the verdict names CPU time and latency.
const VERDICT_SHARE: f64 = 0.5;
/// The fleet is the bottleneck from this busy share on.
const BUSY_FLEET: f64 = 0.95;

/// The report on a comparison under a fleet.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct FleetReport {
    /// The machine.
    pub machine: Machine,
    /// Which core ran what.
    pub cores: CoreAssignment,
    /// The congestion control of both sides.
    pub congestion_control: &'static str,
    /// Whether idle cores polled instead of sleeping.
    pub cores_awake: bool,
    /// What was measured.
    pub config: FleetComparisonConfig,
    /// Whether kernel polling helps, and by how much, in one sentence.
    pub verdict: String,
    /// Reasons to doubt the results, a sentence each.
    pub notes: Vec<String>,
    /// Everything that was measured.
    pub result: FleetComparisonResult,
    /// The closed loop of one kernel client, if it was measured: its batches decide its results.
    pub kernel_client: Option<KernelClientReport>,
}

impl FleetReport {
    /// Summarises a result.
    pub fn new(
        config: FleetComparisonConfig,
        cores: CoreAssignment,
        cores_awake: bool,
        result: FleetComparisonResult,
    ) -> Self {
        Self {
            machine: Machine::read(),
            cores,
            congestion_control: CONGESTION_CONTROL,
            cores_awake,
            verdict: verdict(&config, &result),
            notes: notes(&config, cores, cores_awake, &result),
            config,
            result,
            kernel_client: None,
        }
    }

    /// What kernel polling costs and gains with each latency budget. `None` if that was not measured.
    pub fn measured(&self) -> Option<Measured> {
        measured(&self.config, &self.result)
    }

    /// The report as text.
    pub fn text(&self) -> String {
        let Machine { cpu, cores, kernel, .. } = &self.machine;
        let CoreAssignment { server, client, packing, .. } = self.cores;
        let idle = if self.cores_awake { "idle cores poll" } else { "idle cores sleep" };
        let mut text = format!(
            "{cpu}, {cores} cores, Linux {kernel}; two network namespaces and a veth pair, {}; {idle}\n\
             server on core {server}, fleet on core {client}, packing on core {packing}; {} connections, {} in flight on each\n",
            self.congestion_control, self.config.connections, self.config.depth
        );
        let capacity = &self.result.capacity;
        if self.config.rates.is_empty() && self.config.given_capacity.is_none() {
            let _ = writeln!(
                text,
                "\nCapacity: the highest rate with a 99th percentile of at most {:.0} µs, requests per second",
                self.config.capacity_p99_us
            );
        }
        for class in &capacity.classes {
            text.push_str(&class_title(class.class));
            text.push_str(&capacity_table(class));
        }
        let classes = self.result.loads.iter().flat_map(|load| &load.classes);
        for class in order_by_rounds(classes.map(|class| (class.class, class.rounds))) {
            let _ = writeln!(
                text,
                "\nAt given rates, and in the closed loop; latency from the time at which a request was due{}",
                match class {
                    DistanceClass::Single => String::new(),
                    class => format!("; cores {class}"),
                }
            );
            text.push_str(&self.load_table(class));
            text.push_str(&slowest_turns(&self.result, class));
        }
        if let Some(kernel_client) = &self.kernel_client {
            let _ = write!(text, "\n{}", kernel_client.tables());
            for note in &kernel_client.notes {
                let _ = writeln!(text, "note: {note}");
            }
        }
        let _ = writeln!(text, "\n{}", self.verdict);
        for note in &self.notes {
            let _ = writeln!(text, "note: {note}");
        }
        text
    }

    fn load_table(&self, class: DistanceClass) -> String {
        let header = [
            "rate",
            "server",
            "p50 µs",
            "p99 µs",
            "CPU µs/req",
            "p50 ratio",
            "p99 ratio",
            "CPU ratio",
            "kernel thread µs",
            "pkts/wake",
            "busy-poll",
            "queue",
            "server busy",
            "fleet busy",
        ];
        let mut rows = Vec::new();
        for load in &self.result.loads {
            for class in load.classes.iter().filter(|it| it.class == class) {
                rows.extend(class.rows.iter().map(|row| load_cells(load, row)));
            }
        }
        format!("{}\n", plain_table(header, rows, &[0, 1, 11]))
    }
}

fn capacity_table(class: &ClassRows<CapacityRow>) -> String {
    let header = ["server", "capacity", "ratio"];
    let cells =
        |row: &CapacityRow| vec![row.name.clone(), interval_text(&row.rate, 0), interval_text(&row.ratio, 2)];
    format!("{}\n", plain_table(header, class.rows.iter().map(cells), &[0]))
}

fn load_cells(load: &LoadResult<FleetRow, TurnMeasurement>, row: &FleetRow) -> Vec<String> {
    let rate = match (load.share, load.pacing) {
        (Some(share), _) => format!("{:.0} % ({})", share * 100.0, load.measured.load),
        (None, Some(FleetPacing::Open { .. } | FleetPacing::Alternating(_))) => load.measured.load.clone(),
        (None, _) => format!("closed ({:.0}/s)", row.qps.median),
    };
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let elsewhere = if row.received_elsewhere { " (received elsewhere)" } else { "" };
    vec![
        rate,
        format!("{}{elsewhere}", row.name),
        interval_text(&row.p50_us, 1),
        interval_text(&row.p99_us, 0),
        interval_text(&row.cpu_us, 2),
        interval_text(&row.p50_ratio, 2),
        interval_text(&row.p99_ratio, 2),
        interval_text(&row.cpu_ratio, 2),
        format!("{:.2}", row.kernel_thread_cpu_us),
        format!("{:.1}", row.packets_per_wake),
        percent(row.busy_poll_share),
        row.queue.clone().unwrap_or_else(|| "-".to_owned()),
        percent(row.server_core_busy),
        percent(row.fleet_busy),
    ]
}

/// One sentence: would kernel polling help here, and by how much? One for each server that is attached to from outside.
fn verdict(config: &FleetComparisonConfig, result: &FleetComparisonResult) -> String {
    let given = !config.rates.is_empty() || config.given_capacity.is_some();
    if given && config.contenders.iter().any(Contender::polls) {
        return "At given rates the capacity is not searched, so there is no verdict on it.".to_owned();
    }
    let mut polling = config.contenders.iter().enumerate().filter(|(_, contender)| contender.polls());
    let attached = polling.clone().filter(|(_, contender)| contender.is_attached());
    let verdicts: Vec<String> = attached
        .map(|(index, contender)| format!("{}: {}", contender.name(), verdict_on(config, result, index)))
        .collect();
    match (verdicts.is_empty(), polling.next()) {
        (false, _) => verdicts.join("\n"),
        (true, Some((index, _))) => verdict_on(config, result, index),
        (true, None) => "Kernel polling is not among the contenders.".to_owned(),
    }
}

/// The verdict on a contender under kernel polling.
fn verdict_on(config: &FleetComparisonConfig, result: &FleetComparisonResult, index: usize) -> String {
    if let Some(Some(ready)) = result.servers.get(index)
        && ready.ran != Policy::KernelPolling.to_string()
    {
        return format!(
            "Kernel polling could not run here ({} ran instead: {}), so these results say nothing about it.",
            ready.ran,
            ready.steps_down.join("; ")
        );
    }
    // Named by the policy alone where that is enough.
    let short = |index: usize| match config.contenders[index].policy() {
        Some((policy, _)) => policy.to_string(),
        None => config.contenders[index].name(),
    };
    let (first, reference) = (short(0), short(config.reference_of(index)));
    let Some(class) = result.capacity.classes.first() else { return "Nothing was measured.".to_owned() };
    let cores = |class: DistanceClass| match class {
        DistanceClass::Single => String::new(),
        class => format!(" with the cores {class}"),
    };
    let ratio = class.rows[index].ratio;
    let mut text = if !ratio.reaches_target() {
        format!(
            "Too few rounds to compare capacities: kernel polling had {:.2} times {reference}'s in {} of them{}",
            ratio.median,
            ratio.count,
            cores(class.class)
        )
    } else {
        let judgement = judgement(&ratio, " to the capacity");
        format!(
            "{judgement}: {:.2} times {reference}'s capacity ({:.2} to {:.2}){}",
            ratio.median,
            ratio.low,
            ratio.high,
            cores(class.class)
        )
    };
    let half = result.loads.iter().find(|load| load.share == Some(VERDICT_SHARE));
    if let Some(class) = half.and_then(|load| load.classes.first()) {
        let row = &class.rows[index];
        let range = |name: &str, it: &Interval| {
            let Interval { median, low, high, .. } = it;
            if it.reaches_target() {
                format!("{median:.2} ({low:.2} to {high:.2}) of its {name}")
            } else {
                format!("{median:.2} (no interval) of its {name}")
            }
        };
        let _ = write!(
            text,
            "; at {:.0} % of {first}'s capacity {} and {}{}",
            VERDICT_SHARE * 100.0,
            range("CPU time per request", &row.cpu_ratio),
            range("99th percentile", &row.p99_ratio),
            cores(class.class)
        );
    }
    let has_interval = text.contains(" to ");
    text.push_str(if has_interval { "; 95 % confidence." } else { "." });
    text
}

/// Reasons to doubt the results, a sentence each.
fn notes(
    config: &FleetComparisonConfig,
    cores: CoreAssignment,
    cores_awake: bool,
    result: &FleetComparisonResult,
) -> Vec<String> {
    let mut notes = Vec::new();
    if config.rates.is_empty() && config.given_capacity.is_none() {
        notes.push(result.capacity.measured.summary());
    }
    notes.extend(result.loads.iter().map(|load| load.measured.summary()));
    notes.extend(attach_notes(config, cores, result));
    if cores.packing == cores.client && !config.contenders.iter().any(Contender::is_attached) {
        notes.push(
            "without a third core, packing's network work shares the fleet's core, at its expense".to_owned(),
        );
    }
    if !cores_awake {
        notes.push(
            "idle cores may sleep (no permission to write to /dev/cpu_dma_latency), which adds to latencies below saturation"
                .to_owned(),
        );
    }
    for (contender, ready) in config.contenders.iter().zip(&result.servers) {
        let Some(ready) = ready.as_ref().filter(|ready| !ready.steps_down.is_empty()) else { continue };
        notes.push(format!("{}: {} ran: {}", contender.name(), ready.ran, ready.steps_down.join("; ")));
    }
    let invalid = result.capacity.invalid.iter().map(|turn| ("capacity", turn.contender, &turn.reason));
    let others = result.loads.iter().flat_map(|load| {
        load.invalid.iter().map(|turn| (load.measured.load.as_str(), turn.contender, &turn.reason))
    });
    let mut counts: Vec<(String, usize, &str)> = Vec::new();
    for (load, contender, reason) in invalid.chain(others) {
        let what = format!("{load}, {}", config.contenders[contender].name());
        match counts.iter_mut().find(|(other, ..)| *other == what) {
            Some((_, count, _)) => *count += 1,
            None => counts.push((what, 1, reason)),
        }
    }
    notes.extend(counts.into_iter().map(|(what, count, reason)| {
        let others = if count > 1 { format!("; {} more", count - 1) } else { String::new() };
        format!("invalid: {what}: {reason}{others}")
    }));
    for load in &result.loads {
        let name = &load.measured.load;
        let classes = &load.measured.finished.classes;
        let values = || classes.iter().flat_map(|class| &class.rounds).flat_map(|round| &round.turns);
        let sum = |figure: fn(&TurnMeasurement) -> u64| -> u64 {
            values().filter_map(|turn| turn.value.as_ref()).map(figure).sum()
        };
        let again = sum(|it| it.fleet.retransmitted) + sum(|it| it.server_retransmitted);
        let drops = sum(|it| it.drops);
        if again + drops > 0 {
            notes.push(format!(
                "{name}: {drops} packets found the server's receive ring full, and {again} segments were sent again"
            ));
        }
        let busy =
            load.classes.iter().flat_map(|class| &class.rows).filter(|row| row.fleet_busy > BUSY_FLEET);
        notes.extend(busy.map(|row| {
            let percent = row.fleet_busy * 100.0;
            format!(
                "{name}, {}: the fleet was {percent:.0} % busy, so the server may be capable of more",
                row.name
            )
        }));
    }
    notes.sort();
    notes.dedup();
    notes
}

#[cfg(test)]
mod tests {
    use loadgen::medians::{Interval, median_interval};

    use super::super::sample_results::{capacity, config, equal, interval, result, row, running};
    use super::*;
    use crate::experiments::fleet_comparison::ServerCommand;

    fn verdict_of(ratio: Interval) -> String {
        verdict(&config(), &result(DistanceClass::Single, ratio))
    }

    #[test]
    fn the_verdict_is_that_kernel_polling_helps_if_the_whole_interval_is_above_1() {
        assert_eq!(
            verdict_of(interval(1.2, 1.4, 1.5)),
            "Kernel polling helps: 1.40 times vanilla's capacity (1.20 to 1.50); at 50 % of vanilla's capacity \
             1.00 (1.00 to 1.00) of its CPU time per request and 1.00 (1.00 to 1.00) of its 99th percentile; 95 % \
             confidence."
        );
    }

    #[test]
    fn the_verdict_is_that_kernel_polling_hurts_if_the_whole_interval_is_below_1() {
        let verdict = verdict_of(interval(0.7, 0.8, 0.9));
        assert!(
            verdict.starts_with("Kernel polling hurts: 0.80 times vanilla's capacity (0.70 to 0.90);"),
            "{verdict}"
        );
    }

    #[test]
    fn the_verdict_is_no_difference_if_the_interval_contains_1() {
        for ratio in [interval(0.9, 1.4, 1.5), interval(0.5, 0.8, 1.1), interval(1.0, 1.2, 1.5), equal()] {
            let verdict = verdict_of(ratio);
            let expected = "Kernel polling makes no difference to the capacity that these rounds can show: ";
            assert!(verdict.starts_with(expected), "{verdict}");
        }
    }

    #[test]
    fn too_few_rounds_give_no_judgement_and_no_interval() {
        let mut result = result(DistanceClass::Single, median_interval(&[1.4; 5]));
        result.loads[0].classes[0].rows[1].cpu_ratio = median_interval(&[0.5; 5]);
        let text = verdict(&config(), &result);
        let expected = "Too few rounds to compare capacities: kernel polling had 1.40 times vanilla's in 5 of them; \
                        at 50 % of vanilla's capacity 0.50 (no interval) of its CPU time per request and 1.00 (1.00 to 1.00)";
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn the_verdict_names_the_distance_of_the_cores_for_each_figure() {
        let mut result = result(DistanceClass::Near, interval(1.2, 1.4, 1.5));
        result.loads[0].classes[0].class = DistanceClass::Far;
        result.loads[0].classes[0].rows[1].cpu_ratio = interval(0.4, 0.5, 0.6);
        result.loads[0].classes[0].rows[1].p99_ratio = interval(0.7, 0.8, 0.9);
        let text = verdict(&config(), &result);
        assert!(text.contains("(1.20 to 1.50) with the cores near; at 50 %"), "{text}");
        let far = "0.50 (0.40 to 0.60) of its CPU time per request and 0.80 (0.70 to 0.90) of its 99th percentile \
                   with the cores far;";
        assert!(text.contains(far), "{text}");
    }

    #[test]
    fn a_policy_that_did_not_run_gives_no_verdict() {
        let mut result = result(DistanceClass::Single, interval(1.2, 1.4, 1.5));
        result.servers[1] = running("blocking", &["no CAP_NET_ADMIN", "no queue"]);
        assert_eq!(
            verdict(&config(), &result),
            "Kernel polling could not run here (blocking ran instead: no CAP_NET_ADMIN; no queue), so these results \
             say nothing about it."
        );
        let mut others = config();
        others.contenders.truncate(1);
        assert_eq!(verdict(&others, &result), "Kernel polling is not among the contenders.");
    }

    #[test]
    fn each_attached_server_has_its_own_verdict_over_the_server_as_it_runs() {
        let server = ServerCommand::memcached("memcached".into());
        let budgets = ["0", "20"].map(|budget| budget.parse().unwrap());
        let config = FleetComparisonConfig::attached(&server, &budgets, true);
        let mut result = result(DistanceClass::Single, interval(1.2, 1.4, 1.5));
        result.servers = vec![None, None, None];
        result.capacity.classes[0].rows.push(capacity("slower", interval(0.7, 0.8, 0.9)));
        result.loads[0].classes[0].rows.push(row("slower"));
        let text = verdict(&config, &result);
        let lines: Vec<&str> = text.lines().collect();
        let expected = [
            "memcached, attached, budget 0 µs: Kernel polling helps: 1.40 times memcached's capacity (1.20 to 1.50); at 50 % \
             of memcached's capacity",
            "memcached, attached, budget 20 µs: Kernel polling hurts: 0.80 times memcached's capacity",
        ];
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines.iter().zip(expected).all(|(line, expected)| line.starts_with(expected)), "{text}");
    }

    #[test]
    fn without_a_complete_round_nothing_was_measured() {
        let mut result = result(DistanceClass::Single, equal());
        result.capacity.classes.clear();
        assert_eq!(verdict(&config(), &result), "Nothing was measured.");
    }

    #[test]
    fn notes_say_what_makes_a_row_doubtful() {
        let mut result = result(DistanceClass::Single, equal());
        result.servers[1] = running("blocking", &["no queue"]);
        result.loads[0].classes[0].rows[0] = FleetRow { fleet_busy: 0.97, ..row("vanilla, epoll") };
        let cores = CoreAssignment { server: 0, client: 1, packing: 1 };
        let notes = notes(&config(), cores, false, &result);
        for expected in [
            "kernel-polling, epoll: blocking ran: no queue",
            "load, vanilla, epoll: the fleet was 97 % busy, so the server may be capable of more",
            "without a third core, packing's network work shares the fleet's core, at its expense",
        ] {
            assert!(notes.iter().any(|note| note == expected), "{expected}: {notes:?}");
        }
        assert!(notes.iter().any(|note| note.starts_with("idle cores may sleep")), "{notes:?}");
    }

    #[test]
    fn the_text_has_a_table_of_capacities_and_one_of_rates_and_the_verdict() {
        let mut result = result(DistanceClass::Single, interval(1.2, 1.4, 1.5));
        result.loads[0].classes[0].rows[1].received_elsewhere = true;
        let cores = CoreAssignment { server: 0, client: 1, packing: 2 };
        let text = FleetReport::new(config(), cores, true, result).text();
        let cells = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<String> = text.lines().map(cells).collect();
        let capacity = "kernel-polling, epoll 100000 [90000, 110000] 1.40 [1.20, 1.50]";
        assert!(lines.iter().any(|line| line == capacity), "{text}");
        let rate = "50 % (load) kernel-polling, epoll (received elsewhere) 10.0 [9.0, 11.0] 30 [20, 40]";
        assert!(lines.iter().any(|line| line.starts_with(rate)), "{text}");
        assert!(text.contains("\nKernel polling helps: 1.40 times"), "{text}");
    }
}
