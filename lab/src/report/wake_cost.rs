//! What an avoided wake-up saves. In a virtual machine it is several times what it is on hardware, and with it all that policies
//! gain which avoid wake-ups.

use serde::Serialize;

use super::document::{Section, Table};
use crate::engine::{Figure, LoadKind, LoadResult, Row, Status};

/// What an avoided interrupt saved on the paper's hardware, µs of CPU time: from Table 5, vanilla to kernel polling.
const PAPERS_WAKE_UP_US: f64 = 3.0;
/// The least difference in wake-ups per request by which one is divided.
const LEAST_AVOIDED: f64 = 0.1;

/// What an avoided wake-up saves, and what follows for hardware.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct WakeCost {
    /// The load at which most were avoided.
    pub load: String,
    /// The contender and the reference.
    pub contenders: [String; 2],
    /// Wake-ups of the kernel thread per request of both.
    pub wakes: [f64; 2],
    /// CPU time per request of both, µs.
    pub cpu_us: [f64; 2],
    /// CPU time that an avoided wake-up saves, µs.
    pub saves_us: f64,
    /// CPU time per request over the reference's, here.
    pub ratio_here: f64,
    /// The same if a wake-up cost what it does on the paper's hardware. `None` if wake-ups would cost more than all CPU time.
    pub ratio_there: Option<f64>,
}

impl WakeCost {
    /// Of the load at which a contender avoids most wake-ups. `None` if it avoids none.
    pub(super) fn of<'a>(loads: impl Iterator<Item = &'a LoadResult>, contender: usize) -> Option<Self> {
        let loads = loads.filter(|load| matches!(load.kind, LoadKind::Open | LoadKind::Closed));
        let costs = loads.filter_map(|load| {
            let row = load.rows.get(contender)?;
            let reference = &row.figures.get(&Figure::CpuPerRequest)?.reference;
            Self::between(load, row, load.rows.iter().find(|row| row.contender == *reference)?)
        });
        costs.max_by(|a, b| (a.wakes[1] - a.wakes[0]).total_cmp(&(b.wakes[1] - b.wakes[0])))
    }

    fn between(load: &LoadResult, row: &Row, reference: &Row) -> Option<Self> {
        if matches!(row.status, Status::NotComparable(_)) {
            return None;
        }
        let of = |row: &Row| Some((row.median(Figure::Wakes)?, row.median(Figure::CpuPerRequest)?));
        let ((wakes, cpu), (wakes_before, cpu_before)) = (of(row)?, of(reference)?);
        let avoided = wakes_before - wakes;
        if avoided < LEAST_AVOIDED {
            return None;
        }
        let saves_us = (cpu_before - cpu) / avoided;
        let there = |cpu: f64, wakes: f64| cpu - wakes * (saves_us - PAPERS_WAKE_UP_US);
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

    /// In one sentence.
    pub(super) fn sentence(&self) -> String {
        let Self { load, saves_us, ratio_here, ratio_there, .. } = self;
        let there = match ratio_there {
            Some(there) => format!("expect {there:.2} there"),
            None => "what to expect there can't be computed".to_owned(),
        };
        format!(
            "An avoided wake-up saves {saves_us:.1} µs of CPU time here, and about {PAPERS_WAKE_UP_US:.0} on the paper's \
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
    use crate::engine::{Turn, results_of};

    fn cost(wakes: f64, cpu: f64) -> Option<WakeCost> {
        let results = results_of(
            &[("closed loop", LoadKind::Closed, 64.0, None)],
            &["vanilla", "polling"],
            &[0],
            6,
            |_, contender, _| {
                let (wakes, cpu) = if contender == 0 { (1.0, 30.0) } else { (wakes, cpu) };
                Turn::new([(Figure::Wakes, wakes), (Figure::CpuPerRequest, cpu)])
            },
        );
        WakeCost::of(results.leading(), 1)
    }

    #[test]
    fn the_saving_is_divided_by_the_avoided_wake_ups_and_scaled_to_hardware() {
        let cost = cost(0.0, 6.0).unwrap();
        assert_eq!((cost.saves_us, cost.ratio_here), (24.0, 0.2));
        // Of 30 µs a wake-up is 24 here: with 3 the reference takes 9, and the other one 6 as before.
        assert_eq!(cost.ratio_there, Some(6.0 / 9.0));
        assert!(cost.sentence().contains("saves 24.0 µs") && cost.sentence().contains("expect 0.67 there"));
    }

    #[test]
    fn nothing_is_divided_by_no_wake_ups() {
        assert_eq!(cost(0.95, 6.0), None);
        assert_eq!(cost(1.5, 6.0), None);
    }
}
