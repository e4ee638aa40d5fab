//! Which grace time is best on this machine, and whether the runtime finds it by itself.

use std::io;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use loadgen::medians::{Interval, median, median_interval};
use loadgen::rounds::{figures, ratios};
use policies::{GraceTime, Policy};
use serde::Serialize;

use crate::experiment::Bench;
use crate::grace_blocks::Blocks;

/// A grace time this near to the best is as good, and the shorter the better for thin traffic.
const AS_GOOD: f64 = 0.99;

/// One grace time, tried.
#[derive(Debug, Clone, Serialize)]
pub struct Trial {
    /// The grace time; `None` is what the runtime finds by itself.
    pub grace_time: Option<Duration>,
    /// Requests a second, median.
    pub qps: f64,
    /// Throughput over that of the best fixed one, in the same round.
    pub over_best: Interval,
}

/// What was tried, in one server under one load.
#[derive(Debug, Clone, Serialize)]
pub struct Calibration {
    /// The grace times.
    pub trials: Vec<Trial>,
    /// The shortest fixed one that is as good as the best, within 1 %.
    pub best: Option<Duration>,
    /// What the runtime had found at the end.
    pub found: Option<Duration>,
    /// Rounds.
    pub rounds: usize,
    /// The largest share of a core that the hypervisor took.
    pub steal: f64,
}

/// Runs kernel polling, saturated, with grace times in turns; with `adapted` the runtime's own among them.
pub fn calibrate(
    bench: &Bench,
    fixed: &[Duration],
    adapted: bool,
    rounds: usize,
    length: Duration,
) -> io::Result<Option<Calibration>> {
    let polling = bench.plan.contestants.iter().find(|one| one.policy == Policy::KernelPolling);
    let Some(&polling) = polling.filter(|_| bench.has_testbed() && !fixed.is_empty()) else {
        return Ok(None);
    };
    let mut turns: Vec<Option<Duration>> = fixed.iter().copied().map(Some).collect();
    turns.extend(adapted.then_some(None));
    let settle = if adapted { SEARCH } else { Duration::ZERO };
    let blocks = Blocks { turns: turns.clone(), rounds, length, settle };
    let grace_time = if adapted { GraceTime::ADAPTIVE } else { GraceTime::Fixed(fixed[0]) };
    // The load outlasts the turns, whatever each oversleeps.
    let duration = blocks.duration().as_secs_f64() * 1.1 + 0.5;
    let round = bench.measure(polling, grace_time, None, WARM_UP, duration, Some(blocks))?;
    let seen = round.server.grace_blocks.ok_or_else(|| io::Error::other("the server took no turns"))?;
    let qps = |turn: usize| median(&figures(&seen, turn, |rate| *rate));
    let best = (0..fixed.len()).max_by(|&a, &b| qps(a).total_cmp(&qps(b))).unwrap_or(0);
    let trials: Vec<Trial> = (0..turns.len())
        .map(|turn| Trial {
            grace_time: turns[turn],
            qps: qps(turn),
            over_best: median_interval(&ratios(&seen, turn, best, |rate| *rate)),
        })
        .collect();
    let as_good = trials.iter().filter(|trial| trial.over_best.median >= AS_GOOD);
    Ok(Some(Calibration {
        best: as_good.filter_map(|trial| trial.grace_time).min(),
        found: round.server.grace_time.filter(|_| adapted),
        trials,
        rounds,
        steal: round.server.steal,
    }))
}

/// Seconds of load before anything is counted.
const WARM_UP: f64 = 0.3;
/// How long the runtime's own search takes, about.
const SEARCH: Duration = Duration::from_secs(8);

impl Calibration {
    /// In one line.
    pub fn line(&self) -> String {
        let tried = self.trials.iter().map(|trial| {
            let time =
                trial.grace_time.map_or("adapted".to_owned(), |time| format!("{} µs", time.as_micros()));
            format!("{time} {:.0}k", trial.qps / 1e3)
        });
        tried.collect::<Vec<_>>().join(", ")
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header([
            "grace time µs",
            "requests/s",
            "over the best fixed one",
        ]);
        for trial in &self.trials {
            let Interval { median, low, high, .. } = trial.over_best;
            table.add_row([
                trial.grace_time.map_or("adapted".to_owned(), |time| time.as_micros().to_string()),
                format!("{:.0}", trial.qps),
                format!("{median:.3} [{low:.3}, {high:.3}]"),
            ]);
        }
        for column in table.column_iter_mut() {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let mut text = format!(
            "{table}\n{} rounds in one server under one load; medians, 95 % intervals; the hypervisor took {:.1} % of a core\n",
            self.rounds,
            self.steal * 100.0
        );
        if let Some(found) = self.found {
            text.push_str(&format!("the runtime's own search had found {} µs\n", found.as_micros()));
        }
        if let Some(best) = self.best {
            let micros = best.as_micros();
            text.push_str(&format!(
                "the shortest fixed one within 1 % of the best, for a program that can't adapt it: \
                 --gro-flush-timeout {micros}\n"
            ));
        }
        text
    }
}
