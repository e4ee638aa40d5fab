//! The operations that a workload sends, and how often.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::invalid_value::InvalidValue;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Operation {
    /// Of one key or of several.
    Get,
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Delete,
    Touch,
    /// `gets`, followed by `cas` on a hit and by `set` on a miss. The latency spans both requests.
    Cas,
    /// `incr` of a counter whose key is the record's key with an `n` in front.
    Incr,
    Decr,
    MetaGet,
    MetaSet,
}

policies::names!(
    Operation, "operation":
    Get = "get", Set = "set", Add = "add", Replace = "replace", Append = "append", Prepend = "prepend",
    Delete = "delete", Touch = "touch", Cas = "cas", Incr = "incr", Decr = "decr", MetaGet = "mg", MetaSet = "ms"
);

impl Operation {
    pub(crate) fn stores(self) -> bool {
        matches!(self, Self::Set | Self::Add | Self::Replace | Self::Append | Self::Prepend | Self::MetaSet)
    }
}

/// Operations and their weights, written as `get=90,set=9,delete=1`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mix(Vec<(Operation, f64)>);

impl Mix {
    /// `get`s with a share of `set`s. `share` is clamped between 0 and 1.
    pub fn updates(share: f64) -> Self {
        let share = share.clamp(0.0, 1.0);
        let both = [(Operation::Get, 1.0 - share), (Operation::Set, share)];
        Self(both.into_iter().filter(|(_, weight)| *weight > 0.0).collect())
    }

    /// The share of an operation among all requests, 0 to 1.
    pub fn share(&self, operation: Operation) -> f64 {
        let all: f64 = self.0.iter().map(|(_, weight)| weight).sum();
        let matching = self.0.iter().filter(|(other, _)| *other == operation);
        matching.map(|(_, weight)| weight / all).sum()
    }

    /// Whether each operation occurs once, with a weight above 0. Parsed mixes are always valid.
    pub(crate) fn is_valid(&self) -> bool {
        let is_new = |at: usize| self.0[..at].iter().all(|(other, _)| *other != self.0[at].0);
        let weighs = |weight: f64| weight.is_finite() && weight > 0.0;
        !self.0.is_empty() && self.0.iter().enumerate().all(|(at, (_, weight))| is_new(at) && weighs(*weight))
    }

    pub(crate) fn contains(&self, operation: Operation) -> bool {
        self.0.iter().any(|(one, _)| *one == operation)
    }

    pub(crate) fn cumulative_shares(&self) -> Vec<(f64, Operation)> {
        let mut sum = 0.0;
        let mut shares: Vec<(f64, Operation)> = Vec::new();
        for (operation, _) in &self.0 {
            sum += self.share(*operation);
            shares.push((sum, *operation));
        }
        // Rounding can leave the last sum just below 1.
        if let Some(last) = shares.last_mut() {
            last.0 = f64::INFINITY;
        }
        shares
    }
}

impl FromStr for Mix {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse_part = |part: &str| {
            let (name, weight) = part.split_once('=')?;
            Some((name.trim().parse().ok()?, weight.trim().parse().ok()?))
        };
        let mix = text.split(',').map(parse_part).collect::<Option<_>>().map(Self).filter(Self::is_valid);
        mix.ok_or_else(|| {
            let names = Operation::NAMES.join(", ");
            let expected = format!(
                "a mix of operations; write weights, for example get=90,set=10; the operations are {names}"
            );
            InvalidValue::new(text, &expected)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_knows_its_shares_and_an_invalid_one_is_rejected() {
        let mix: Mix = "get=90,set=9,delete=1".parse().unwrap();
        assert!((mix.share(Operation::Set) - 0.09).abs() < 1e-9);
        assert!((mix.share(Operation::Touch)).abs() < 1e-9);
        assert_eq!("get=0.75,set=0.25".parse(), Ok(Mix::updates(0.25)));
        assert_eq!("set=1".parse(), Ok(Mix::updates(1.0)));
        for text in ["", "get", "get=0", "get=-1", "gets=1", "get=1,get=2", "get=nan", "get=1,,set=1"] {
            let error = text.parse::<Mix>().unwrap_err().to_string();
            assert!(error.contains("delete, touch"), "{error}");
        }
    }
}
