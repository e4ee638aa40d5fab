//! What one rule made of one sequence.

use loadgen::medians::percentile;
use serde::Serialize;

use super::core_loops::Run;
use super::sequence::Sequence;

/// Windows in which a run is compared with plain's on the way.
const WINDOW: u64 = 20_000_000;
/// A window with fewer requests has no 99th percentile.
const FEW_REQUESTS: usize = 200;

/// Costs and delays of one run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Figures {
    /// CPU time per request, in µs.
    pub cpu_us: f64,
    /// Median of the delay from arrival to the end of the service, in µs.
    pub p50_us: f64,
    /// 99th percentile of the delay, in µs.
    pub p99_us: f64,
    /// How often the queue began to be driven in another way, per second.
    pub changes_per_second: f64,
    /// The longest time from a step of the load to the last such change before the next step, in ms; absent without
    /// steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settled_ms: Option<f64>,
    /// The largest excess of the median over plain's in a window of 20 ms, in µs.
    pub worst_p50_excess_us: f64,
    /// The same of the 99th percentile.
    pub worst_p99_excess_us: f64,
}

impl Figures {
    /// `plain`: the delays under plain mode.
    pub(super) fn new(sequence: &Sequence, run: &Run, plain: &[u64]) -> Self {
        let from = sequence.first_measured();
        let [p50_us, p99_us] = percentiles(&run.delays[from..]);
        let served = sequence.arrivals.len() - run.measured_from;
        let changes = run.changes.iter().filter(|&&change| change >= sequence.measured_from).count();
        let [worst_p50_excess_us, worst_p99_excess_us] = worst_excess(sequence, &run.delays, plain);
        Self {
            cpu_us: (run.busy - run.busy_before) as f64 / 1e3 / served.max(1) as f64,
            p50_us,
            p99_us,
            changes_per_second: changes as f64 * 1e9
                / run.end.saturating_sub(sequence.measured_from).max(1) as f64,
            settled_ms: settled(sequence, run),
            worst_p50_excess_us,
            worst_p99_excess_us,
        }
    }
}

/// The 50th and the 99th percentile, in µs; 0 without delays.
fn percentiles(delays: &[u64]) -> [f64; 2] {
    let mut delays = delays.to_vec();
    [50, 99].map(|percent| percentile(&mut delays, percent).map_or(0.0, |delay| delay as f64 / 1e3))
}

fn settled(sequence: &Sequence, run: &Run) -> Option<f64> {
    let ends = sequence.steps.iter().skip(1).copied().chain([u64::MAX]);
    let times = sequence.steps.iter().zip(ends).map(|(&begin, end)| {
        let last = run.changes.iter().rfind(|change| (begin..end).contains(*change));
        last.map_or(0, |last| last - begin)
    });
    times.max().map(|longest| longest as f64 / 1e6)
}

fn worst_excess(sequence: &Sequence, delays: &[u64], plain: &[u64]) -> [f64; 2] {
    let mut worst = [0.0_f64; 2];
    let mut begin = sequence.first_measured();
    while begin < delays.len() {
        let window = sequence.arrivals[begin] / WINDOW;
        let end = begin + sequence.arrivals[begin..].partition_point(|&arrival| arrival / WINDOW == window);
        if end - begin >= FEW_REQUESTS {
            let (ours, plains) = (percentiles(&delays[begin..end]), percentiles(&plain[begin..end]));
            for index in 0..worst.len() {
                worst[index] = worst[index].max(ours[index] - plains[index]);
            }
        }
        begin = end;
    }
    worst
}
