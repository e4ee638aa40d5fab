//! When requests are due.

use std::fmt;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FleetPacing {
    /// At due times, whatever the server does: a Poisson process over all connections. A request
    /// goes to a connection that has room for it, drawn at random, and waits if none has.
    Open { rate: f64 },
    /// Like the open loop, at a rate that steps up and down.
    Alternating(AlternatingRate),
    /// When the reply to the previous request has arrived.
    Closed,
}

impl FleetPacing {
    /// With so many times the rates.
    pub(crate) fn times(self, factor: f64) -> Self {
        match self {
            Self::Open { rate } => Self::Open { rate: rate * factor },
            Self::Alternating(rate) => Self::Alternating(AlternatingRate {
                high: rate.high * factor,
                low: rate.low * factor,
                ..rate
            }),
            Self::Closed => Self::Closed,
        }
    }
}

/// The open loop at a rate that alternates. The measurement begins with a step up. Latencies are
/// kept apart by windows that begin with each step; the windows of all cycles that have the same
/// distance from their step are one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AlternatingRate {
    pub high: f64,
    /// Requests per second after a step down; 0 for none.
    pub low: f64,
    /// From a step to the next.
    pub seconds: f64,
    pub window_seconds: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    Up,
    Down,
}

policies::names!(Step, "step": Up = "up", Down = "down");

impl AlternatingRate {
    pub fn steps(&self) -> Vec<Step> {
        if self.low > 0.0 { vec![Step::Up, Step::Down] } else { vec![Step::Up] }
    }

    /// Windows after each step.
    pub fn windows(&self) -> usize {
        // Rounded to nanoseconds: 0.5 / 0.02 may be more than 25.
        nanos(self.seconds).div_ceil(nanos(self.window_seconds)) as usize
    }

    /// The index of the window in which a moment lies, in ns from the begin of the measurement on.
    /// Those after a step up come first.
    pub(super) fn window(&self, at: i64) -> usize {
        let (step, position) = (nanos(self.seconds), self.position(at));
        let after = if position < step { 0 } else { self.windows() };
        after + (position % step / nanos(self.window_seconds)) as usize
    }

    /// The moment, in ns from the begin of the measurement on, at which the expected number of
    /// requests since `at` is `requests`.
    fn after(&self, at: f64, requests: f64) -> f64 {
        let step = nanos(self.seconds);
        let (mut at, mut left) = (at, requests);
        loop {
            let position = self.position(at.floor() as i64);
            let rate = if position < step { self.high } else { self.low };
            let rest = (step - position % step) as f64;
            let gap = left * 1e9 / rate;
            // Infinite, if no requests are due.
            if gap < rest {
                return at + gap;
            }
            // Not below 0 by rounding: nothing would be due for minus infinity.
            left = (left - rest * rate / 1e9).max(0.0);
            at += rest;
        }
    }

    /// The time since the last step up, in ns.
    fn position(&self, at: i64) -> u64 {
        at.rem_euclid(2 * nanos(self.seconds).cast_signed()).cast_unsigned()
    }
}

/// For example `steps of 400 ms, 4000 to 36000/s`, or `bursts of 10 ms, 36000/s`.
impl fmt::Display for AlternatingRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = Duration::from_secs_f64(self.seconds);
        if self.low > 0.0 {
            write!(f, "steps of {length:?}, {:.0} to {:.0}/s", self.low, self.high)
        } else {
            write!(f, "bursts of {length:?}, {:.0}/s", self.high)
        }
    }
}

/// At least 1.
fn nanos(seconds: f64) -> u64 {
    ((seconds * 1e9).round() as u64).max(1)
}

#[derive(Debug)]
pub(super) struct Pacer {
    pacing: FleetPacing,
    pub(super) random: SmallRng,
    /// When the measurement begins, less `postponed`, in ns.
    origin: u64,
    /// When the next request of the open loop is due, in ns.
    next_due: f64,
    /// The connections of the closed loop, how many of them have begun, when the first one did, and
    /// the time until the last one does, in ns.
    connections: u64,
    begun: u64,
    begin: u64,
    ramp: u64,
    /// By how much everything has been postponed, in ns.
    postponed: u64,
}

impl Pacer {
    /// Begins at `now`, in ns, and measures from `origin` on. In the closed loop the connections
    /// begin one after the other in the first half of the time before: if all sent at once, they
    /// would overflow the server's queue.
    pub(super) fn new(pacing: FleetPacing, seed: u64, now: u64, origin: u64, connections: usize) -> Self {
        let mut pacer = Self {
            pacing,
            random: SmallRng::seed_from_u64(seed),
            origin,
            next_due: now as f64,
            connections: connections as u64,
            begun: 0,
            begin: now,
            ramp: (origin - now) / 2,
            postponed: 0,
        };
        pacer.advance();
        pacer
    }

    pub(super) fn is_open(&self) -> bool {
        self.pacing != FleetPacing::Closed
    }

    /// Whether the rate depends on the time since the begin of the measurement.
    pub(super) fn alternates(&self) -> bool {
        matches!(self.pacing, FleetPacing::Alternating(_))
    }

    /// Begins the measurement at `now`, after the pauses so far.
    pub(super) fn measure_from(&mut self, now: u64) {
        self.origin = now - self.postponed;
    }

    /// The time from the begin of the measurement to `due` without pauses, in ns. `due` must not be
    /// before the end of the last pause: earlier times would come out too early by its length.
    #[inline]
    pub(super) fn since_origin(&self, due: u64) -> i64 {
        due.wrapping_sub(self.origin + self.postponed).cast_signed()
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        // 1 - x, because x can be 0 and 1 - x can't.
        -(1.0 - self.random.random::<f64>()).ln() * mean
    }

    #[inline]
    pub(super) fn due(&self) -> u64 {
        self.next_due as u64
    }

    /// Draws the next due time of the open loop.
    #[inline]
    pub(super) fn advance(&mut self) {
        match self.pacing {
            FleetPacing::Open { rate } => self.next_due += self.exponential(1e9 / rate),
            FleetPacing::Alternating(rate) => {
                let begin = (self.origin + self.postponed) as f64;
                let requests = self.exponential(1.0);
                self.next_due = begin + rate.after(self.next_due - begin, requests);
            }
            FleetPacing::Closed => {}
        }
    }

    /// Makes everything that is due `nanos` later.
    pub(super) fn postpone(&mut self, nanos: u64) {
        self.next_due += nanos as f64;
        self.postponed += nanos;
    }

    /// A connection of the closed loop that sends its first request now.
    #[inline]
    pub(super) fn next_to_begin(&mut self, now: u64) -> Option<u32> {
        if self.begun == self.connections
            || self.begin + self.ramp * self.begun / self.connections + self.postponed > now
        {
            return None;
        }
        self.begun += 1;
        Some((self.begun - 1) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pacer(pacing: FleetPacing) -> Pacer {
        Pacer::new(pacing, 1, 1000, 1800, 4)
    }

    #[test]
    fn the_gaps_of_the_open_loop_have_the_mean_of_the_rate() {
        let mut pacer = pacer(FleetPacing::Open { rate: 1000.0 });
        for _ in 0..10_000 {
            pacer.advance();
        }
        let mean = (pacer.due() - 1000) as f64 / 10_001.0;
        assert!((mean / 1e6 - 1.0).abs() < 0.05, "{mean}");
    }

    #[test]
    fn an_alternating_rate_begins_with_the_measurement_and_waits_for_pauses() {
        let rate = AlternatingRate { high: 1e9, low: 1e6, seconds: 1e-6, window_seconds: 1e-6 };
        let mut pacer = pacer(FleetPacing::Alternating(rate));
        let mut due = || {
            pacer.advance();
            pacer.since_origin(pacer.due())
        };
        // Of 2 µs the first has 1000 requests, and the second one.
        let within: Vec<i64> = std::iter::repeat_with(&mut due).take_while(|&at| at < 2_000).collect();
        let high = within.iter().filter(|at| (0..1000).contains(*at)).count();
        assert!((850..1150).contains(&high) && within.len() - high < 30, "{high} of {}", within.len());
        let (before, at) = (pacer.due(), pacer.since_origin(pacer.due()));
        pacer.postpone(5000);
        assert_eq!((pacer.due(), pacer.since_origin(pacer.due())), (before + 5000, at));
    }

    #[test]
    fn the_connections_of_the_closed_loop_begin_one_after_the_other() {
        let mut pacer = pacer(FleetPacing::Closed);
        let mut at = |now| pacer.next_to_begin(now);
        assert_eq!([at(999), at(1000), at(1000)], [None, Some(0), None]);
        assert_eq!([at(1100), at(1300), at(1300), at(2000)], [Some(1), Some(2), Some(3), None]);
    }

    #[test]
    fn a_pause_postpones_due_times_and_the_begin_of_connections() {
        let mut open = pacer(FleetPacing::Open { rate: 1e6 });
        let due = open.due();
        open.postpone(5000);
        assert_eq!(open.due(), due + 5000);
        let mut closed = pacer(FleetPacing::Closed);
        closed.postpone(5000);
        assert_eq!((closed.next_to_begin(5999), closed.next_to_begin(6000)), (None, Some(0)));
    }

    /// 1000/s for 100 ms, then 100/s for as long.
    const RATE: AlternatingRate =
        AlternatingRate { high: 1000.0, low: 100.0, seconds: 0.1, window_seconds: 0.02 };
    const MILLI: f64 = 1e6;

    #[test]
    fn a_gap_goes_on_across_a_step_at_the_other_rate() {
        assert_eq!(RATE.after(0.0, 50.0), 50.0 * MILLI);
        // 10 of 15 requests are due until the step, and the others take ten times as long.
        assert_eq!(RATE.after(90.0 * MILLI, 15.0), 150.0 * MILLI);
        // 110 requests are due in each cycle.
        assert_eq!(RATE.after(0.0, 220.0), 400.0 * MILLI);
        // Before the measurement it is the end of a cycle.
        assert_eq!(RATE.after(-100.0 * MILLI, 10.0 + 5.0), 5.0 * MILLI);
    }

    #[test]
    fn nothing_is_due_between_bursts() {
        let bursts = AlternatingRate { low: 0.0, ..RATE };
        assert_eq!(bursts.after(99.5 * MILLI, 1.0), 200.5 * MILLI);
        assert_eq!(bursts.steps(), [Step::Up]);
        assert_eq!(bursts.to_string(), "bursts of 100ms, 1000/s");
        assert_eq!(RATE.to_string(), "steps of 100ms, 100 to 1000/s");
    }

    #[test]
    fn windows_begin_with_each_step_and_are_the_same_in_every_cycle() {
        assert_eq!(RATE.windows(), 5);
        let window = |millis: i64| RATE.window(millis * 1_000_000);
        assert_eq!([0, 19, 20, 99, 100, 119, 199].map(window), [0, 0, 1, 4, 5, 5, 9]);
        assert_eq!([200, 220, -1].map(window), [0, 1, 9]);
        // 0.5 / 0.02 is not a whole number of windows in floating point.
        assert_eq!(AlternatingRate { seconds: 0.5, ..RATE }.windows(), 25);
    }
}
