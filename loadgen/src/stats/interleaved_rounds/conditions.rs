//! What the machine did during a turn.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Distances that differ by this factor are different ones. Readings of the same distance vary by up to 1.45, those of
/// different ones differ by 4.
pub(super) const GAP: f64 = 1.6;

/// What the machine did during a turn that none of the contestants caused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Conditions {
    /// CPU time that the hypervisor took (steal), as a share of one core.
    pub steal: f64,
    /// How far apart the cores of server and client were; `None` if it was not measured.
    pub distance: Option<CoreDistance>,
}

impl Conditions {
    /// Conditions with this much steal, as a share of one core.
    pub fn with_steal(steal: f64) -> Self {
        Self { steal, ..Self::default() }
    }

    /// The same with the round trip of a cache line between the cores just before and just after the turn, in
    /// nanoseconds. A reading that is not a positive number counts as not measured.
    pub fn with_distance(self, before_ns: f64, after_ns: f64) -> Self {
        let valid = |reading: f64| reading.is_finite() && reading > 0.0;
        let distance = CoreDistance { before: before_ns, after: after_ns };
        Self { distance: (valid(before_ns) && valid(after_ns)).then_some(distance), ..self }
    }

    /// Whether the distance changed meanwhile, judged by these two readings alone. [`Rounds`](super::Rounds) judges by
    /// all readings of a run.
    pub fn distance_changed(&self) -> bool {
        self.distance.is_some_and(|distance| distance.ratio() > GAP)
    }
}

/// The distance of two cores around a turn: the round trip of a cache line between them, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CoreDistance {
    /// Just before the turn.
    pub before: f64,
    /// Just after the turn.
    pub after: f64,
}

impl CoreDistance {
    /// The greater reading over the smaller one.
    pub(super) fn ratio(self) -> f64 {
        self.before.max(self.after) / self.before.min(self.after)
    }
}

/// Which of the distances seen a turn belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum DistanceClass {
    /// The distance was the same all the time, or was not measured.
    Single,
    /// The shorter of two distances.
    Near,
    /// The longer of two distances.
    Far,
}

impl fmt::Display for DistanceClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Single => "one class",
            Self::Near => "near",
            Self::Far => "far",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_that_is_no_distance_counts_as_not_measured() {
        let conditions = Conditions::with_steal(0.5);
        assert_eq!(conditions.with_distance(f64::NAN, 100.0).distance, None);
        assert_eq!(conditions.with_distance(100.0, 0.0).distance, None);
        let measured = conditions.with_distance(100.0, 250.0);
        assert!(measured.distance_changed() && !conditions.with_distance(100.0, 150.0).distance_changed());
        assert_eq!((measured.steal, measured.distance.map(CoreDistance::ratio)), (0.5, Some(2.5)));
    }

    #[test]
    fn conditions_without_a_distance_can_be_read_from_json() {
        let conditions: Conditions = serde_json::from_str(r#"{"steal":0.25}"#).unwrap();
        assert_eq!(conditions, Conditions::with_steal(0.25));
        assert_eq!(serde_json::to_string(&DistanceClass::Near).unwrap(), r#""near""#);
    }
}
