//! What an avoided wake-up saves. In a virtual machine it is several times what it is on hardware,
//! and with it all that policies gain which avoid wake-ups.

use loadgen::medians::Interval;
use serde::Serialize;

use crate::report::tables::interval_text;
use crate::report::{Section, Table};
use crate::rounds::{Figure, LoadKind, LoadResult, Row, Status};

/// What an avoided interrupt saved on the paper's hardware, µs of CPU time: from Table 5, vanilla
/// to kernel polling.
const PAPERS_WAKE_UP_US: f64 = 3.0;
/// The least difference in wake-ups per request by which one is divided.
const LEAST_AVOIDED: f64 = 0.1;

/// What an avoided wake-up saves, and what follows for hardware.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WakeCost {
    /// The load at which most were avoided.
    pub load: String,
    pub contenders: [String; 2],
    /// Wake-ups of the kernel thread per request of both.
    pub wakes: [f64; 2],
    /// CPU time per request of both, µs.
    pub cpu_us: [f64; 2],
    /// CPU time that an avoided wake-up saves, µs: the difference in the same round, divided by the
    /// wake-ups avoided.
    pub saves_us: Interval,
    /// CPU time per request over the reference's, here.
    pub ratio_here: f64,
    /// The same by calculation, if a wake-up cost what it does on the paper's hardware. `None` if
    /// wake-ups would cost more than all CPU time.
    pub ratio_there: Option<f64>,
}

impl WakeCost {
    /// Of the load at which a contender avoids most wake-ups. `None` if it avoids none, or if the
    /// rounds don't show that it saves CPU time.
    pub(super) fn of<'a>(loads: impl Iterator<Item = &'a LoadResult>, contender: usize) -> Option<Self> {
        let loads = loads.filter(|load| matches!(load.kind, LoadKind::Open | LoadKind::Closed));
        let costs = loads.filter_map(|load| {
            let row = load.rows.get(contender)?;
            Self::between(load, row, &load.rows[row.figures.get(&Figure::CpuPerRequest)?.reference?])
        });
        costs.max_by(|a, b| (a.wakes[1] - a.wakes[0]).total_cmp(&(b.wakes[1] - b.wakes[0])))
    }

    fn between(load: &LoadResult, row: &Row, reference: &Row) -> Option<Self> {
        if [row, reference].iter().any(|row| row.status != Status::Comparable) {
            return None;
        }
        let of = |row: &Row| Some((row.median(Figure::Wakes)?, row.median(Figure::CpuPerRequest)?));
        let ((wakes, cpu), (wakes_before, cpu_before)) = (of(row)?, of(reference)?);
        let avoided = wakes_before - wakes;
        if avoided < LEAST_AVOIDED {
            return None;
        }
        let difference = row.figures.get(&Figure::CpuPerRequest)?.difference;
        // Below the reference's in all of the interval, or it may be none.
        let mut saves_us = difference.filter(|it| it.reaches_target() && it.high < 0.0)?;
        let of_one = |difference: f64| -difference / avoided;
        (saves_us.median, saves_us.low, saves_us.high) =
            (of_one(saves_us.median), of_one(saves_us.high), of_one(saves_us.low));
        let there = |cpu: f64, wakes: f64| cpu - wakes * (saves_us.median - PAPERS_WAKE_UP_US);
        let (there, before) = (there(cpu, wakes), there(cpu_before, wakes_before));
        Some(Self {
            load: load.name.clone(),
            contenders: [row.contender.clone(), reference.contender.clone()],
            wakes: [wakes, wakes_before],
            cpu_us: [cpu, cpu_before],
            saves_us,
            ratio_here: cpu / cpu_before,
            ratio_there: (there > 0.0 && before > 0.0).then_some(there / before),
        })
    }

    pub(super) fn sentence(&self) -> String {
        let Self { load, saves_us, ratio_here, ratio_there, .. } = self;
        let there = match ratio_there {
            Some(there) => format!("by calculation it is {there:.2} there"),
            None => "what it is there can't be calculated".to_owned(),
        };
        let saves_us = interval_text(saves_us, 1);
        format!(
            "An avoided wake-up saves {saves_us} µs of CPU time here, and about {PAPERS_WAKE_UP_US:.0} on the paper's \
             hardware: CPU per request is {ratio_here:.2} of the reference's here ({load}); {there}."
        )
    }

    /// With what it was computed from.
    pub(super) fn section(&self) -> Section {
        let rows = (0..2).map(|index| {
            vec![
                self.contenders[index].clone(),
                format!("{:.2}", self.wakes[index]),
                format!("{:.2}", self.cpu_us[index]),
            ]
        });
        Section {
            glance: self.sentence(),
            tables: vec![Table::new(
                format!("What it is computed from: {}", self.load),
                &["server", "wake-ups/req", "CPU µs/req"],
                rows.collect(),
            )],
            ..Section::new("wake-up", "An avoided wake-up")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounds::{Turn, results_of};

    /// Of a reference with a wake-up a request and 30 µs, in these rounds.
    fn cost_in(rounds: usize, of: impl Fn(usize) -> Turn) -> Option<WakeCost> {
        let results = results_of(
            &[("200/s", LoadKind::Open, 200.0, None)],
            &["vanilla", "polling"],
            &[0],
            rounds,
            |_, contender, round| match contender {
                0 => turn(1.0, 30.0),
                _ => of(round),
            },
        );
        WakeCost::of(results.leading(), 1)
    }

    fn turn(wakes: f64, cpu: f64) -> Turn {
        Turn::new([(Figure::Wakes, wakes), (Figure::CpuPerRequest, cpu)])
    }

    #[test]
    fn the_saving_is_divided_by_the_avoided_wake_ups_and_scaled_to_hardware() {
        let cost = cost_in(6, |round| turn(0.0, [5.0, 6.0, 7.0][round % 3])).unwrap();
        assert_eq!((cost.saves_us.low, cost.saves_us.median, cost.saves_us.high), (23.0, 24.0, 25.0));
        // Of 30 µs a wake-up is 24 here: with 3 the reference takes 9, and the other one 6 as
        // before.
        assert_eq!((cost.ratio_here, cost.ratio_there), (0.2, Some(6.0 / 9.0)));
        let sentence = cost.sentence();
        for part in ["saves 24.0 [23.0, 25.0] µs", "by calculation it is 0.67 there"] {
            assert!(sentence.contains(part), "no {part:?} in {sentence}");
        }
    }

    #[test]
    fn nothing_is_divided_by_no_wake_ups() {
        assert_eq!(cost_in(6, |_| turn(0.95, 6.0)), None);
        assert_eq!(cost_in(6, |_| turn(1.5, 6.0)), None);
    }

    #[test]
    fn a_saving_that_the_rounds_do_not_show_is_none() {
        assert_eq!(cost_in(5, |_| turn(0.0, 6.0)), None, "too few rounds");
        assert_eq!(cost_in(6, |_| turn(0.0, 31.0)), None, "costs more");
        assert_eq!(cost_in(6, |round| turn(0.0, [6.0, 31.0][round % 2])), None, "saves, or not");
        let overloaded = |_| {
            let mut turn = turn(0.0, 6.0);
            turn.set(Figure::Answered, 60.0);
            turn
        };
        assert_eq!(cost_in(6, overloaded), None, "overloaded");
    }
}
