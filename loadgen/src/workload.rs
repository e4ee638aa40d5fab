//! What is asked: keys, values, how popular they are, and which operations.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};

use crate::by_text::by_text;
use crate::{Distribution, Popularity};

/// An operation on the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// `get`, of one key or of several.
    Get,
    /// `set`.
    Set,
    /// `add`.
    Add,
    /// `replace`.
    Replace,
    /// `append`.
    Append,
    /// `prepend`.
    Prepend,
    /// `delete`.
    Delete,
    /// `touch`.
    Touch,
    /// `gets`, and `cas` with what came; `set` where nothing came. Its latency is that of both.
    Cas,
    /// `incr` of a counter that has the record's key with an `n` in front.
    Incr,
    /// `decr`, likewise.
    Decr,
    /// `mg`.
    MetaGet,
    /// `ms`.
    MetaSet,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Get,
        Self::Set,
        Self::Add,
        Self::Replace,
        Self::Append,
        Self::Prepend,
        Self::Delete,
        Self::Touch,
        Self::Cas,
        Self::Incr,
        Self::Decr,
        Self::MetaGet,
        Self::MetaSet,
    ];

    /// Its name, as in a mix.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Set => "set",
            Self::Add => "add",
            Self::Replace => "replace",
            Self::Append => "append",
            Self::Prepend => "prepend",
            Self::Delete => "delete",
            Self::Touch => "touch",
            Self::Cas => "cas",
            Self::Incr => "incr",
            Self::Decr => "decr",
            Self::MetaGet => "mg",
            Self::MetaSet => "ms",
        }
    }

    /// Whether it sends a value.
    pub(crate) fn stores(self) -> bool {
        matches!(self, Self::Set | Self::Add | Self::Replace | Self::Append | Self::Prepend | Self::MetaSet)
    }

    /// Whether it is for a counter.
    pub(crate) fn counts(self) -> bool {
        matches!(self, Self::Incr | Self::Decr)
    }
}

/// How often each operation is asked for, by weight.
#[derive(Debug, Clone, PartialEq)]
pub struct Mix(Vec<(Operation, f64)>);

impl Mix {
    /// Gets, and so large a share of sets, 0 to 1.
    pub fn updates(share: f64) -> Self {
        let share = share.clamp(0.0, 1.0);
        let both = [(Operation::Get, 1.0 - share), (Operation::Set, share)];
        Self(both.into_iter().filter(|(_, weight)| *weight > 0.0).collect())
    }

    /// The share of an operation, 0 to 1.
    pub fn share(&self, operation: Operation) -> f64 {
        let all: f64 = self.0.iter().map(|(_, weight)| weight).sum();
        let own = self.0.iter().filter(|(one, _)| *one == operation);
        own.map(|(_, weight)| weight / all).sum()
    }

    pub(crate) fn has(&self, operation: Operation) -> bool {
        self.0.iter().any(|(one, _)| *one == operation)
    }

    /// Each operation with the sum of the shares up to and with its own.
    pub(crate) fn steps(&self) -> Vec<(f64, Operation)> {
        let mut sum = 0.0;
        let mut steps: Vec<(f64, Operation)> = Vec::new();
        for (operation, _) in &self.0 {
            sum += self.share(*operation);
            steps.push((sum, *operation));
        }
        // Sums that fall short of 1 by rounding.
        if let Some(last) = steps.last_mut() {
            last.0 = f64::INFINITY;
        }
        steps
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> =
            self.0.iter().map(|(operation, weight)| format!("{}={weight}", operation.name())).collect();
        f.write_str(&parts.join(","))
    }
}

/// Text that names no mix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no mix; write weights, for example get=90,set=10; there are {}", known())]
pub struct InvalidMix {
    given: String,
}

fn known() -> String {
    Operation::ALL.map(Operation::name).join(", ")
}

impl FromStr for Mix {
    type Err = InvalidMix;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let one = |part: &str| {
            let (name, weight) = part.split_once('=')?;
            let operation = Operation::ALL.into_iter().find(|one| one.name() == name.trim())?;
            let weight =
                weight.trim().parse().ok().filter(|weight: &f64| weight.is_finite() && *weight > 0.0)?;
            Some((operation, weight))
        };
        let parts: Option<Vec<(Operation, f64)>> = text.split(',').map(one).collect();
        let twice = |parts: &Vec<(Operation, f64)>| {
            parts.iter().enumerate().any(|(at, (one, _))| parts[..at].iter().any(|(other, _)| one == other))
        };
        match parts {
            Some(parts) if !twice(&parts) => Ok(Self(parts)),
            _ => Err(InvalidMix { given: text.to_owned() }),
        }
    }
}

by_text!(Mix);

/// What requests are like.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// Bytes of a key, at least the digits of the last record's number, at most 250.
    pub key: Distribution,
    /// Bytes of a value.
    pub value: Distribution,
    /// How many records there are, on each server.
    pub records: u64,
    /// Which records are asked for.
    pub popularity: Popularity,
    /// Which operations.
    pub mix: Mix,
    /// Keys of one `get`, at least 1.
    pub multiget: u16,
    /// After how long stored records expire; zero is never. Whole seconds.
    pub ttl: Duration,
    /// Whether values carry their key and a checksum, and are compared when they come back.
    pub verify: bool,
    /// Whether a record that was asked for and not found is stored (look-aside, as caches are used).
    pub fill: bool,
    /// Requests of a trace, in the order and with the sizes that it has, in place of all of the above.
    pub trace: Option<PathBuf>,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            key: Distribution::Fixed(30.0),
            value: Distribution::Fixed(200.0),
            records: 10_000,
            popularity: Popularity::Uniform,
            mix: Mix::updates(0.0),
            multiget: 1,
            ttl: Duration::ZERO,
            verify: false,
            fill: false,
            trace: None,
        }
    }
}

/// When requests of an open loop are due.
#[derive(Debug, Clone, Copy, PartialEq)]
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
    /// Exponential gaps: requests come independently of each other (a Poisson process).
    pub const EXPONENTIAL: Self = Self { gaps: Distribution::Exponential(1.0), mean: 1.0 };

    /// The gaps of Facebook's ETC pool.
    pub fn etc() -> Self {
        Self { gaps: Distribution::EtcGap, mean: Distribution::EtcGap.mean() }
    }

    /// Gaps of this shape, scaled to the rate that is asked for; `None` where its mean is 0, which no rate
    /// can be made of.
    pub fn new(gaps: Distribution) -> Option<Self> {
        let mean = match gaps {
            // Draws below 0 count as 0, which no formula has: as it turns out, over many draws.
            Distribution::Normal(..) | Distribution::Gev(..) | Distribution::EtcKey => {
                let mut random = SmallRng::seed_from_u64(1);
                (0..DRAWS).map(|_| gaps.draw(&mut random)).sum::<f64>() / f64::from(DRAWS)
            }
            _ => gaps.mean(),
        };
        (mean.is_finite() && mean > 0.0).then_some(Self { gaps, mean })
    }

    /// The gaps for a mean of so many seconds, in seconds.
    pub(crate) fn gaps(self, mean: f64) -> Gaps {
        Gaps { distribution: self.gaps, scale: mean / self.mean }
    }
}

impl fmt::Display for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.gaps.fmt(f)
    }
}

impl FromStr for Arrival {
    type Err = String;

    /// A distribution; also mutilate's names without parameters, as the rate gives the mean.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = match text {
            "exponential" => "exponential:1",
            "uniform" => "uniform:0,2",
            "fixed" => "fixed:1",
            text => text,
        };
        let distribution: Distribution =
            text.parse().map_err(|error: crate::InvalidDistribution| error.to_string())?;
        Arrival::new(distribution)
            .ok_or_else(|| format!("{text:?} has a mean of 0, and no rate comes of that"))
    }
}

by_text!(Arrival);

/// A mean over so many draws is sure to about a thousandth.
const DRAWS: u32 = 200_000;

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
    fn gaps_have_the_asked_mean_whatever_their_shape() {
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
        let etc: Arrival = serde_json::from_str(&serde_json::to_string(&Arrival::etc()).unwrap()).unwrap();
        assert_eq!(etc, Arrival::etc());
        assert!(serde_json::from_str::<Arrival>("\"fixed:0\"").is_err());
    }

    #[test]
    fn a_mix_parses_back_and_knows_its_shares() {
        let mix: Mix = "get=90,set=9,delete=1".parse().unwrap();
        assert_eq!(mix.to_string().parse(), Ok(mix.clone()));
        assert!((mix.share(Operation::Set) - 0.09).abs() < 1e-9);
        assert!((mix.share(Operation::Touch)).abs() < 1e-9);
        assert_eq!(Mix::updates(0.25).to_string(), "get=0.75,set=0.25");
        assert_eq!(Mix::updates(1.0).to_string(), "set=1");
        for text in ["", "get", "get=0", "get=-1", "gets=1", "get=1,get=2", "get=nan", "get=1,,set=1"] {
            let error = text.parse::<Mix>().unwrap_err().to_string();
            assert!(error.contains("delete, touch"), "{error}");
        }
    }
}
