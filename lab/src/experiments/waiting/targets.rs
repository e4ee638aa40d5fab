//! What an adaptive wait is to keep, and whether it does.

use crate::engine::DistanceClass;
use loadgen::medians::{Interval, median, median_interval};
use serde::Serialize;

use super::{ADAPTIVE, BLOCK, SERVER, SPIN};
use crate::engine::{Bound, Figure, Results, Round, values};

/// What is to be kept: a figure of adaptive waits over that of another strategy.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Claim {
    /// In words, up to the limit, and from there on.
    pub words: [&'static str; 2],
    /// Whether it is about the memcached server, and not about messages.
    pub of_server: bool,
    figure: Figure,
    /// The strategy that adaptive is compared with; `None`: the better one of spin and block.
    other: Option<usize>,
    /// What the ratio is to be at most.
    pub limit: f64,
}

pub const CLAIMS: [Claim; 4] = [
    Claim {
        words: ["Adaptive's round trip of messages is at most", "of the better of spin and block's"],
        of_server: false,
        figure: Figure::RoundTrip,
        other: None,
        limit: 1.1,
    },
    Claim {
        words: ["Adaptive's CPU time for messages is at most", "of block's"],
        of_server: false,
        figure: Figure::CpuPerRequest,
        other: Some(BLOCK),
        limit: 2.0,
    },
    Claim {
        words: ["Adaptive's p99 at the memcached server is at most", "of spin's"],
        of_server: true,
        figure: Figure::P99,
        other: Some(SPIN),
        limit: 1.1,
    },
    Claim {
        words: ["Adaptive's CPU time at the memcached server is at most", "of spin's"],
        of_server: true,
        figure: Figure::CpuShare,
        other: Some(SPIN),
        limit: 0.3,
    },
];

/// A claim under one load.
#[derive(Debug, Clone, Serialize)]
pub struct Target {
    pub claim: usize,
    pub load: String,
    pub class: DistanceClass,
    pub ratio: Interval,
    /// How the ratio's interval lies to the limit.
    pub outcome: Bound,
}

/// Each claim under each load that it is about.
pub fn targets(results: &Results) -> Vec<Target> {
    let mut targets = Vec::new();
    for (claim, it) in CLAIMS.iter().enumerate() {
        for load in results.loads.iter().filter(|load| (load.name == SERVER) == it.of_server) {
            let rounds: Vec<Round<'_>> = results.rounds(load).collect();
            let ratio = median_interval(&ratios(&rounds, it));
            let outcome = Bound::of(&ratio, it.limit);
            targets.push(Target { claim, load: load.name.clone(), class: load.class, ratio, outcome });
        }
    }
    targets
}

fn ratios(rounds: &[Round<'_>], claim: &Claim) -> Vec<f64> {
    let typical = |strategy| median(&values(rounds, strategy, |turn| turn.get(claim.figure)));
    let better = if typical(SPIN) <= typical(BLOCK) { SPIN } else { BLOCK };
    let other = claim.other.unwrap_or(better);
    let ratio =
        |round: &Round<'_>| Some(round[ADAPTIVE]?.get(claim.figure) / round[other]?.get(claim.figure));
    rounds.iter().filter_map(ratio).filter(|ratio| ratio.is_finite()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{LoadKind, Turn, results_of};

    /// Block, spin and adaptive at a short gap, at a long one, and at the server.
    fn outcomes(rounds: usize) -> Vec<(usize, Bound)> {
        let loads = ["1 µs", "1000 µs", SERVER].map(|name| (name, LoadKind::Closed, 0.0, None));
        let results =
            results_of(&loads, &["block", "spin", "adaptive"], &[0, 1], rounds, |load, contender, _| {
                let [trip, cpu] = match load {
                    "1 µs" => [[12.0, 2.0, 2.1], [16.0, 6.0, 8.0]],
                    _ => [[15.0, 30.0, 18.0], [20.0, 1000.0, 50.0]],
                };
                Turn::new([
                    (Figure::RoundTrip, trip[contender]),
                    (Figure::CpuPerRequest, cpu[contender]),
                    (Figure::P99, [60.0, 40.0, 41.0][contender]),
                    (Figure::CpuShare, [10.0, 100.0, 40.0][contender]),
                ])
            });
        targets(&results).into_iter().map(|target| (target.claim, target.outcome)).collect()
    }

    #[test]
    fn adaptive_is_compared_with_the_better_one_of_spin_and_block_at_each_gap() {
        use Bound::{Broken, Kept};
        assert_eq!(outcomes(8), [(0, Kept), (0, Broken), (1, Kept), (1, Broken), (2, Kept), (3, Broken)]);
        assert!(outcomes(5).iter().all(|(_, outcome)| *outcome == Bound::Undecided));
    }
}
