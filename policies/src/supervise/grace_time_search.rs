//! Compares grace times by the rate that each brings.

use std::collections::VecDeque;
use std::time::Duration;

/// How many rounds are kept: the load of some minutes ago may be another one.
const MAX_ROUNDS: usize = 96;
/// How many rounds a choice needs.
const MIN_ROUNDS: usize = 8;
/// After how many rounds the search is settled, and only repeated to notice changes.
const SETTLED_ROUNDS: usize = 48;
/// How much more a longer grace time must bring (1 %), because it delays packets longer at low load.
const MIN_GAIN: f64 = 0.01;
/// How many standard errors a gain must exceed. High, because several candidates are compared in every
/// round.
const MIN_STANDARD_ERRORS: f64 = 2.5;
/// How many consecutive rounds must agree on a candidate before it is chosen.
const CONSECUTIVE_ROUNDS: usize = 4;
/// The share of both tails that is trimmed: rounds that something else disturbed.
const TRIMMED_SHARE: f64 = 0.1;
/// How many consecutive rounds at twice or half the usual rate mean that the load has changed.
const LOAD_CHANGE_ROUNDS: usize = 4;

/// The search for one NAPI's grace time.
///
/// A round measures each candidate once, in random order, so that changes of the load and trials on other
/// queues affect all candidates equally. Candidates are compared by the ratio within each round, in which
/// differences between rounds (the load, a busy machine) cancel out.
#[derive(Debug)]
pub(super) struct GraceTimeSearch {
    candidates: Vec<Duration>,
    /// For each round, the logarithm of the rate under each candidate.
    rounds: VecDeque<Vec<f64>>,
    random_state: u64,
    chosen: usize,
    /// The best candidate of the last rounds, and how many consecutive rounds agree on it.
    streak: (usize, usize),
}

impl GraceTimeSearch {
    /// Takes at least one candidate, in ascending order, and starts with the first. Concurrent searches
    /// need different seeds, so that their orders differ.
    pub(super) fn new(candidates: Vec<Duration>, seed: u64) -> Self {
        Self { candidates, rounds: VecDeque::new(), random_state: seed, chosen: 0, streak: (0, 0) }
    }

    pub(super) fn candidates(&self) -> &[Duration] {
        &self.candidates
    }

    /// The best candidate so far.
    pub(super) fn chosen(&self) -> Duration {
        self.candidates[self.chosen]
    }

    /// Whether further rounds only serve to notice a change of the load.
    pub(super) fn is_settled(&self) -> bool {
        self.rounds.len() >= SETTLED_ROUNDS || self.candidates.len() < 2
    }

    /// A random order for the next round (Fisher-Yates).
    pub(super) fn order(&mut self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.candidates.len()).collect();
        for position in (1..order.len()).rev() {
            let other = self.draw() % (position as u64 + 1);
            order.swap(position, other as usize);
        }
        order
    }

    /// SplitMix64 (Steele, Lea and Flood, 2014).
    fn draw(&mut self) -> u64 {
        self.random_state = self.random_state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random_state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Drops all rounds and chooses the first candidate: the queue is idle.
    pub(super) fn reset(&mut self) {
        self.rounds.clear();
        (self.chosen, self.streak) = (0, (0, 0));
    }

    /// Records a round: the rate under each candidate, in the candidates' order. Ignores a round in which
    /// nothing was received under some candidate.
    pub(super) fn record(&mut self, rates: &[f64]) {
        if rates.len() != self.candidates.len() || !rates.iter().all(|rate| rate.is_normal() && *rate > 0.0) {
            return;
        }
        self.rounds.push_back(rates.iter().map(|rate| rate.ln()).collect());
        if self.rounds.len() > MAX_ROUNDS {
            self.rounds.pop_front();
        }
        self.drop_rounds_of_another_load();
        self.choose();
    }

    fn drop_rounds_of_another_load(&mut self) {
        let Some(before) = self.rounds.len().checked_sub(LOAD_CHANGE_ROUNDS).filter(|before| *before > 0)
        else {
            return;
        };
        let level = |round: &Vec<f64>| mean(round);
        let usual = mean(&self.rounds.iter().take(before).map(level).collect::<Vec<_>>());
        let differences: Vec<f64> =
            self.rounds.iter().skip(before).map(|round| level(round) - usual).collect();
        let twice = std::f64::consts::LN_2;
        if differences.iter().all(|by| *by > twice) || differences.iter().all(|by| *by < -twice) {
            self.rounds.drain(..before);
        }
    }

    /// Chooses the shortest candidate that no longer one beats, once enough consecutive rounds agree.
    fn choose(&mut self) {
        if self.rounds.len() < MIN_ROUNDS {
            return;
        }
        let best = (0..self.candidates.len())
            .find(|&short| (short + 1..self.candidates.len()).all(|long| !self.is_better(long, short)));
        let best = best.unwrap_or(self.candidates.len() - 1);
        let count = if self.streak.0 == best { self.streak.1 + 1 } else { 1 };
        self.streak = (best, count);
        if count >= CONSECUTIVE_ROUNDS {
            self.chosen = best;
        }
    }

    fn is_better(&self, long: usize, short: usize) -> bool {
        let mut gains: Vec<f64> = self.rounds.iter().map(|round| round[long] - round[short]).collect();
        gains.sort_unstable_by(f64::total_cmp);
        let count = gains.len();
        let cut = (count as f64 * TRIMMED_SHARE) as usize;
        let gain = mean(&gains[cut..count - cut]);
        // The standard error of a trimmed mean comes from the Winsorized values; that of the remaining
        // values alone would be too small (Tukey and McLaughlin, 1963).
        let (low, high) = (gains[cut], gains[count - 1 - cut]);
        let winsorized: Vec<f64> = gains.iter().map(|gain| gain.clamp(low, high)).collect();
        let middle = mean(&winsorized);
        let squares: f64 = winsorized.iter().map(|one| (one - middle).powi(2)).sum();
        let deviation = (squares / (count - 1).max(1) as f64).sqrt();
        let kept = (count - 2 * cut) as f64 / count as f64;
        let error = deviation / (kept * (count as f64).sqrt());
        gain > MIN_GAIN && gain > MIN_STANDARD_ERRORS * error
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A search after `rounds` rounds at `rate(round, candidate)` with relative noise of up to `noise`.
    fn search(rounds: usize, noise: f64, rate: impl Fn(usize, usize) -> f64) -> GraceTimeSearch {
        let mut search = GraceTimeSearch::new([50, 100, 200, 400].map(Duration::from_micros).into(), 0);
        continue_with(&mut search, rounds, noise, rate);
        search
    }

    fn continue_with(
        search: &mut GraceTimeSearch,
        rounds: usize,
        noise: f64,
        rate: impl Fn(usize, usize) -> f64,
    ) {
        // A linear congruential generator, so that every run of the test has the same noise.
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
    fn the_shortest_of_equal_candidates_is_chosen() {
        let same = search(96, 0.1, |_, _| 1e6);
        assert_eq!(same.chosen(), Duration::from_micros(50));
        assert!(same.is_settled());
    }

    #[test]
    fn a_longer_candidate_with_three_percent_gain_is_found_in_five_percent_noise() {
        let rates = [0.97, 1.0, 1.0, 0.8];
        let found = search(96, 0.05, |_, candidate| 1e6 * rates[candidate]);
        assert_eq!(found.chosen(), Duration::from_micros(100));
    }

    #[test]
    fn drifts_and_stalls_of_the_load_do_not_change_the_choice() {
        let rates = [0.9, 0.95, 1.0, 0.9];
        let found = search(96, 0.03, |round, candidate| {
            let stalled = if round % 20 == 5 && candidate == 2 { 0.1 } else { 1.0 };
            1e6 * rates[candidate] * (1.0 + round as f64 / 50.0) * stalled
        });
        assert_eq!(found.chosen(), Duration::from_micros(200));
    }

    #[test]
    fn a_change_of_the_load_restarts_the_search() {
        let mut search = search(96, 0.02, |_, candidate| 1e6 * [0.8, 0.9, 0.95, 1.0][candidate]);
        assert_eq!(search.chosen(), Duration::from_micros(400));
        continue_with(&mut search, 5, 0.02, |_, _| 1e5);
        assert!(!search.is_settled());
        continue_with(&mut search, 40, 0.02, |_, _| 1e5);
        assert_eq!(search.chosen(), Duration::from_micros(50));
        search.reset();
        assert!(!search.is_settled());
    }

    #[test]
    fn a_round_without_received_bytes_is_ignored() {
        let mut search = search(0, 0.0, |_, _| 0.0);
        (0..100).for_each(|_| search.record(&[0.0, 1.0, 2.0, 3.0]));
        assert!(!search.is_settled());
        assert_eq!(search.chosen(), Duration::from_micros(50));
    }

    #[test]
    fn orders_are_uniform_and_differ_between_seeds() {
        let search = |seed| GraceTimeSearch::new([50, 100, 200, 400].map(Duration::from_micros).into(), seed);
        let (mut one, mut other) = (search(0), search(1));
        let mut positions = vec![vec![0_u32; 4]; 4];
        let mut equal_starts = 0;
        for _ in 0..4000 {
            let (order, others) = (one.order(), other.order());
            equal_starts += usize::from(order[0] == others[0]);
            order
                .into_iter()
                .enumerate()
                .for_each(|(position, candidate)| positions[candidate][position] += 1);
        }
        assert!(positions.iter().flatten().all(|count| (850..1150).contains(count)), "{positions:?}");
        assert!((850..1150).contains(&equal_starts), "{equal_starts}");
    }

    #[test]
    fn noise_rarely_makes_a_longer_candidate_win_among_equals() {
        let mut longer = 0;
        for seed in 0..200_u64 {
            let mut search =
                GraceTimeSearch::new([50, 100, 200, 400].map(Duration::from_micros).into(), seed);
            let mut noise = GraceTimeSearch::new(vec![Duration::ZERO], seed ^ 0xabcd);
            for _ in 0..96 {
                // Approximately normal with a standard deviation of 4 %, as of some thousand requests.
                let mut rate = || {
                    let sum: f64 = (0..12).map(|_| noise.draw() as f64 / u64::MAX as f64).sum();
                    1e6 * (1.0 + 0.04 * (sum - 6.0))
                };
                let rates: Vec<f64> = (0..4).map(|_| rate()).collect();
                search.record(&rates);
            }
            longer += usize::from(search.chosen() != Duration::from_micros(50));
        }
        assert!(longer <= 6, "{longer} of 200");
    }
}
