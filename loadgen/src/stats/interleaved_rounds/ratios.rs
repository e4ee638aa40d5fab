//! Figures and ratios of rounds.

use super::finished::Round;
use crate::stats::batch_means::{Estimate, mean_estimate};

/// One figure of a contestant, from every round in which its measurement was valid.
pub fn figures<T>(rounds: &[Round<T>], contestant: usize, figure: impl Fn(&T) -> f64) -> Vec<f64> {
    rounds.iter().filter_map(|round| round.value(contestant)).map(figure).collect()
}

/// One figure of a contestant over the same figure of `reference`, from every round in which both are valid. Turns of
/// a round are of one class of distance, so no ratio is taken across classes.
pub fn ratios<T>(
    rounds: &[Round<T>],
    contestant: usize,
    reference: usize,
    figure: impl Fn(&T) -> f64,
) -> Vec<f64> {
    let ratio = |round: &Round<T>| Some(figure(round.value(contestant)?) / figure(round.value(reference)?));
    rounds.iter().filter_map(ratio).collect()
}

/// The geometric mean of ratios, with its 95 % interval; `None` for fewer than two, or if one is zero or not finite.
pub fn mean_ratio(ratios: &[f64]) -> Option<Estimate> {
    let logarithms: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    let valid = logarithms.iter().all(|logarithm| logarithm.is_finite());
    let Estimate { mean, low, high, batches } = mean_estimate(&logarithms).filter(|_| valid)?;
    Some(Estimate { mean: mean.exp(), low: low.exp(), high: high.exp(), batches })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_that_holds_in_each_round_has_a_narrow_interval_though_rounds_differ() {
        let ratios = [201.0 / 100.0, 99.0 / 50.0, 400.0 / 200.0];
        let found = mean_ratio(&ratios).unwrap();
        assert!((1.99..2.01).contains(&found.mean) && found.low > 1.95 && found.high < 2.05, "{found:?}");
        assert_eq!(mean_ratio(&[f64::NAN; 3]), None);
        assert_eq!(mean_ratio(&ratios[..1]), None);
    }
}
