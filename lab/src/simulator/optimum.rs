//! The least CPU time with which a core could serve a sequence, if it knew all arrivals in advance.

use super::costs::Costs;

/// The CPU time (in ns) that a server takes at least if no request is delayed by more than `delay` ns and a wake-up while
/// the core has nothing else to do.
///
/// The optimum receives and serves every request at the usual costs, but polls for free: while it is busy it pays
/// neither interrupts nor passes, and before a sleep it does not look whether something has come. Where the queue is empty, it
/// chooses the cheapest of these, knowing what it leads to:
/// - spin until the next arrival: the length of the gap;
/// - sleep until the next arrival: an interrupt and a block;
/// - sleep until `delay` after the next arrival: one tick and a block for all that has come by then.
///
/// No rule can reach this where it has to poll or is interrupted while it is busy.
pub(super) fn least_cpu_time(arrivals: &[u64], delay: u64, costs: &Costs) -> u64 {
    let per_request = costs.receive + costs.service;
    let wake = costs.idle_exit() + costs.waking();
    // For each request at which the queue can be empty: since when, and the cost of all gaps before it.
    let mut empty_queues: Vec<Vec<(u64, u64)>> = vec![Vec::new(); arrivals.len() + 1];
    empty_queues[0].push((arrivals.first().copied().unwrap_or(0), 0));
    for (index, &arrival) in arrivals.iter().enumerate() {
        let histories = std::mem::take(&mut empty_queues[index]);
        let Some(least) = histories.iter().map(|history| history.1).min() else { continue };
        let spun = histories.iter().map(|&(empty, spent)| spent + (arrival - empty)).min().unwrap_or(least);
        let mut starts = vec![(arrival, spun), (arrival + wake + costs.irq, least + costs.irq + costs.block)];
        if delay > 0 {
            starts.push((arrival + delay + wake + costs.tick, least + costs.tick + costs.block));
        }
        for (start, spent) in starts {
            let (next, empty) = serve_until_empty(arrivals, index, start, per_request);
            let histories = &mut empty_queues[next];
            match histories.iter_mut().find(|history| history.0 == empty) {
                Some(history) => history.1 = history.1.min(spent),
                None => histories.push((empty, spent)),
            }
        }
    }
    let gaps = empty_queues[arrivals.len()].iter().map(|history| history.1).min();
    gaps.unwrap_or(0) + per_request * arrivals.len() as u64
}

/// Serves from the request `index` on. Returns the first request that finds an empty queue, and since when it is empty.
fn serve_until_empty(arrivals: &[u64], index: usize, start: u64, per_request: u64) -> (usize, u64) {
    let (mut next, mut now) = (index, start);
    while arrivals.get(next).is_some_and(|&arrival| arrival <= now) {
        now += per_request;
        next += 1;
    }
    (next, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs::BARE;

    fn idle_cost(arrivals: &[u64], delay: u64) -> u64 {
        least_cpu_time(arrivals, delay, &COSTS) - (COSTS.receive + COSTS.service) * arrivals.len() as u64
    }

    #[test]
    fn a_gap_costs_what_it_takes_to_spin_or_a_sleep_if_that_is_less() {
        // The queue is empty from the first arrival on, and then 2.3 µs after each start.
        assert_eq!(idle_cost(&[1_000_000], 0), 0);
        assert_eq!(idle_cost(&[0, 2_800], 0), 500);
        assert_eq!(idle_cost(&[0, 100_000], 0), COSTS.irq + COSTS.block);
    }

    #[test]
    fn a_delay_lets_one_wake_up_serve_several_requests() {
        let arrivals = [0, 100_000, 120_000, 140_000];
        assert_eq!(idle_cost(&arrivals, 0), 3 * (COSTS.irq + COSTS.block));
        assert_eq!(idle_cost(&arrivals, 40_000), COSTS.tick + COSTS.block);
        assert_eq!(idle_cost(&arrivals, 25_000), 2 * (COSTS.tick + COSTS.block));
    }

    #[test]
    fn it_looks_further_than_the_next_gap() {
        // Spinning through the first gap is cheaper than a sleep, but the core that sleeps is still busy when the
        // third request comes.
        let arrivals = [0, 5_000, 11_200, 1_000_000];
        let sleep = COSTS.irq + COSTS.block;
        assert!(2_700 < sleep && 2 * sleep < 2_700 + 3_900 + sleep);
        assert_eq!(idle_cost(&arrivals, 0), 2 * sleep);
    }
}
