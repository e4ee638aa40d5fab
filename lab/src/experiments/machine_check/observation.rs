//! Identical pieces of work that cross cores, measured again and again: what differs between them is the machine's.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use loadgen::medians::{Interval, median, median_interval};
use policies::Cpus;
use serde::Serialize;

use crate::Error;
use crate::engine::{CoreAssignment, DistanceClass, Figure, LoadKind, LoadPlan, Results, Runner, Turn};

/// How long a piece of work lasts.
const PIECE: Duration = Duration::from_millis(50);
const LOAD: &str = "messages";
/// Groups of rounds that a resolution needs, so that it isn't the luck of one.
const MIN_GROUPS: usize = 3;

/// What the two cores did while identical pieces of work ran.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Observation {
    pub seconds: f64,
    pub classes: Vec<SeenClass>,
    pub changes: usize,
    /// CPU time that the hypervisor took (steal), as a share of one core.
    pub steal: f64,
    /// The most steal in a row, in seconds.
    pub longest_steal: f64,
    /// The half-width of the 95 % interval of the ratio of two identical contestants in a full run, for example 0.05:
    /// the median over groups of as many rounds as a full run has. `None` if there were fewer than three groups.
    pub resolution: Option<f64>,
}

#[derive(Debug, Clone, Serialize)]
pub struct SeenClass {
    pub class: DistanceClass,
    /// The shortest distance, in nanoseconds.
    pub low: f64,
    /// The longest distance, in nanoseconds.
    pub high: f64,
    /// The share of pieces of work in this class, 0 to 1.
    pub share: f64,
}

impl Observation {
    /// Runs pieces of work for `duration`, two identical contenders in turns.
    pub(super) fn take(cores: CoreAssignment, duration: Duration, rounds: usize) -> Result<Self, Error> {
        /// More rounds than there is time for: the time ends it.
        const MANY: usize = 10_000;
        let begun = Instant::now();
        let mut silent = |_: &str| {};
        let mut runner = Runner::new(cores, &mut silent);
        let plan = LoadPlan::new(LOAD, LoadKind::Closed, 0.0, MANY, duration);
        let names = ["one", "the same again"].map(str::to_owned);
        runner.measure(plan, &names, |_| {
            let trips = round_trips(cores.server, cores.client, Duration::ZERO)?;
            Ok(Turn::new([(Figure::Throughput, trips.len() as f64 / PIECE.as_secs_f64())]))
        })?;
        Ok(Self::of(&runner.finish(&[0]), begun.elapsed().as_secs_f64(), rounds))
    }

    /// Of turns of two identical contenders.
    fn of(results: &Results, seconds: f64, rounds: usize) -> Self {
        let turns = || results.measurements.iter().flat_map(|measured| &measured.turns);
        let all = results.loads.iter().map(|load| load.rounds).sum::<usize>().max(1) as f64;
        let classes = results.loads.iter().filter_map(|load| {
            let (low, high) = load.distance?;
            Some(SeenClass { class: load.class, low, high, share: load.rounds as f64 / all })
        });
        let classes: Vec<SeenClass> = classes.collect();
        let class = |distance: f64| classes.iter().position(|it| (it.low..=it.high).contains(&distance));
        let in_order: Vec<usize> =
            turns().filter_map(|turn| class(turn.conditions.distance?.after)).collect();
        let count = turns().count().max(1) as f64;
        let (mut burst, mut longest, mut stolen) = (0.0, 0.0f64, 0.0);
        for steal in turns().map(|turn| turn.conditions.steal) {
            burst = if steal > 0.0 { burst + steal * seconds / count } else { 0.0 };
            longest = longest.max(burst);
            stolen += steal;
        }
        let ratio = |round: &Vec<Option<&Turn>>| {
            Some(round[1]?.get(Figure::Throughput) / round[0]?.get(Figure::Throughput))
        };
        let leading: Vec<f64> = results.rounds_of(LOAD).iter().filter_map(ratio).collect();
        Self {
            seconds,
            changes: in_order.windows(2).filter(|pair| pair[0] != pair[1]).count(),
            classes,
            steal: stolen / count,
            longest_steal: longest,
            resolution: resolution(&leading, rounds),
        }
    }
}

/// The median half-width of the intervals that groups of `rounds` ratios have.
fn resolution(ratios: &[f64], rounds: usize) -> Option<f64> {
    let mut widths: Vec<f64> = ratios
        .chunks_exact(rounds.max(1))
        .map(median_interval)
        .filter(Interval::reaches_target)
        .map(|interval| (interval.high - interval.low) / 2.0)
        .collect();
    widths.sort_by(f64::total_cmp);
    (widths.len() >= MIN_GROUPS).then(|| widths[widths.len() / 2])
}

/// The time from waking a thread on `sleeper`, which has idled, until it runs, in µs: half of the median round trip of a message.
pub(super) fn wake_up_us(waker: u32, sleeper: u32) -> io::Result<f64> {
    const IDLE: Duration = Duration::from_micros(300);
    Ok(median(&round_trips(waker, sleeper, IDLE)?) * 1e6 / 2.0)
}

/// Messages between two threads on these cores, each of which sleeps until the other's arrives: seconds of each round trip, of as
/// many as fit into a piece. The first one spins for `idle` before each.
fn round_trips(core_a: u32, core_b: u32, idle: Duration) -> io::Result<Vec<f64>> {
    let (mut near, mut far) = UnixStream::pair()?;
    // Ends either thread if the other failed.
    near.set_read_timeout(Some(Duration::from_secs(2)))?;
    thread::scope(|scope| {
        let echo = scope.spawn(move || {
            Cpus::one(core_b).pin(None)?;
            let mut byte = [0];
            while far.read(&mut byte)? == 1 {
                far.write_all(&byte)?;
            }
            Ok::<_, io::Error>(())
        });
        let measuring = scope.spawn(move || {
            Cpus::one(core_a).pin(None)?;
            let (mut byte, mut trips, begun) = ([0], Vec::new(), Instant::now());
            while begun.elapsed() < PIECE {
                let sent = Instant::now();
                while sent.elapsed() < idle {
                    std::hint::spin_loop();
                }
                let sent = Instant::now();
                near.write_all(&byte)?;
                near.read_exact(&mut byte)?;
                trips.push(sent.elapsed().as_secs_f64());
            }
            Ok(trips)
        });
        let panicked = || io::Error::other("a measuring thread panicked");
        let trips = measuring.join().unwrap_or_else(|_| Err(panicked()));
        echo.join().unwrap_or_else(|_| Err(panicked()))?;
        trips
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::results_of;

    #[test]
    fn a_resolution_is_the_half_width_of_intervals_of_identical_contestants() {
        let ratios: Vec<f64> = (0..21).map(|index| if index % 7 == 0 { 0.9 } else { 1.1 }).collect();
        let found = resolution(&ratios, 7).unwrap();
        assert!((found - 0.1).abs() < 1e-9, "{found}");
        assert_eq!(resolution(&ratios[..20], 7), None, "two groups are too few");
        assert_eq!(resolution(&ratios, 5), None, "five rounds have no interval");
        let load = [(LOAD, LoadKind::Closed, 0.0, None)];
        let results = results_of(&load, &["one", "again"], &[0], 21, |_, _, _| {
            Turn::new([(Figure::Throughput, 1000.0)])
        });
        let found = Observation::of(&results, 4.0, 7);
        assert_eq!((found.classes.len(), found.changes, found.resolution), (1, 0, Some(0.0)));
        assert_eq!((found.classes[0].low, found.classes[0].share), (100.0, 1.0));
    }
}
