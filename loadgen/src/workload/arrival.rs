//! Gaps between requests of the open loop.

use std::str::FromStr;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};

use crate::invalid_value::InvalidValue;
use crate::workload::distribution::Distribution;

/// The gaps between requests of an open loop, before they are scaled to its rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Arrival {
    gaps: Distribution,
    mean: f64,
}

impl Default for Arrival {
    fn default() -> Self {
        Self::EXPONENTIAL
    }
}

impl Arrival {
    /// Exponential gaps: arrivals are independent of each other (a Poisson process).
    pub const EXPONENTIAL: Self = Self { gaps: Distribution::Exponential(1.0), mean: 1.0 };

    /// The gaps of Facebook's ETC pool.
    pub fn etc() -> Self {
        Self { gaps: Distribution::EtcGap, mean: Distribution::EtcGap.mean() }
    }

    /// Gaps with the shape of this distribution. Returns `None` if its mean is 0 or infinite, since
    /// it can't be scaled to a rate then.
    pub fn new(gaps: Distribution) -> Option<Self> {
        let mean = match gaps {
            // Negative draws count as 0, and the formulas for the mean ignore that: estimate it by
            // drawing.
            Distribution::Normal(..) | Distribution::Gev(..) | Distribution::EtcKey => {
                let mut random = SmallRng::seed_from_u64(1);
                (0..DRAWS).map(|_| gaps.draw(&mut random)).sum::<f64>() / f64::from(DRAWS)
            }
            _ => gaps.mean(),
        };
        Some(Self { gaps, mean }).filter(|arrival| arrival.is_valid())
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.gaps.is_valid() && self.mean.is_finite() && self.mean > 0.0
    }

    /// The gaps, in seconds, scaled to a mean in seconds.
    pub(crate) fn gaps(self, mean: f64) -> Gaps {
        Gaps { distribution: self.gaps, scale: mean / self.mean }
    }
}

impl FromStr for Arrival {
    type Err = InvalidValue;

    /// Parses a distribution. As in mutilate, `exponential`, `uniform` and `fixed` need no
    /// parameters because the rate gives the mean.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = match text {
            "exponential" => "exponential:1",
            "uniform" => "uniform:0,2",
            "fixed" => "fixed:1",
            text => text,
        };
        let distribution: Distribution = text.parse()?;
        let zero = || InvalidValue(format!("{text:?} has a mean of 0 and can't be scaled to a rate"));
        Arrival::new(distribution).ok_or_else(zero)
    }
}

/// Draws for estimating a mean: its standard error is about a thousandth.
const DRAWS: u32 = 200_000;

/// Draws gaps in seconds.
#[derive(Debug)]
pub(crate) struct Gaps {
    distribution: Distribution,
    scale: f64,
}

impl Gaps {
    pub(crate) fn draw(&self, random: &mut SmallRng) -> f64 {
        self.distribution.draw(random) * self.scale
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_have_the_requested_mean_for_every_shape() {
        let mut random = SmallRng::seed_from_u64(3);
        for shape in [
            "exponential:9",
            "fb_ia",
            "uniform:0,3",
            "fixed:7",
            "normal:5,1",
            "normal:1,5",
            "gev:0,1,0",
            "gev:0,1,0.3",
            "fb_key",
            "pareto:0,16,0.15",
        ] {
            let gaps = Arrival::new(shape.parse().unwrap()).unwrap().gaps(0.001);
            let mean = (0..100_000).map(|_| gaps.draw(&mut random)).sum::<f64>() / 100_000.0;
            assert!((mean / 0.001 - 1.0).abs() < 0.03, "{shape}: {mean}");
        }
        assert_eq!(Arrival::new(Distribution::Fixed(0.0)), None);
        let fixed = Arrival::new(Distribution::Fixed(1.0)).unwrap();
        assert!(!Arrival { mean: 0.0, ..fixed }.is_valid());
    }
}
