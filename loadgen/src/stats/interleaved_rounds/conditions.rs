//! What the machine did during a turn, and the classes of distance: where the readings have a gap, turns on one side
//! don't compare with the other's.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Distances that differ by this factor are different ones. Readings of the same distance vary by up to 1.45, those of
/// different ones differ by 4.
pub const DISTANCE_GAP: f64 = 1.6;

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
        self.distance.is_some_and(|distance| distance.ratio() > DISTANCE_GAP)
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

/// A class needs as many turns: a single one is more likely a disturbed reading.
const MIN_TURNS: usize = 2;
/// A class needs this share of the turns, the reciprocal: a long run on a busy machine has several disturbed readings,
/// which must not hide the gap between near and far.
const MIN_SHARE: usize = 20;

/// Turns by index.
type Turns = Vec<(usize, CoreDistance)>;

/// The class of each turn, and the border between near and far.
#[derive(Debug, PartialEq)]
pub(super) struct Classification {
    /// By turn; `None` if the turn began and ended in different classes, or is an outlier.
    pub(super) turns: Vec<Option<DistanceClass>>,
    /// The reading, in nanoseconds, that separates near from far; `None` if there is one class.
    border: Option<f64>,
}

impl Classification {
    /// Classifies turns, given in the order of time.
    ///
    /// Where a gap between readings has too few turns on one side, these are outliers, which are put aside, together
    /// with the turns that were on both sides. What is left is split at its widest gap.
    pub(super) fn of(turns: &[Option<CoreDistance>]) -> Self {
        let mut classified = vec![None; turns.len()];
        let mut rest: Turns =
            turns.iter().enumerate().filter_map(|(index, distance)| Some((index, (*distance)?))).collect();
        let min_turns = MIN_TURNS.max(rest.len().div_ceil(MIN_SHARE));
        let latest = rest.last().map(|(_, distance)| distance.after);
        loop {
            let borders = distance_gaps(rest.iter().map(|(_, distance)| *distance));
            let Some(&widest) = borders.first() else {
                for (index, _) in rest.iter().filter(|(_, distance)| distance.ratio() <= DISTANCE_GAP) {
                    classified[*index] = Some(DistanceClass::Single);
                }
                // Without a second class, turns that were not measured belong to the only one.
                for (index, _) in turns.iter().enumerate().filter(|(_, distance)| distance.is_none()) {
                    classified[index] = Some(DistanceClass::Single);
                }
                return Self { turns: classified, border: None };
            };
            let outliers = borders.into_iter().find_map(|border| {
                let (near, far) = sides(&rest, border);
                (near.len().min(far.len()) < min_turns).then_some((border, near, far))
            });
            let Some((border, near, far)) = outliers else {
                let (near, far) = sides(&rest, widest);
                near.iter().for_each(|(index, _)| classified[*index] = Some(DistanceClass::Near));
                far.iter().for_each(|(index, _)| classified[*index] = Some(DistanceClass::Far));
                return Self { turns: classified, border: Some(widest) };
            };
            // If neither side has more, the machine's present distance is the one that can be measured further.
            let near_stays = match near.len().cmp(&far.len()) {
                std::cmp::Ordering::Greater => true,
                std::cmp::Ordering::Less => false,
                std::cmp::Ordering::Equal => latest.is_some_and(|reading| reading < border),
            };
            // At least one reading is on the other side of each gap, so this comes to an end.
            rest = if near_stays { near } else { far };
        }
    }

    /// The class of a reading, in nanoseconds.
    pub(super) fn class_of(&self, reading: f64) -> DistanceClass {
        self.border.map_or(DistanceClass::Single, |border| class_of(reading, border))
    }

    /// The classes that turns may have.
    pub(super) fn classes(&self) -> &'static [DistanceClass] {
        match self.border {
            None => &[DistanceClass::Single],
            Some(_) => &[DistanceClass::Near, DistanceClass::Far],
        }
    }
}

fn class_of(reading: f64, border: f64) -> DistanceClass {
    if reading < border { DistanceClass::Near } else { DistanceClass::Far }
}

/// The turns that were below the border before and after, and those that were above it both times.
fn sides(turns: &[(usize, CoreDistance)], border: f64) -> (Turns, Turns) {
    let side = |class| {
        let both = move |it: &CoreDistance| {
            class_of(it.before, border) == class && class_of(it.after, border) == class
        };
        turns.iter().copied().filter(|(_, distance)| both(distance)).collect()
    };
    (side(DistanceClass::Near), side(DistanceClass::Far))
}

/// The middles, on a logarithmic scale, of the gaps between readings that are wide enough, the widest first.
pub fn distance_gaps(turns: impl Iterator<Item = CoreDistance>) -> Vec<f64> {
    let mut logarithms: Vec<f64> = turns.flat_map(|it| [it.before.ln(), it.after.ln()]).collect();
    logarithms.sort_by(f64::total_cmp);
    let gaps = logarithms.windows(2).map(|pair| (pair[1] - pair[0], f64::midpoint(pair[0], pair[1])));
    let mut gaps: Vec<(f64, f64)> = gaps.filter(|(width, _)| *width >= DISTANCE_GAP.ln()).collect();
    gaps.sort_by(|a, b| b.0.total_cmp(&a.0));
    gaps.into_iter().map(|(_, middle)| middle.exp()).collect()
}

#[cfg(test)]
mod tests {
    use DistanceClass::{Far, Near, Single};

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

    fn classified(readings: &[(f64, f64)]) -> Vec<Option<DistanceClass>> {
        let turns: Vec<_> =
            readings.iter().map(|&(before, after)| Some(CoreDistance { before, after })).collect();
        Classification::of(&turns).turns
    }

    #[test]
    fn a_gap_separates_near_from_far() {
        let turns = [(95.0, 130.0), (500.0, 520.0), (120.0, 90.0), (550.0, 480.0)];
        assert_eq!(classified(&turns), [Some(Near), Some(Far), Some(Near), Some(Far)]);
    }

    #[test]
    fn readings_without_a_gap_are_one_class() {
        let turns = [(100.0, 130.0), (150.0, 140.0), (110.0, 155.0)];
        assert_eq!(classified(&turns), [Some(Single); 3]);
        assert_eq!(classified(&[]), []);
    }

    #[test]
    fn a_turn_that_ends_in_another_class_has_none() {
        let turns = [(100.0, 100.0), (100.0, 100.0), (100.0, 500.0), (500.0, 500.0), (500.0, 500.0)];
        assert_eq!(classified(&turns), [Some(Near), Some(Near), None, Some(Far), Some(Far)]);
        // Also before the other class is known, and where a chain of readings leaves no gap.
        assert_eq!(classified(&[(100.0, 500.0)]), [None]);
        let chain = [(100.0, 140.0), (140.0, 200.0), (100.0, 200.0)];
        assert_eq!(classified(&chain), [Some(Single), Some(Single), None]);
    }

    #[test]
    fn a_lone_outlier_makes_no_class_and_is_left_out() {
        let turns = [(100.0, 100.0), (105.0, 100.0), (4000.0, 4000.0), (100.0, 110.0)];
        assert_eq!(classified(&turns), [Some(Single), Some(Single), None, Some(Single)]);
        let with_classes = [(100.0, 100.0), (105.0, 100.0), (4000.0, 4000.0), (500.0, 510.0), (500.0, 510.0)];
        assert_eq!(classified(&with_classes), [Some(Near), Some(Near), None, Some(Far), Some(Far)]);
    }

    #[test]
    fn a_few_disturbed_readings_of_a_long_run_do_not_hide_the_classes() {
        let mut turns = [[(100.0, 110.0); 30], [(500.0, 510.0); 30]].concat();
        turns.extend([(2000.0, 2100.0), (2500.0, 2000.0), (4000.0, 4000.0)]);
        let found = classified(&turns);
        assert_eq!((found[0], found[30], &found[60..]), (Some(Near), Some(Far), &[None; 3][..]));
    }

    #[test]
    fn of_one_turn_at_each_distance_the_later_one_stays() {
        assert_eq!(classified(&[(100.0, 100.0), (500.0, 500.0)]), [None, Some(Single)]);
        assert_eq!(classified(&[(500.0, 500.0), (100.0, 100.0)]), [None, Some(Single)]);
    }

    #[test]
    fn a_turn_without_a_reading_belongs_to_the_only_class_or_to_none() {
        let near = Some(CoreDistance { before: 100.0, after: 100.0 });
        let far = Some(CoreDistance { before: 500.0, after: 500.0 });
        assert_eq!(Classification::of(&[None, near]).turns, [Some(Single), Some(Single)]);
        let two = Classification::of(&[None, near, far, near, far]);
        assert_eq!(two.turns, [None, Some(Near), Some(Far), Some(Near), Some(Far)]);
        assert_eq!((two.class_of(90.0), two.class_of(600.0)), (Near, Far));
    }
}
