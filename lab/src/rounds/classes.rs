//! Classes of core distance, decided once over all turns of a run: what is near under one load is
//! near under all.

use serde::{Deserialize, Serialize};

/// Neighbouring readings that differ by this factor are of different distances. Far ones were 305 to
/// 360 ns after a server's turn and 640 to 740 ns after another's within a second, with equal figures
/// (some in between); near and far ones differ by 2.5 at least.
pub(crate) const DISTANCE_GAP: f64 = 2.0;

/// A class has at least this share of the turns, the reciprocal, and two: fewer are disturbed
/// readings.
const MIN_SHARE: usize = 20;
const MIN_TURNS: usize = 2;

/// The distance of two cores around a turn: the round trip of a cache line between them, in
/// nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CoreDistance {
    pub before: f64,
    pub after: f64,
}

impl CoreDistance {
    fn lowest(&self) -> f64 {
        self.before.min(self.after)
    }

    fn highest(&self) -> f64 {
        self.before.max(self.after)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DistanceClass {
    /// The distance was the same all the time, or was not measured.
    Single,
    Near,
    Far,
}

policies::names!(DistanceClass, "distance": Single = "one class", Near = "near", Far = "far");

pub(crate) struct Classes {
    /// `None` if the turn began and ended in different classes, or is an outlier.
    pub(crate) turns: Vec<Option<DistanceClass>>,
    border: Option<f64>,
}

impl Classes {
    /// Without a second class, turns that were not measured belong to the only one.
    ///
    /// Where a gap between readings has too few turns on one side, these are outliers, which are
    /// put aside. What is left is split at its widest gap.
    pub(crate) fn of(turns: impl Iterator<Item = Option<CoreDistance>>) -> Self {
        let turns: Vec<Option<CoreDistance>> = turns.collect();
        let mut rest: Vec<CoreDistance> = turns.iter().flatten().copied().collect();
        let least = MIN_TURNS.max(rest.len().div_ceil(MIN_SHARE));
        let (mut from, mut to) = (0.0, f64::INFINITY);
        let border = loop {
            let gaps = distance_gaps(&rest);
            let Some(&widest) = gaps.first() else { break None };
            let below = |border: f64| rest.iter().filter(|it| it.highest() < border).count();
            let above = |border: f64| rest.iter().filter(|it| it.lowest() > border).count();
            match gaps.into_iter().find(|&gap| below(gap).min(above(gap)) < least) {
                None => break Some(widest),
                Some(gap) if below(gap) < above(gap) => from = gap,
                Some(gap) => to = gap,
            }
            // At least one reading is on the other side, so this comes to an end.
            rest.retain(|it| it.lowest() > from && it.highest() < to);
        };
        let class = |distance: &CoreDistance| {
            let (low, high) = (distance.lowest(), distance.highest());
            match border {
                _ if low <= from || high >= to => None,
                None => Some(DistanceClass::Single),
                Some(border) if high < border => Some(DistanceClass::Near),
                Some(border) if low > border => Some(DistanceClass::Far),
                Some(_) => None,
            }
        };
        let unmeasured = border.is_none().then_some(DistanceClass::Single);
        Self { turns: turns.iter().map(|turn| turn.as_ref().map_or(unmeasured, class)).collect(), border }
    }

    pub(super) fn of_reading(&self, nanos: f64) -> DistanceClass {
        match self.border {
            None => DistanceClass::Single,
            Some(border) if nanos < border => DistanceClass::Near,
            Some(_) => DistanceClass::Far,
        }
    }

    pub(super) fn all(&self) -> &'static [DistanceClass] {
        match self.border {
            None => &[DistanceClass::Single],
            Some(_) => &[DistanceClass::Near, DistanceClass::Far],
        }
    }
}

/// The middles, on a logarithmic scale, of the gaps between readings that are wide enough, the
/// widest first.
fn distance_gaps(turns: &[CoreDistance]) -> Vec<f64> {
    let mut logarithms: Vec<f64> = turns.iter().flat_map(|it| [it.before.ln(), it.after.ln()]).collect();
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

    fn distance(before: f64, after: f64) -> Option<CoreDistance> {
        Some(CoreDistance { before, after })
    }

    fn classified(readings: &[(f64, f64)]) -> Vec<Option<DistanceClass>> {
        Classes::of(readings.iter().map(|it| distance(it.0, it.1))).turns
    }

    #[test]
    fn a_gap_separates_near_from_far_and_a_turn_on_both_sides_has_no_class() {
        let turns = [(95.0, 130.0), (500.0, 520.0), (120.0, 90.0), (550.0, 480.0), (100.0, 500.0)];
        assert_eq!(classified(&turns), [Some(Near), Some(Far), Some(Near), Some(Far), None]);
        assert_eq!(classified(&[(100.0, 130.0), (150.0, 140.0)]), [Some(Single); 2]);
    }

    #[test]
    fn a_load_that_met_the_far_distance_only_is_far_if_another_load_was_near() {
        // 375 to 450 ns under one load, 110 ns under the others.
        let turns = [vec![(375.0, 450.0); 12], vec![(110.0, 112.0); 12]].concat();
        let classes = classified(&turns);
        assert!(classes[..12].iter().all(|class| *class == Some(Far)), "{classes:?}");
    }

    #[test]
    fn a_few_disturbed_readings_make_no_class_and_hide_none() {
        let mut turns = [[(100.0, 110.0); 30], [(500.0, 510.0); 30]].concat();
        turns.extend([(2000.0, 2100.0), (2500.0, 2000.0), (4000.0, 4000.0)]);
        let found = classified(&turns);
        assert_eq!((found[0], found[30], &found[60..]), (Some(Near), Some(Far), &[None; 3][..]));
        assert_eq!(
            classified(&[(100.0, 100.0), (105.0, 100.0), (4000.0, 4000.0)]),
            [Some(Single), Some(Single), None]
        );
    }

    #[test]
    fn far_cores_whose_round_trips_double_between_turns_are_of_one_class() {
        let far = [(323.0, 735.0), (642.0, 354.0), (345.0, 325.0), (720.0, 330.0), (732.0, 692.0)];
        assert_eq!(classified(&far.repeat(4)), [Some(Single); 20]);
        let with_near = [vec![(80.0, 82.0); 10], far.repeat(4)].concat();
        assert!(classified(&with_near)[10..].iter().all(|class| *class == Some(Far)));
    }

    #[test]
    fn turns_without_a_reading_are_of_the_only_class_or_of_none() {
        let of = |turns: &[Option<CoreDistance>]| Classes::of(turns.iter().copied()).turns;
        assert_eq!(of(&[None, None]), [Some(Single); 2]);
        let (near, far) = (distance(100.0, 100.0), distance(500.0, 500.0));
        assert_eq!(of(&[None, near])[0], Some(Single));
        assert_eq!(of(&[None, near, near, far, far])[0], None);
    }
}
