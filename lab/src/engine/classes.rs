//! Classes of core distance, decided once over all turns of a run: what is near under one load is near under all.

use loadgen::interleaved_rounds::{CoreDistance, DISTANCE_GAP, DistanceClass, distance_gaps};

/// A class has at least this share of the turns, the reciprocal, and two: fewer are disturbed readings.
const MIN_SHARE: usize = 20;
const MIN_TURNS: usize = 2;

/// The class of each turn; `None` if it began and ended in different ones, or is an outlier. Without a second class, turns that
/// were not measured belong to the only one.
///
/// Where a gap between readings has too few turns on one side, these are outliers, which are put aside. What is left is split
/// at its widest gap.
pub(super) fn classify(turns: &[Option<CoreDistance>]) -> Vec<Option<DistanceClass>> {
    let mut rest: Vec<CoreDistance> = turns.iter().flatten().copied().collect();
    let least = MIN_TURNS.max(rest.len().div_ceil(MIN_SHARE));
    let (mut from, mut to) = (0.0, f64::INFINITY);
    let border = loop {
        let gaps = distance_gaps(rest.iter().copied());
        let Some(&widest) = gaps.first() else { break None };
        let below = |border: f64| rest.iter().filter(|it| it.before.max(it.after) < border).count();
        let above = |border: f64| rest.iter().filter(|it| it.before.min(it.after) > border).count();
        match gaps.into_iter().find(|&gap| below(gap).min(above(gap)) < least) {
            None => break Some(widest),
            Some(gap) if below(gap) < above(gap) => from = gap,
            Some(gap) => to = gap,
        }
        // At least one reading is on the other side, so this comes to an end.
        rest.retain(|it| it.before.min(it.after) > from && it.before.max(it.after) < to);
    };
    let class = |distance: &CoreDistance| {
        let (low, high) = (distance.before.min(distance.after), distance.before.max(distance.after));
        match border {
            _ if low <= from || high >= to => None,
            None => (high / low <= DISTANCE_GAP).then_some(DistanceClass::Single),
            Some(border) if high < border => Some(DistanceClass::Near),
            Some(border) if low > border => Some(DistanceClass::Far),
            Some(_) => None,
        }
    };
    let unmeasured = border.is_none().then_some(DistanceClass::Single);
    turns.iter().map(|turn| turn.as_ref().map_or(unmeasured, class)).collect()
}

#[cfg(test)]
mod tests {
    use DistanceClass::{Far, Near, Single};
    use loadgen::interleaved_rounds::Conditions;

    use super::*;

    fn classified(readings: &[(f64, f64)]) -> Vec<Option<DistanceClass>> {
        let distance =
            |&(before, after): &(f64, f64)| Conditions::default().with_distance(before, after).distance;
        classify(&readings.iter().map(distance).collect::<Vec<_>>())
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
    fn turns_without_a_reading_are_of_the_only_class_or_of_none() {
        assert_eq!(classify(&[None, None]), [Some(Single); 2]);
        let near = Conditions::default().with_distance(100.0, 100.0).distance;
        let far = Conditions::default().with_distance(500.0, 500.0).distance;
        assert_eq!(classify(&[None, near])[0], Some(Single));
        assert_eq!(classify(&[None, near, near, far, far])[0], None);
    }
}
