//! The spin that costs least on average.

use std::time::Duration;

use policies::law::GapHistogram;

use super::{Drive, FinishedWait, Rule};
use crate::simulator::costs::Costs;

/// How often a spin is chosen.
const STEP: u64 = 10_000_000;
/// The spins to choose from, in µs.
const SPINS: [u64; 8] = [0, 1, 2, 4, 8, 16, 32, 64];

/// Each 10 ms the spin S with the least E[min(gap, S)] + (C + L) · P(gap > S), where C is the CPU time and L the delay of a
/// sleep: a µs of delay is worth a µs of CPU time.
pub(in crate::simulator) struct SpinByCost {
    gaps: GapHistogram,
    spin: u64,
    next_step: u64,
    sleep_cost: f64,
}

impl SpinByCost {
    pub(in crate::simulator) fn new(costs: &Costs) -> Self {
        let sleep_cost = (costs.irq + costs.block + 2 * costs.pass + costs.wake_latency) as f64;
        Self { gaps: GapHistogram::default(), spin: 0, next_step: STEP, sleep_cost }
    }

    fn cost(&self, spin: u64) -> f64 {
        let limit = Duration::from_micros(spin);
        let spun = if spin == 0 { 0.0 } else { self.gaps.mean_up_to(limit).as_nanos() as f64 };
        spun + self.sleep_cost * (1.0 - self.gaps.share_within(limit))
    }
}

impl Rule for SpinByCost {
    fn drive(&self) -> Drive {
        Drive::interrupt_first(self.spin)
    }

    fn waited(&mut self, wait: &FinishedWait) {
        if let Some(gap) = wait.gap {
            self.gaps.record(Duration::from_nanos(gap));
        }
        if wait.ended < self.next_step {
            return;
        }
        self.next_step = wait.ended + STEP;
        if self.gaps.weight() >= 1.0 {
            let best = SPINS.into_iter().min_by(|one, other| self.cost(*one).total_cmp(&self.cost(*other)));
            self.spin = best.unwrap_or(0) * 1_000;
        }
        self.gaps.decay();
    }
}
