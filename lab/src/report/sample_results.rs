//! Results of comparisons that were never run, for tests.

use loadgen::interleaved_rounds::{DistanceClass, Rounds};
use loadgen::medians::{Interval, median_interval};
use policies::Policy;
use runtime::{DriverKind, WaitStrategy};

use crate::experiments::fleet_comparison::{
    CapacityRow, ClassRows, Contender, FleetComparisonConfig, FleetComparisonResult, FleetRow, LoadResult,
    RunningPolicy,
};
use crate::experiments::{Contestant, MeasuredRounds};
use crate::fleet::FleetPacing;
use crate::polling_config::PollingConfig;

/// The interval of a median of eight values between `low` and `high`.
pub(super) fn interval(low: f64, median: f64, high: f64) -> Interval {
    median_interval(&[low, low, median, median, median, median, high, high])
}

/// A ratio of 1 in every round.
pub(super) fn equal() -> Interval {
    interval(1.0, 1.0, 1.0)
}

/// Vanilla and kernel polling.
pub(super) fn config() -> FleetComparisonConfig {
    let driver = DriverKind::Epoll;
    let contestants = [Policy::Vanilla, Policy::KernelPolling].map(|policy| Contestant { policy, driver });
    let contenders = Contender::lull(&contestants, &[PollingConfig::default()], WaitStrategy::Block);
    FleetComparisonConfig::new(contenders, true)
}

/// A row whose ratios are those of equal servers.
pub(super) fn row(name: &str) -> FleetRow {
    FleetRow {
        queue: None,
        attach_cores: None,
        name: name.to_owned(),
        reference: "vanilla, epoll".to_owned(),
        qps: interval(900.0, 1000.0, 1100.0),
        slowest_turn: 0.9,
        turns: 8,
        p50_us: interval(9.0, 10.0, 11.0),
        p99_us: interval(20.0, 30.0, 40.0),
        cpu_us: interval(2.0, 3.0, 4.0),
        kernel_thread_cpu_us: 0.5,
        qps_ratio: equal(),
        p50_ratio: equal(),
        p99_ratio: equal(),
        cpu_ratio: equal(),
        cpu_difference_us: interval(0.0, 0.0, 0.0),
        server_core_busy: 0.5,
        fleet_busy: 0.2,
        fleet_cpu_us: 0.4,
        packets_per_wake: 1.5,
        packets_per_look: 1.1,
        busy_poll_share: 0.0,
        received_elsewhere: false,
    }
}

/// A capacity.
pub(super) fn capacity(name: &str, ratio: Interval) -> CapacityRow {
    CapacityRow { name: name.to_owned(), rate: interval(90e3, 100e3, 110e3), ratio }
}

/// Rows of one class under one load. A share makes it an open loop.
pub(super) fn load<R, T>(share: Option<f64>, class: DistanceClass, rows: Vec<R>) -> LoadResult<R, T> {
    LoadResult {
        pacing: share.map(|share| FleetPacing::Open { rate: share * 100e3 }),
        share,
        classes: vec![ClassRows { class, low: None, high: None, rounds: 8, rows }],
        measured: MeasuredRounds {
            load: "load".to_owned(),
            contestants: vec!["vanilla, epoll".to_owned(), "kernel-polling, epoll".to_owned()],
            finished: Rounds::new(2, 8).finish(),
        },
        invalid: Vec::new(),
    }
}

/// A server that runs `ran`.
pub(super) fn running(ran: &str, steps_down: &[&str]) -> Option<RunningPolicy> {
    let steps_down = steps_down.iter().map(|&step| step.to_owned()).collect();
    Some(RunningPolicy { ran: ran.to_owned(), steps_down, ready: None })
}

/// Kernel polling has `ratio` times vanilla's capacity, and is its equal at half of it.
pub(super) fn result(class: DistanceClass, ratio: Interval) -> FleetComparisonResult {
    let rows = vec![capacity("vanilla, epoll", equal()), capacity("kernel-polling, epoll", ratio)];
    FleetComparisonResult {
        capacity: load(None, class, rows),
        loads: vec![load(Some(0.5), class, vec![row("vanilla, epoll"), row("kernel-polling, epoll")])],
        servers: vec![running("vanilla", &[]), running("kernel-polling", &[])],
        memory: Vec::new(),
        idle_cpu: Vec::new(),
        lost_frames: Vec::new(),
    }
}
