//! Classes of core distance, decided once over all turns of a run: what is near under one load is
//! near under all.

use serde::{Deserialize, Serialize};

/// Readings that differ by this factor, with next to none between them, are of different distances. Far
/// ones were 305 to 360 ns after a server's turn and 640 to 740 ns after another's within a second,
/// with equal figures (some in between); near and far ones differ by 2.5 at least.
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
    border: Option<Gap>,
}

impl Classes {
    /// Without a second class, turns that were not measured belong to the only one.
    ///
    /// Where a gap between readings has too few turns on one side, these are outliers, which are
    /// put aside. What is left is split at the gap with the fewest turns in it, of several at the widest.
    /// A class needs at least 1/20 of `among` turns, and two.
    pub(crate) fn of(turns: impl Iterator<Item = Option<CoreDistance>>, among: usize) -> Self {
        let turns: Vec<Option<CoreDistance>> = turns.collect();
        let mut rest: Vec<CoreDistance> = turns.iter().flatten().copied().collect();
        let least = MIN_TURNS.max(among.div_ceil(MIN_SHARE));
        let (mut from, mut to) = (0.0, f64::INFINITY);
        let border = loop {
            let gaps = distance_gaps(&rest, least);
            let below = |gap: &Gap| rest.iter().filter(|it| gap.is_above(it)).count();
            let above = |gap: &Gap| rest.iter().filter(|it| gap.is_below(it)).count();
            let has_few = |gap: &Gap| below(gap).min(above(gap)) < least;
            match gaps.iter().find(|gap| gap.inside == 0 && has_few(gap)) {
                None => break gaps.into_iter().find(|gap| !has_few(gap)),
                Some(gap) if below(gap) < above(gap) => from = gap.end,
                Some(gap) => to = gap.begin,
            }
            // At least one reading is on the other side, so this comes to an end.
            rest.retain(|it| it.lowest() >= from && it.highest() <= to);
        };
        let class = |distance: &CoreDistance| match border {
            _ if distance.lowest() < from || distance.highest() > to => None,
            None => Some(DistanceClass::Single),
            Some(border) if border.is_above(distance) => Some(DistanceClass::Near),
            Some(border) if border.is_below(distance) => Some(DistanceClass::Far),
            Some(_) => None,
        };
        let unmeasured = border.is_none().then_some(DistanceClass::Single);
        Self { turns: turns.iter().map(|turn| turn.as_ref().map_or(unmeasured, class)).collect(), border }
    }

    pub(super) fn of_reading(&self, nanos: f64) -> DistanceClass {
        match self.border {
            None => DistanceClass::Single,
            Some(border) if nanos < border.middle() => DistanceClass::Near,
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

/// Between two readings, in ns.
#[derive(Debug, Clone, Copy)]
struct Gap {
    begin: f64,
    end: f64,
    /// Turns with a reading in it.
    inside: usize,
}

impl Gap {
    fn is_above(&self, distance: &CoreDistance) -> bool {
        distance.highest() <= self.begin
    }

    fn is_below(&self, distance: &CoreDistance) -> bool {
        distance.lowest() >= self.end
    }

    fn middle(&self) -> f64 {
        (self.begin * self.end).sqrt()
    }
}

/// The gaps that are wide enough, with less than `least` turns in them: those with the fewest first,
/// and the widest of these.
fn distance_gaps(turns: &[CoreDistance], least: usize) -> Vec<Gap> {
    let readings = || turns.iter().flat_map(|it| [it.before, it.after]);
    let of = |begin: f64| {
        let end = readings().filter(|&it| it >= begin * DISTANCE_GAP).reduce(f64::min)?;
        let is_inside = |it: f64| begin < it && it < end;
        let inside = turns.iter().filter(|it| is_inside(it.before) || is_inside(it.after)).count();
        (inside < least).then_some(Gap { begin, end, inside })
    };
    let mut gaps: Vec<Gap> = readings().filter_map(of).collect();
    let width = |gap: &Gap| gap.end / gap.begin;
    gaps.sort_by(|a, b| a.inside.cmp(&b.inside).then(width(b).total_cmp(&width(a))));
    gaps
}

#[cfg(test)]
mod tests {
    use DistanceClass::{Far, Near, Single};

    use super::*;

    fn distance(before: f64, after: f64) -> Option<CoreDistance> {
        Some(CoreDistance { before, after })
    }

    fn classified(readings: &[(f64, f64)]) -> Vec<Option<DistanceClass>> {
        Classes::of(readings.iter().map(|it| distance(it.0, it.1)), readings.len()).turns
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
    fn a_turn_between_near_and_far_does_not_make_them_one() {
        let turns = [vec![(80.0, 90.0); 20], vec![(84.0, 170.0)], vec![(330.0, 340.0); 20]].concat();
        let found = classified(&turns);
        assert_eq!((found[0], found[20], found[21]), (Some(Near), None, Some(Far)));
    }

    #[test]
    fn turns_without_a_reading_are_of_the_only_class_or_of_none() {
        let of = |turns: &[Option<CoreDistance>]| Classes::of(turns.iter().copied(), turns.len()).turns;
        assert_eq!(of(&[None, None]), [Some(Single); 2]);
        let (near, far) = (distance(100.0, 100.0), distance(500.0, 500.0));
        assert_eq!(of(&[None, near])[0], Some(Single));
        assert_eq!(of(&[None, near, near, far, far])[0], None);
    }
}
