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
/// By so many standard errors it has to be sure. Several are compared, each round anew.
const SURE: f64 = 2.5;
/// So many rounds in a row have to come to the same before it is taken up.
const IN_A_ROW: usize = 4;
/// So much of both ends is left out: rounds into which something else fell.
const TRIMMED: f64 = 0.1;
/// So many rounds in a row that are all twice, or half, of what was seen before are another load.
const ANOTHER_LOAD: usize = 4;

/// The search on one NAPI.
///
/// A round tries each candidate for a moment, in an order of its own, so that what changes meanwhile, on this
/// queue or by what is tried on another, meets all alike. Candidates are compared by the ratio within each
/// round: what differs between rounds (the load, a busy machine) cancels out.
#[derive(Debug)]
pub(crate) struct GraceTimeSearch {
    candidates: Vec<Duration>,
    /// For each round, the logarithm of what was received a second under each candidate.
    rounds: VecDeque<Vec<f64>>,
    random: u64,
    chosen: usize,
    /// What the last rounds came to, and how many of them.
    leaning: (usize, usize),
}

impl GraceTimeSearch {
    /// Candidates in ascending order, at least one; starts with the first. Searches that run at the same
    /// time have different seeds, and so different orders.
    pub(crate) fn new(candidates: Vec<Duration>, seed: u64) -> Self {
        Self { candidates, rounds: VecDeque::new(), random: seed, chosen: 0, leaning: (0, 0) }
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

    /// The order of the next round, by chance.
    pub(crate) fn order(&mut self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.candidates.len()).collect();
        for position in (1..order.len()).rev() {
            let other = self.draw() % (position as u64 + 1);
            order.swap(position, other as usize);
        }
        order
    }

    /// SplitMix64 (Steele, Lea and Flood, 2014).
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Forgets what was seen: the load is gone.
    pub(crate) fn forget(&mut self) {
        self.rounds.clear();
        (self.chosen, self.leaning) = (0, (0, 0));
    }

    /// Takes a round in: what was received a second under each candidate, in the candidates' order. A
    /// round in which nothing was received at some point says nothing.
    pub(crate) fn record(&mut self, rates: &[f64]) {
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

    /// The shortest that no longer one is better than, when several rounds in a row have come to it.
    fn choose(&mut self) {
        if self.rounds.len() < ENOUGH {
            return;
        }
        let best = (0..self.candidates.len())
            .find(|&short| (short + 1..self.candidates.len()).all(|long| !self.is_better(long, short)));
        let best = best.unwrap_or(self.candidates.len() - 1);
        let count = if self.leaning.0 == best { self.leaning.1 + 1 } else { 1 };
        self.leaning = (best, count);
        if count >= IN_A_ROW {
            self.chosen = best;
        }
    }

    fn is_better(&self, long: usize, short: usize) -> bool {
        let mut gains: Vec<f64> = self.rounds.iter().map(|round| round[long] - round[short]).collect();
        gains.sort_unstable_by(f64::total_cmp);
        let count = gains.len();
        let cut = (count as f64 * TRIMMED) as usize;
        let gain = mean(&gains[cut..count - cut]);
        // The error of a trimmed mean is that of the values with their ends drawn in (Winsorized): that of
        // the rest alone would look too small (Tukey and McLaughlin, 1963).
        let (low, high) = (gains[cut], gains[count - 1 - cut]);
        let drawn_in: Vec<f64> = gains.iter().map(|gain| gain.clamp(low, high)).collect();
        let middle = mean(&drawn_in);
        let squares: f64 = drawn_in.iter().map(|one| (one - middle).powi(2)).sum();
        let deviation = (squares / (count - 1).max(1) as f64).sqrt();
        let kept = (count - 2 * cut) as f64 / count as f64;
        let error = deviation / (kept * (count as f64).sqrt());
        gain > WORTH && gain > SURE * error
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A load that is received at `rate(candidate)` times a noise of up to `noise` of it.
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
        search.forget();
        assert!(!search.is_settled());
    }

    #[test]
    fn a_silent_round_says_nothing() {
        let mut search = search(0, 0.0, |_, _| 0.0);
        (0..100).for_each(|_| search.record(&[0.0, 1.0, 2.0, 3.0]));
        assert!(!search.is_settled());
        assert_eq!(search.chosen(), Duration::from_micros(50));
    }

    #[test]
    fn each_candidate_comes_to_each_place_and_two_searches_go_their_own_ways() {
        let search = |seed| GraceTimeSearch::new([50, 100, 200, 400].map(Duration::from_micros).into(), seed);
        let (mut one, mut other) = (search(0), search(1));
        let mut places = vec![vec![0_u32; 4]; 4];
        let mut alike = 0;
        for _ in 0..4000 {
            let (order, others) = (one.order(), other.order());
            alike += usize::from(order[0] == others[0]);
            order.into_iter().enumerate().for_each(|(place, candidate)| places[candidate][place] += 1);
        }
        assert!(places.iter().flatten().all(|count| (850..1150).contains(count)), "{places:?}");
        assert!((850..1150).contains(&alike), "{alike}");
    }

    #[test]
    fn equals_are_hardly_ever_taken_for_better_whatever_the_noise_brings() {
        let mut longer = 0;
        for seed in 0..200_u64 {
            let mut search =
                GraceTimeSearch::new([50, 100, 200, 400].map(Duration::from_micros).into(), seed);
            let mut noise = GraceTimeSearch::new(vec![Duration::ZERO], seed ^ 0xabcd);
            for _ in 0..96 {
                // About normal, with a deviation of 4 %: what some thousand requests vary by.
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
