use loadgen::interleaved_rounds::{Conditions, Rounds};
use policies::Policy;
use runtime::DriverKind;

use super::*;
use crate::experiment_process::{LatencyPercentiles, LoadMeasurement, ServerMeasurement};
use crate::experiments::MeasuredRounds;
use crate::experiments::numa::{NumaContestant, NumaTurn};

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
