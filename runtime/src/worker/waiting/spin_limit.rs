//! How long to spin before a block, by what earlier waits would have cost.
//!
//! A wait that ends after a gap `g` costs `g` if the worker spins that long, and the spin's limit plus a block's cost `C` if it
//! doesn't. A limit of `C` costs at most twice as much as the best choice for each single wait (Karlin and others, 1994; for
//! messages Damianakis, Chen and Felten, 1997). Where gaps are alike another limit is better: none where they are long, and
//! one just above them where they are short. So the limit is the one that would have cost least over the last waits. Once these
//! choices have cost 1.9 times as much as the best fixed limit, the limit is `C`. That bounds the total for any sequence. It is
//! judged anew every some thousand waits: with `C` long waits cost twice the best, so the choices would never come back.

use std::cell::RefCell;
use std::time::Duration;

use policies::law::MachineCosts;

use crate::counters::counter::Counter;
use crate::counters::waiting::WaitingCounters;

/// Limits that are compared: none, and multiples of an eighth of a block's cost up to all of it. A longer spin than a block's
/// cost is not cheaper than a block at once.
const LIMITS: usize = 9;
/// After this number of waits older ones count half.
const HALF_LIFE: u32 = 64;
/// By what factor the choices may cost more than the best fixed limit.
const MOST_REGRET: f64 = 1.9;
/// How many blocks they may cost more in addition, because the first choices know nothing.
const FREE_BLOCKS: f64 = 16.0;
/// For how many waits the choices are judged together.
const JUDGED_WAITS: u32 = 4096;

/// Chooses the limit of a worker's spins.
#[derive(Debug)]
pub(crate) struct SpinLimit {
    costs: MachineCosts,
    state: RefCell<State>,
}

#[derive(Debug)]
struct State {
    /// What the last waits would have cost with each limit, in ns. Older waits count less.
    recent: [f64; LIMITS],
    /// What all waits would have cost with each limit, in ns.
    total: [f64; LIMITS],
    /// What all waits have cost, in ns.
    cost: f64,
    /// The same as `total` and `cost`, of the waits that are judged together.
    judged_total: [f64; LIMITS],
    judged_cost: f64,
    /// The number of these waits.
    waits: u32,
    /// The index of the present limit.
    limit: usize,
}

impl SpinLimit {
    pub(crate) fn new(costs: MachineCosts) -> Self {
        let state = State {
            recent: [0.0; LIMITS],
            total: [0.0; LIMITS],
            cost: 0.0,
            judged_total: [0.0; LIMITS],
            judged_cost: 0.0,
            waits: 0,
            // At most twice the best choice, whatever comes.
            limit: LIMITS - 1,
        };
        Self { costs, state: RefCell::new(state) }
    }

    /// How long to spin before the next block.
    pub(crate) fn limit(&self) -> Duration {
        Duration::from_nanos(self.nanos(self.state.borrow().limit) as u64)
    }

    /// What a block costs: CPU time, and the delay until the thread runs, ns.
    fn block(&self) -> f64 {
        (self.costs.block + self.costs.wake_latency).as_nanos() as f64
    }

    fn nanos(&self, limit: usize) -> f64 {
        self.block() * limit as f64 / (LIMITS - 1) as f64
    }

    fn cost(&self, limit: usize, gap: f64) -> f64 {
        let spin = self.nanos(limit);
        if gap <= spin { gap } else { spin + self.block() }
    }

    /// A wait has ended after `elapsed`. `blocked`: after the spin a call was made that sleeps if nothing has come meanwhile.
    pub(crate) fn record(&self, elapsed: Duration, blocked: bool, counters: &WaitingCounters) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let spin = self.nanos(state.limit);
        let elapsed = elapsed.as_nanos() as f64;
        // A sleep takes at least its own CPU time: a call that took less has found something at once.
        let slept = blocked && elapsed - spin > self.costs.block.as_nanos() as f64;
        // The wake-up may have been faster than the measured one, but what ended a sleep came after the spin.
        let gap = match slept {
            true => (elapsed - self.costs.wake_latency.as_nanos() as f64).max(spin + 1.0),
            false => elapsed,
        };
        // A spin that took longer was interrupted: other threads had the core.
        let cost = if slept { spin + self.block() } else { gap.min(spin + self.block()) };
        state.cost += cost;
        state.judged_cost += cost;
        for limit in 0..LIMITS {
            let cost = self.cost(limit, gap);
            state.recent[limit] += cost;
            state.total[limit] += cost;
            state.judged_total[limit] += cost;
        }
        state.waits += 1;
        if state.waits.is_multiple_of(HALF_LIFE) {
            state.recent.iter_mut().for_each(|cost| *cost /= 2.0);
        }
        let best_fixed = least_cost(&state.total);
        let most = MOST_REGRET * least_cost(&state.judged_total) + FREE_BLOCKS * self.block();
        let too_much = state.judged_cost > most;
        if state.waits >= JUDGED_WAITS {
            state.waits = 0;
            state.judged_cost = 0.0;
            state.judged_total = [0.0; LIMITS];
        }
        state.limit = if too_much { LIMITS - 1 } else { least(&state.recent) };
        let set = |counter: &Counter, nanos: f64| counter.set(nanos as u64);
        counters.waits.add(1);
        counters.blocks.add(u64::from(slept));
        set(&counters.spin_limit_ns, self.nanos(state.limit));
        set(&counters.block_ns, self.block());
        set(&counters.cost_ns, state.cost);
        set(&counters.blocking_cost_ns, state.total[0]);
        set(&counters.best_fixed_cost_ns, best_fixed);
    }
}

fn least_cost(costs: &[f64; LIMITS]) -> f64 {
    costs.iter().copied().fold(f64::INFINITY, f64::min)
}

/// The index of the least cost; the first of equal ones.
fn least(costs: &[f64; LIMITS]) -> usize {
    (0..LIMITS).min_by(|a, b| costs[*a].total_cmp(&costs[*b])).unwrap_or(LIMITS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: Duration = Duration::from_micros(8);
    const COSTS: MachineCosts =
        MachineCosts { block: Duration::from_micros(5), wake_latency: Duration::from_micros(3) };

    /// Runs waits with these gaps in µs, and returns what they cost, and the least that a fixed limit costs.
    fn run(gaps: impl IntoIterator<Item = f64>) -> (SpinLimit, f64, f64) {
        let (limit, counters) = (SpinLimit::new(COSTS), WaitingCounters::default());
        for gap in gaps {
            let gap = Duration::from_nanos((gap * 1e3) as u64);
            if gap <= limit.limit() {
                limit.record(gap, false, &counters);
            } else {
                limit.record(gap + COSTS.wake_latency, true, &counters);
            }
        }
        let costs = (counters.cost_ns.get() as f64, counters.best_fixed_cost_ns.get() as f64);
        (limit, costs.0, costs.1)
    }

    #[test]
    fn short_gaps_are_spun_through_and_long_ones_are_not_spun_for() {
        let (limit, cost, best) = run(std::iter::repeat_n(2.0, 10_000));
        assert!(limit.limit() >= Duration::from_micros(2), "{:?}", limit.limit());
        assert!(cost < best * 1.02, "{cost} {best}");
        let (limit, cost, best) = run(std::iter::repeat_n(500.0, 10_000));
        assert_eq!(limit.limit(), Duration::ZERO);
        assert!(cost < best * 1.02, "{cost} {best}");
    }

    #[test]
    fn an_interrupted_spin_and_a_misleading_phase_are_forgotten() {
        let (limit, counters) = (SpinLimit::new(COSTS), WaitingCounters::default());
        limit.record(Duration::from_millis(4), false, &counters);
        assert_eq!(counters.cost_ns.get(), 16_000, "the spin and a block");
        for index in 0..20_000 {
            let gap = Duration::from_micros(if index % 2 == 0 { 1 } else { 1_000 });
            let slept = gap > limit.limit();
            limit.record(if slept { gap + COSTS.wake_latency } else { gap }, slept, &counters);
        }
        limit.state.borrow_mut().judged_cost *= 3.0;
        (0..2 * JUDGED_WAITS).for_each(|_| limit.record(Duration::from_millis(1), true, &counters));
        assert_eq!(limit.limit(), Duration::ZERO);
    }

    #[test]
    fn short_gaps_are_found_although_wake_ups_are_faster_than_measured() {
        let (limit, counters) = (SpinLimit::new(COSTS), WaitingCounters::default());
        (0..1_000).for_each(|_| limit.record(Duration::from_micros(500), true, &counters));
        assert_eq!(limit.limit(), Duration::ZERO);
        let (gap, wake) = (Duration::from_micros(4), Duration::from_nanos(1_500));
        for _ in 0..1_000 {
            let slept = gap > limit.limit();
            limit.record(if slept { gap + wake } else { gap }, slept, &counters);
        }
        assert!(limit.limit() >= gap, "{:?}", limit.limit());
    }

    #[test]
    fn a_sleeping_call_that_returns_at_once_is_no_sleep() {
        let (limit, counters) = (SpinLimit::new(COSTS), WaitingCounters::default());
        limit.record(limit.limit() + Duration::from_micros(1), true, &counters);
        assert_eq!((counters.waits.get(), counters.blocks.get()), (1, 0));
        assert_eq!(counters.cost_ns.get(), 9_000);
        limit.record(limit.limit() + COSTS.block + Duration::from_micros(1), true, &counters);
        assert_eq!((counters.waits.get(), counters.blocks.get()), (2, 1));
    }

    #[test]
    fn a_change_of_the_gaps_changes_the_limit_within_some_hundred_waits() {
        let (limit, ..) = run([2.0; 5_000].into_iter().chain([500.0; 200]));
        assert_eq!(limit.limit(), Duration::ZERO);
        let (limit, ..) = run([500.0; 5_000].into_iter().chain([2.0; 300]));
        assert!(limit.limit() >= Duration::from_micros(2), "{:?}", limit.limit());
    }

    #[test]
    fn no_sequence_costs_more_than_twice_the_best_fixed_limit() {
        let mut sequences: Vec<(String, Vec<f64>)> = Vec::new();
        for period in [1, 2, 3, 7, 40, 64, 100, 1000] {
            let gap = move |index: usize| if (index / period).is_multiple_of(2) { 7.9 } else { 8.1 };
            sequences.push((format!("about a block, period {period}"), (0..50_000).map(gap).collect()));
            let gap = move |index: usize| if (index / period).is_multiple_of(2) { 1.0 } else { 1_000.0 };
            sequences.push((format!("short and long, period {period}"), (0..50_000).map(gap).collect()));
        }
        for mean in [1.0f64, 4.0, 8.0, 16.0, 100.0] {
            // All quantiles of the distribution, in an order without a pattern.
            let quantile = |index: u32| (f64::from(index * 7919 % 50_000) + 0.5) / 50_000.0;
            let exponential = (0..50_000).map(|index| -mean * (1.0 - quantile(index)).ln()).collect();
            sequences.push((format!("exponential, mean {mean}"), exponential));
        }
        for (name, gaps) in sequences {
            let (_, cost, best) = run(gaps);
            assert!(
                cost <= 2.0 * best + 20.0 * BLOCK.as_nanos() as f64,
                "{name}: {cost} ns, at best {best} ns"
            );
        }
    }

    #[test]
    fn an_adversary_that_ends_each_wait_just_after_the_spin_gets_at_most_twice_the_best() {
        let (limit, counters) = (SpinLimit::new(COSTS), WaitingCounters::default());
        for _ in 0..50_000 {
            let gap = limit.limit() + Duration::from_nanos(1);
            limit.record(gap + COSTS.wake_latency, true, &counters);
        }
        let (cost, best) = (counters.cost_ns.get() as f64, counters.best_fixed_cost_ns.get() as f64);
        assert!(cost <= 2.0 * best + 20.0 * BLOCK.as_nanos() as f64, "{cost} ns, at best {best} ns");
    }

    #[test]
    fn choices_that_have_cost_too_much_give_way_to_the_cost_of_a_block() {
        let (limit, counters) = (SpinLimit::new(COSTS), WaitingCounters::default());
        let long = || limit.record(Duration::from_micros(500), true, &counters);
        (0..100).for_each(|_| long());
        assert_eq!(limit.limit(), Duration::ZERO);
        limit.state.borrow_mut().judged_cost *= 3.0;
        long();
        assert_eq!(limit.limit(), BLOCK);
        // Until the total is within the bound again.
        (0..10_000).for_each(|_| limit.record(Duration::from_micros(5), false, &counters));
        let (cost, best) = (counters.cost_ns.get() as f64, counters.best_fixed_cost_ns.get() as f64);
        assert!(cost <= 2.0 * best, "{cost} ns, at best {best} ns");
    }
}
