//! Which grace time is best under the load that there is: candidates tried in turns, and compared.

use std::collections::VecDeque;
use std::time::Duration;

/// How many rounds are remembered: the load of some minutes ago is another one.
const WINDOW: usize = 96;
/// Before so many rounds nothing is concluded.
const ENOUGH: usize = 8;
/// After so many the search is over, and only looked after.
const SETTLED: usize = 48;
/// A longer time has to bring so much more (1 %), because it also delays more where traffic is thin.
const WORTH: f64 = 0.01;
/// By so many standard errors it has to be sure.
const SURE: f64 = 2.0;
/// So much of both ends is left out: rounds into which something else fell.
const TRIMMED: f64 = 0.1;
/// So many rounds in a row that are all twice, or half, of what was seen before are another load.
const ANOTHER_LOAD: usize = 4;

/// The search on one NAPI.
///
/// A round tries each candidate for a moment, in an order that turns from round to round, so that what
/// changes slowly changes all alike. Candidates are compared by the ratio within each round: what
/// differs between rounds (the load, a busy machine) cancels out.
#[derive(Debug)]
pub(crate) struct GraceSearch {
    candidates: Vec<Duration>,
    /// For each round, the logarithm of what was received a second under each candidate.
    rounds: VecDeque<Vec<f64>>,
    seen: usize,
    chosen: usize,
}

impl GraceSearch {
    /// Candidates in ascending order, at least one; starts with the first. Searches that run at the same
    /// time have different positions, and so different orders.
    pub(crate) fn new(candidates: Vec<Duration>, position: usize) -> Self {
        Self { candidates, rounds: VecDeque::new(), seen: 2 * position, chosen: 0 }
    }

    pub(crate) fn candidates(&self) -> &[Duration] {
        &self.candidates
    }

    /// The best that is known.
    pub(crate) fn chosen(&self) -> Duration {
        self.candidates[self.chosen]
    }

    /// Whether rounds are only to see that nothing has changed.
    pub(crate) fn is_settled(&self) -> bool {
        self.rounds.len() >= SETTLED || self.candidates.len() < 2
    }

    /// The order of the next round: from another candidate on each time, and every other time backwards.
    pub(crate) fn order(&self) -> Vec<usize> {
        let count = self.candidates.len();
        let mut order: Vec<usize> = (0..count).map(|position| (position + self.seen / 2) % count).collect();
        if self.seen % 2 == 1 {
            order.reverse();
        }
        order
    }

    /// Takes a round in: what was received a second under each candidate, in the candidates' order. A
    /// round in which nothing was received at some point says nothing.
    pub(crate) fn record(&mut self, rates: &[f64]) {
        self.seen += 1;
        if rates.len() != self.candidates.len() || !rates.iter().all(|rate| rate.is_normal() && *rate > 0.0) {
            return;
        }
        self.rounds.push_back(rates.iter().map(|rate| rate.ln()).collect());
        if self.rounds.len() > WINDOW {
            self.rounds.pop_front();
        }
        self.forget_another_load();
        self.choose();
    }

    fn forget_another_load(&mut self) {
        let Some(before) = self.rounds.len().checked_sub(ANOTHER_LOAD).filter(|before| *before > 0) else {
            return;
        };
        let level = |round: &Vec<f64>| mean(round);
        let usual = mean(&self.rounds.iter().take(before).map(level).collect::<Vec<_>>());
        let by: Vec<f64> = self.rounds.iter().skip(before).map(|round| level(round) - usual).collect();
        let twice = std::f64::consts::LN_2;
        if by.iter().all(|by| *by > twice) || by.iter().all(|by| *by < -twice) {
            self.rounds.drain(..before);
        }
    }

    /// The shortest that no longer one is better than.
    fn choose(&mut self) {
        if self.rounds.len() < ENOUGH {
            return;
        }
        let best = (0..self.candidates.len())
            .find(|&short| (short + 1..self.candidates.len()).all(|long| !self.is_better(long, short)));
        self.chosen = best.unwrap_or(self.candidates.len() - 1);
    }

    fn is_better(&self, long: usize, short: usize) -> bool {
        let mut gains: Vec<f64> = self.rounds.iter().map(|round| round[long] - round[short]).collect();
        gains.sort_unstable_by(f64::total_cmp);
        let cut = (gains.len() as f64 * TRIMMED) as usize;
        let gains = &gains[cut..gains.len() - cut];
        let gain = mean(gains);
        let variance =
            gains.iter().map(|one| (one - gain).powi(2)).sum::<f64>() / (gains.len() - 1).max(1) as f64;
        gain > WORTH && gain > SURE * (variance / gains.len() as f64).sqrt()
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A load that is received at `rate(candidate)` times a noise of up to `noise` of it.
    fn search(rounds: usize, noise: f64, rate: impl Fn(usize, usize) -> f64) -> GraceSearch {
        let mut search = GraceSearch::new([50, 100, 200, 400].map(Duration::from_micros).into(), 0);
        continue_with(&mut search, rounds, noise, rate);
        search
    }

    fn continue_with(
        search: &mut GraceSearch,
        rounds: usize,
        noise: f64,
        rate: impl Fn(usize, usize) -> f64,
    ) {
        // A linear congruence: the same noise in each run of the test.
        let mut state = 7_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1_u64 << 53) as f64 - 0.5
        };
        for round in 0..rounds {
            let rates: Vec<f64> = (0..search.candidates().len())
                .map(|candidate| rate(round, candidate) * (1.0 + 2.0 * noise * random()))
                .collect();
            search.record(&rates);
        }
    }

    #[test]
    fn the_shortest_of_equals_is_chosen() {
        let same = search(96, 0.1, |_, _| 1e6);
        assert_eq!(same.chosen(), Duration::from_micros(50));
        assert!(same.is_settled());
    }

    #[test]
    fn a_longer_one_that_receives_three_percent_more_is_found_through_noise_of_five() {
        let rates = [0.97, 1.0, 1.0, 0.8];
        let found = search(96, 0.05, |_, candidate| 1e6 * rates[candidate]);
        assert_eq!(found.chosen(), Duration::from_micros(100));
    }

    #[test]
    fn a_load_that_drifts_and_stalls_does_not_mislead() {
        let rates = [0.9, 0.95, 1.0, 0.9];
        let found = search(96, 0.03, |round, candidate| {
            let stalled = if round % 20 == 5 && candidate == 2 { 0.1 } else { 1.0 };
            1e6 * rates[candidate] * (1.0 + round as f64 / 50.0) * stalled
        });
        assert_eq!(found.chosen(), Duration::from_micros(200));
    }

    #[test]
    fn another_load_is_looked_into_anew() {
        let mut search = search(96, 0.02, |_, candidate| 1e6 * [0.8, 0.9, 0.95, 1.0][candidate]);
        assert_eq!(search.chosen(), Duration::from_micros(400));
        continue_with(&mut search, 5, 0.02, |_, _| 1e5);
        assert!(!search.is_settled());
        continue_with(&mut search, 40, 0.02, |_, _| 1e5);
        assert_eq!(search.chosen(), Duration::from_micros(50));
    }

    #[test]
    fn a_silent_round_says_nothing() {
        let mut search = search(0, 0.0, |_, _| 0.0);
        (0..100).for_each(|_| search.record(&[0.0, 1.0, 2.0, 3.0]));
        assert!(!search.is_settled());
        assert_eq!(search.chosen(), Duration::from_micros(50));
    }

    #[test]
    fn each_candidate_has_each_place_in_the_order_equally_often() {
        let mut search = search(0, 0.0, |_, _| 0.0);
        let mut places = vec![vec![0; 4]; 4];
        for _ in 0..8 {
            search
                .order()
                .into_iter()
                .enumerate()
                .for_each(|(place, candidate)| places[candidate][place] += 1);
            search.record(&[0.0; 4]);
        }
        assert!(places.iter().flatten().all(|&count| count == 2), "{places:?}");
    }
}
