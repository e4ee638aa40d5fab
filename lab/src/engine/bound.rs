//! Whether measurements say that a bound is kept.

use loadgen::medians::Interval;
use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    Kept,
    Broken,
    /// The interval contains the bound, or there are too few rounds for an interval.
    Undecided,
}

policies::names!(Bound, "outcome": Kept = "kept", Broken = "broken", Undecided = "undecided");

impl Bound {
    pub(crate) fn of(interval: &Interval, bound: f64) -> Self {
        match interval {
            _ if !interval.reaches_target() => Self::Undecided,
            _ if interval.high <= bound => Self::Kept,
            _ if interval.low > bound => Self::Broken,
            _ => Self::Undecided,
        }
    }

    /// Broken if one is, and kept if all are.
    pub(crate) fn all(bounds: impl IntoIterator<Item = Self>) -> Self {
        bounds.into_iter().fold(Self::Kept, |all, it| match (all, it) {
            (Self::Broken, _) | (_, Self::Broken) => Self::Broken,
            (Self::Kept, Self::Kept) => Self::Kept,
            _ => Self::Undecided,
        })
    }
}

#[cfg(test)]
mod tests {
    use loadgen::medians::median_interval;

    use super::*;

    #[test]
    fn an_interval_that_contains_the_bound_and_few_rounds_decide_nothing() {
        let of = |values: &[f64]| Bound::of(&median_interval(values), 1.1);
        assert_eq!(of(&[1.0; 6]), Bound::Kept);
        assert_eq!(of(&[1.2; 6]), Bound::Broken);
        assert_eq!(of(&[1.0, 1.05, 1.08, 1.12, 1.2, 1.3]), Bound::Undecided);
        assert_eq!(of(&[1.0; 5]), Bound::Undecided);
        assert_eq!(Bound::all([Bound::Kept, Bound::Undecided, Bound::Broken]), Bound::Broken);
        assert_eq!(Bound::all([Bound::Kept, Bound::Undecided]), Bound::Undecided);
        assert_eq!(Bound::all([]), Bound::Kept);
    }
}
