//! Identical pieces of work that cross cores, measured again and again: what differs between them
//! is the machine's.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use loadgen::medians::{Interval, median, median_interval};
use policies::Cpus;

use crate::Error;
use crate::engine::{CoreAssignment, Figure, LoadKind, LoadPlan, Results, Runner, Turn};

/// How long a piece of work lasts.
const PIECE: Duration = Duration::from_millis(50);
pub(super) const LOAD: &str = "messages";
/// Groups of rounds that a resolution needs, so that it isn't the luck of one.
const MIN_GROUPS: usize = 3;

/// Runs pieces of work for `duration`, two identical contenders in turns.
pub(super) fn observe(cores: CoreAssignment, duration: Duration) -> Result<Results, Error> {
    /// More rounds than there is time for: the time ends it.
    const MANY: usize = 10_000;
    let mut silent = |_: &str| {};
    let mut runner = Runner::new(cores, &mut silent);
    let plan = LoadPlan::new(LOAD, LoadKind::Closed, 0.0, MANY, duration);
    runner.measure(plan, &["one", "the same again"].map(str::to_owned), |_| {
        let trips = round_trips(cores.server, cores.client, Duration::ZERO)?;
        Ok(Turn::new([(Figure::Throughput, trips.len() as f64 / PIECE.as_secs_f64())]))
    })?;
    Ok(runner.finish(&[0]))
}

/// The half-width of the 95 % interval of the ratio of two identical contestants in a full run, for
/// example 0.05: the median over groups of as many rounds as a full run has. `None` if there were
/// fewer than three groups.
pub(super) fn resolution(results: &Results, rounds: usize) -> Option<f64> {
    let ratio = |round: &Vec<Option<&Turn>>| {
        Some(round[1]?.get(Figure::Throughput) / round[0]?.get(Figure::Throughput))
    };
    half_width(&results.rounds_of(LOAD).iter().filter_map(ratio).collect::<Vec<_>>(), rounds)
}

/// The median half-width of the intervals that groups of `rounds` ratios have.
fn half_width(ratios: &[f64], rounds: usize) -> Option<f64> {
    let mut widths: Vec<f64> = ratios
        .chunks_exact(rounds.max(1))
        .map(median_interval)
        .filter(Interval::reaches_target)
        .map(|interval| (interval.high - interval.low) / 2.0)
        .collect();
    widths.sort_by(f64::total_cmp);
    (widths.len() >= MIN_GROUPS).then(|| widths[widths.len() / 2])
}

/// The time from waking a thread on `sleeper`, which has idled, until it runs, in µs: half of the
/// median round trip of a message.
pub(super) fn wake_up_us(waker: u32, sleeper: u32) -> io::Result<f64> {
    const IDLE: Duration = Duration::from_micros(300);
    Ok(median(&round_trips(waker, sleeper, IDLE)?) * 1e6 / 2.0)
}

/// Messages between two threads on these cores, each of which sleeps until the other's arrives:
/// seconds of each round trip, of as many as fit into a piece. The first one spins for `idle`
/// before each.
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

    #[test]
    fn a_resolution_is_the_half_width_of_intervals_of_identical_contestants() {
        let ratios: Vec<f64> = (0..21).map(|index| if index % 7 == 0 { 0.9 } else { 1.1 }).collect();
        let found = half_width(&ratios, 7).unwrap();
        assert!((found - 0.1).abs() < 1e-9, "{found}");
        assert_eq!(half_width(&ratios[..20], 7), None, "two groups are too few");
        assert_eq!(half_width(&ratios, 5), None, "five rounds have no interval");
    }
}
