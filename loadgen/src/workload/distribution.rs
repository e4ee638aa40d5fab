//! Distributions of sizes and gaps.

use std::str::FromStr;

use rand::{Rng, RngExt};
use rand_distr::{Distribution as _, Exp, Normal, Uniform};
use serde::{Deserialize, Serialize};

use crate::invalid_value::InvalidValue;

/// A distribution of non-negative numbers: bytes or microseconds, depending on its use.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Distribution {
    Fixed(f64),
    Uniform(f64, f64),
    /// Mean and standard deviation. Negative draws count as 0.
    Normal(f64, f64),
    Exponential(f64),
    /// Generalized Pareto: location, scale and shape.
    Pareto(f64, f64, f64),
    /// Generalized extreme value: location, scale and shape.
    Gev(f64, f64, f64),
    /// Key sizes of Facebook's ETC pool.
    EtcKey,
    /// Value sizes of Facebook's ETC pool: a table up to 14 bytes, a generalized Pareto
    /// distribution above.
    EtcValue,
    /// Gaps between requests of Facebook's ETC pool, in microseconds.
    EtcGap,
}

// Atikoglu et al., *Workload Analysis of a Large-Scale Key-Value Store* (2012), section 5, with
// mutilate's parameters.
const ETC_KEY: Distribution = Distribution::Gev(30.7984, 8.20449, 0.078688);
const ETC_VALUE: Distribution = Distribution::Pareto(15.0, 214.476, 0.348238);
const ETC_GAP: Distribution = Distribution::Pareto(0.0, 16.0292, 0.154971);
/// Probabilities of values of 0 to 14 bytes.
const ETC_SMALL_VALUES: [f64; 15] = [
    0.00536, 0.00047, 0.17820, 0.09239, 0.00018, 0.02740, 0.00065, 0.00606, 0.00023, 0.00837, 0.00837,
    0.08989, 0.00092, 0.00326, 0.01980,
];

impl Distribution {
    /// Whether each parameter is in its range. Parsed distributions are always valid.
    pub(crate) fn is_valid(&self) -> bool {
        let size = |value: f64| value.is_finite() && value >= 0.0;
        match *self {
            Distribution::Fixed(value) => size(value),
            Distribution::Uniform(low, high) => size(low) && size(high) && low <= high,
            Distribution::Normal(mean, deviation) => size(mean) && size(deviation),
            Distribution::Exponential(mean) => size(mean) && mean > 0.0,
            // With a shape of 1 or more the mean is infinite, so no rate could be kept.
            Distribution::Pareto(location, scale, shape) | Distribution::Gev(location, scale, shape) => {
                size(location) && size(scale) && shape.is_finite() && shape < 1.0
            }
            _ => true,
        }
    }

    pub fn draw(&self, random: &mut impl Rng) -> f64 {
        match *self {
            Distribution::Fixed(value) => value,
            Distribution::Uniform(low, high) => {
                Uniform::new_inclusive(low, high).map_or(low, |uniform| uniform.sample(random))
            }
            Distribution::Normal(mean, deviation) => {
                Normal::new(mean, deviation).map_or(mean, |normal| normal.sample(random)).max(0.0)
            }
            Distribution::Exponential(mean) => {
                Exp::new(1.0 / mean).map_or(mean, |exponential| exponential.sample(random))
            }
            Distribution::Pareto(location, scale, shape) => {
                let tail = open_unit(random);
                let excess = if shape == 0.0 { -tail.ln() } else { (tail.powf(-shape) - 1.0) / shape };
                (location + scale * excess).max(0.0)
            }
            Distribution::Gev(location, scale, shape) => {
                let exponent = -open_unit(random).ln();
                let standard =
                    if shape == 0.0 { -exponent.ln() } else { (exponent.powf(-shape) - 1.0) / shape };
                (location + scale * standard).max(0.0)
            }
            Distribution::EtcKey => ETC_KEY.draw(random),
            Distribution::EtcValue => {
                let mut point: f64 = random.random();
                for (size, probability) in ETC_SMALL_VALUES.iter().enumerate() {
                    if point < *probability {
                        return size as f64;
                    }
                    point -= probability;
                }
                ETC_VALUE.draw(random)
            }
            Distribution::EtcGap => ETC_GAP.draw(random),
        }
    }

    /// The mean of the distribution. Ignores that negative draws count as 0.
    pub fn mean(&self) -> f64 {
        match *self {
            Distribution::Fixed(value) | Distribution::Exponential(value) => value,
            Distribution::Uniform(low, high) => (low + high) / 2.0,
            Distribution::Normal(mean, _) => mean,
            Distribution::Pareto(location, scale, shape) => location + scale / (1.0 - shape),
            Distribution::Gev(location, scale, 0.0) => location + scale * EULER,
            Distribution::Gev(location, scale, shape) => {
                location + scale * (statrs::function::gamma::gamma(1.0 - shape) - 1.0) / shape
            }
            Distribution::EtcKey => ETC_KEY.mean(),
            Distribution::EtcValue => {
                let small: f64 = ETC_SMALL_VALUES.iter().sum();
                let head: f64 =
                    ETC_SMALL_VALUES.iter().enumerate().map(|(size, share)| size as f64 * share).sum();
                head + (1.0 - small) * ETC_VALUE.mean()
            }
            Distribution::EtcGap => ETC_GAP.mean(),
        }
    }
}

const EULER: f64 = 0.577_215_664_901_532_9;

/// Draws uniformly from (0, 1], whose logarithm is finite.
fn open_unit(random: &mut impl Rng) -> f64 {
    1.0 - random.random::<f64>()
}

impl FromStr for Distribution {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            if let Ok(number) = text.parse() {
                return Some(Distribution::Fixed(number));
            }
            let (name, parameters) = text.split_once(':').unwrap_or((text, ""));
            let given = parameters.split(',').filter(|part| !part.is_empty());
            let parameters: Vec<f64> = given.map(|part| part.trim().parse().ok()).collect::<Option<_>>()?;
            Some(match (name, &parameters[..]) {
                ("fixed", [value]) => Distribution::Fixed(*value),
                ("uniform", [high]) => Distribution::Uniform(0.0, *high),
                ("uniform", [low, high]) => Distribution::Uniform(*low, *high),
                ("normal", [mean, deviation]) => Distribution::Normal(*mean, *deviation),
                ("exponential", [mean]) => Distribution::Exponential(*mean),
                ("pareto", [location, scale, shape]) => Distribution::Pareto(*location, *scale, *shape),
                ("gev", [location, scale, shape]) => Distribution::Gev(*location, *scale, *shape),
                ("fb_key", []) => Distribution::EtcKey,
                ("fb_value", []) => Distribution::EtcValue,
                ("fb_ia", []) => Distribution::EtcGap,
                _ => return None,
            })
        };
        const EXPECTED: &str = "a distribution; write a number, or fixed:N, uniform:MIN,MAX, normal:MEAN,SD, exponential:MEAN, pareto:LOCATION,SCALE,SHAPE, gev:LOCATION,SCALE,SHAPE, fb_key, fb_value or fb_ia";
        parse().filter(Distribution::is_valid).ok_or_else(|| InvalidValue::new(text, EXPECTED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    fn mean_of(distribution: Distribution) -> f64 {
        let mut random = StdRng::seed_from_u64(7);
        (0..200_000).map(|_| distribution.draw(&mut random)).sum::<f64>() / 200_000.0
    }

    /// The Kolmogorov-Smirnov statistic times the square root of the sample size. It exceeds 1.63
    /// once in a hundred times.
    fn misfit(text: &str, cumulative: impl Fn(f64) -> f64) -> f64 {
        const DRAWS: usize = 50_000;
        let distribution: Distribution = text.parse().unwrap();
        let mut random = StdRng::seed_from_u64(19);
        let mut drawn: Vec<f64> = (0..DRAWS).map(|_| distribution.draw(&mut random)).collect();
        drawn.sort_unstable_by(f64::total_cmp);
        let distance = drawn.iter().enumerate().map(|(index, value)| {
            let meant = cumulative(*value);
            let (below, with) = (index as f64 / DRAWS as f64, (index + 1) as f64 / DRAWS as f64);
            (meant - below).abs().max((with - meant).abs())
        });
        distance.fold(0.0, f64::max) * (DRAWS as f64).sqrt()
    }

    fn pareto(location: f64, scale: f64, shape: f64) -> impl Fn(f64) -> f64 {
        move |x| 1.0 - (1.0 + shape * (x - location) / scale).max(0.0).powf(-1.0 / shape)
    }

    fn gev(location: f64, scale: f64, shape: f64) -> impl Fn(f64) -> f64 {
        move |x| (-(1.0 + shape * (x - location) / scale).max(0.0).powf(-1.0 / shape)).exp()
    }

    #[test]
    fn every_distribution_fits_its_definition() {
        use statrs::distribution::{ContinuousCDF, Normal};
        let normal = Normal::new(100.0, 15.0).unwrap();
        let fits = [
            ("uniform", misfit("uniform:10,30", |x| (x - 10.0) / 20.0)),
            ("normal", misfit("normal:100,15", |x| normal.cdf(x))),
            ("exponential", misfit("exponential:50", |x| 1.0 - (-x / 50.0).exp())),
            ("pareto", misfit("pareto:3,16,0.15", pareto(3.0, 16.0, 0.15))),
            ("pareto without a shape", misfit("pareto:3,16,0", |x| 1.0 - (-(x - 3.0) / 16.0).exp())),
            ("gev", misfit("gev:300,8,0.08", gev(300.0, 8.0, 0.08))),
            ("gev without a shape", misfit("gev:300,8,0", |x| (-(-(x - 300.0) / 8.0).exp()).exp())),
            ("fb_key", misfit("fb_key", gev(30.7984, 8.20449, 0.078688))),
            ("fb_ia", misfit("fb_ia", pareto(0.0, 16.0292, 0.154971))),
        ];
        for (name, misfit) in fits {
            assert!(misfit < 1.63, "{name}: {misfit}");
        }
        // A wrong parameter is detected.
        assert!(misfit("exponential:50", |x| 1.0 - (-x / 51.0).exp()) > 1.63);
        assert!(misfit("fb_key", gev(30.7984, 8.6, 0.078688)) > 1.63);
    }

    #[test]
    fn etc_values_above_the_table_fit_their_pareto_distribution_and_share() {
        let distribution = Distribution::EtcValue;
        let mut random = StdRng::seed_from_u64(19);
        let mut large: Vec<f64> =
            (0..50_000).map(|_| distribution.draw(&mut random)).filter(|size| *size >= 15.0).collect();
        let share = large.len() as f64 / 50_000.0;
        let meant = 1.0 - ETC_SMALL_VALUES.iter().sum::<f64>();
        assert!((share - meant).abs() < 0.01, "{share} for {meant}");
        large.sort_unstable_by(f64::total_cmp);
        let cumulative = pareto(15.0, 214.476, 0.348238);
        let count = large.len() as f64;
        let misfit = large.iter().enumerate().map(|(index, x)| (cumulative(*x) - index as f64 / count).abs());
        assert!(misfit.fold(0.0, f64::max) * count.sqrt() < 1.63);
    }

    #[test]
    fn drawn_means_match_the_computed_ones() {
        for text in [
            "30",
            "uniform:10,30",
            "normal:100,5",
            "exponential:50",
            "pareto:0,16,0.15",
            "fb_ia",
            "fb_value",
            "fb_key",
            "gev:90,9,0.2",
            "gev:90,9,0",
        ] {
            let distribution: Distribution = text.parse().unwrap();
            let (drawn, stated) = (mean_of(distribution), distribution.mean());
            assert!((drawn / stated - 1.0).abs() < 0.03, "{text}: drawn {drawn}, stated {stated}");
        }
    }

    #[test]
    fn small_etc_values_follow_their_table() {
        let mut random = StdRng::seed_from_u64(7);
        let drawn: Vec<f64> = (0..200_000).map(|_| Distribution::EtcValue.draw(&mut random)).collect();
        let share = |size: f64| drawn.iter().filter(|value| value.floor() == size).count() as f64 / 200_000.0;
        assert!((share(2.0) - 0.17820).abs() < 0.005 && (share(11.0) - 0.08989).abs() < 0.005);
        assert_eq!(drawn.iter().filter(|value| (14.5..15.0).contains(*value)).count(), 0);
    }

    #[test]
    fn an_invalid_distribution_is_rejected_with_the_accepted_forms() {
        for text in [
            "",
            "x",
            "normal:1",
            "uniform:3,1",
            "exponential:0",
            "pareto:0,1,1",
            "-3",
            "fixed:nan",
            "gev:a,b,c",
        ] {
            let error = text.parse::<Distribution>().unwrap_err().to_string();
            assert!(error.contains("fb_value"), "{error}");
        }
    }
}
