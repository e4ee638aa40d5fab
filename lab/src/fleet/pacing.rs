//! When requests are due.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FleetPacing {
    /// At due times, whatever the server does: a Poisson process over all connections. A request
    /// goes to a connection that has room for it, drawn at random, and waits if none has.
    Open { rate: f64 },
    /// When the reply to the previous request has arrived.
    Closed,
}

impl FleetPacing {
    /// With so many times the rates.
    pub(crate) fn times(self, factor: f64) -> Self {
        match self {
            Self::Open { rate } => Self::Open { rate: rate * factor },
            Self::Closed => Self::Closed,
        }
    }
}

#[derive(Debug)]
pub(super) struct Pacer {
    pacing: FleetPacing,
    pub(super) random: SmallRng,
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
    /// Begins at `now`, in ns; the measurement, at `from`. In the closed loop the connections
    /// begin one after the other in the first half of the time before: if all sent at once, they
    /// would overflow the server's queue.
    pub(super) fn new(pacing: FleetPacing, seed: u64, now: u64, from: u64, connections: usize) -> Self {
        let mut pacer = Self {
            pacing,
            random: SmallRng::seed_from_u64(seed),
            next_due: now as f64,
            connections: connections as u64,
            begun: 0,
            begin: now,
            ramp: (from - now) / 2,
            postponed: 0,
        };
        pacer.advance();
        pacer
    }

    pub(super) fn is_open(&self) -> bool {
        self.pacing != FleetPacing::Closed
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
}
