//! The operations that a workload sends, and how often.

use std::fmt;
use std::str::FromStr;

use crate::parsing::{InvalidValue, serde_display};

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
    /// `gets`, followed by `cas` on a hit and by `set` on a miss. The latency spans both requests.
    Cas,
    /// `incr` of a counter whose key is the record's key with an `n` in front.
    Incr,
    Decr,
    /// `mg`.
    MetaGet,
    /// `ms`.
    MetaSet,
}

impl Operation {
    /// The operations and the names that a [`Mix`] uses.
    const NAMES: [(Self, &str); 13] = [
        (Self::Get, "get"),
        (Self::Set, "set"),
        (Self::Add, "add"),
        (Self::Replace, "replace"),
        (Self::Append, "append"),
        (Self::Prepend, "prepend"),
        (Self::Delete, "delete"),
        (Self::Touch, "touch"),
        (Self::Cas, "cas"),
        (Self::Incr, "incr"),
        (Self::Decr, "decr"),
        (Self::MetaGet, "mg"),
        (Self::MetaSet, "ms"),
    ];

    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(one, _)| *one == self).map_or("", |(_, name)| name)
    }

    pub(crate) fn stores(self) -> bool {
        matches!(self, Self::Set | Self::Add | Self::Replace | Self::Append | Self::Prepend | Self::MetaSet)
    }

    pub(crate) fn is_arithmetic(self) -> bool {
        matches!(self, Self::Incr | Self::Decr)
    }
}

/// Operations and their weights, written as `get=90,set=9,delete=1`.
#[derive(Debug, Clone, PartialEq)]
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

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> =
            self.0.iter().map(|(operation, weight)| format!("{}={weight}", operation.name())).collect();
        f.write_str(&parts.join(","))
    }
}

impl FromStr for Mix {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse_part = |part: &str| {
            let (name, weight) = part.split_once('=')?;
            let operation = Operation::NAMES.iter().find(|(_, one)| *one == name.trim())?.0;
            let weight =
                weight.trim().parse().ok().filter(|weight: &f64| weight.is_finite() && *weight > 0.0)?;
            Some((operation, weight))
        };
        let parts: Option<Vec<(Operation, f64)>> = text.split(',').map(parse_part).collect();
        let has_duplicates = |parts: &Vec<(Operation, f64)>| {
            parts.iter().enumerate().any(|(at, (one, _))| parts[..at].iter().any(|(other, _)| one == other))
        };
        match parts {
            Some(parts) if !has_duplicates(&parts) => Ok(Self(parts)),
            _ => {
                let names = Operation::NAMES.map(|(_, name)| name).join(", ");
                Err(InvalidValue::new(
                    text,
                    &format!(
                        "a mix of operations; write weights, for example get=90,set=10; the operations are {names}"
                    ),
                ))
            }
        }
    }
}

serde_display!(Mix);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_round_trips_through_text_and_knows_its_shares() {
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
