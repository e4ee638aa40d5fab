//! The sequences that the rules are compared on, unless there is a file of gaps.

use super::costs::Costs;
use super::gap_file::{self, GapFileError};
use super::sequence::{Gaps, Sequence, SequenceClass, repeated};

const MILLI: u64 = 1_000_000;

/// How long a sequence is, in ns.
#[derive(Debug, Clone, Copy)]
pub(super) struct Length {
    /// The rules adapt for this long before they are measured.
    pub adapting: u64,
    pub measured: u64,
}

impl Length {
    /// What `lab simulate` takes.
    pub(super) const FULL: Self = Self { adapting: 300 * MILLI, measured: 1_000 * MILLI };

    fn total(self) -> u64 {
        self.adapting + self.measured
    }
}

/// Loads of the Poisson processes, in percent of plain mode's capacity.
pub(super) const LOADS: [(SequenceClass, u32); 8] = [
    (SequenceClass::RandomLow, 5),
    (SequenceClass::RandomLow, 10),
    (SequenceClass::RandomLow, 25),
    (SequenceClass::RandomMiddle, 50),
    (SequenceClass::RandomMiddle, 75),
    (SequenceClass::RandomHigh, 90),
    (SequenceClass::RandomHigh, 95),
    (SequenceClass::Overload, 110),
];
/// Recorded sequences: name and text. Each file says how it was recorded.
const RECORDED: [(&str, &str); 4] = [
    ("fleet on a busy machine", include_str!("../../data/fleet.gaps")),
    ("closed loop, 64 connections", include_str!("../../data/closed-64.gaps")),
    ("closed loop, 8 connections that think", include_str!("../../data/closed-8-think.gaps")),
    ("open loop, 50 k/s", include_str!("../../data/open-50k.gaps")),
];

/// All sequences.
///
/// # Errors
/// If a recorded sequence can't be parsed.
pub(super) fn sequences(costs: &Costs, length: Length) -> Result<Vec<Sequence>, GapFileError> {
    let mut all: Vec<Sequence> =
        LOADS.iter().map(|&(class, percent)| poisson(costs, class, percent, length)).collect();
    all.push(steps(costs, length));
    all.extend([1, 10, 100, 1_000].map(|millis| bursts(costs, millis * MILLI, length)));
    for micros in [20, 50, 100] {
        all.extend([95, 105].map(|percent| equal_gaps(micros * 10 * percent, length)));
    }
    for (name, time) in [("a block", costs.block), ("20 µs", 20_000), ("100 µs", 100_000)] {
        let gaps = repeated([costs.service + time / 2, costs.service + time * 2], length.total());
        let sequence = Sequence::new(format!("half and twice {name}"), SequenceClass::Alternating, gaps);
        all.push(sequence.measured_from(length.adapting));
    }
    all.extend(
        [(1.5, 10), (1.5, 25), (1.2, 25), (1.5, 50)].map(|(shape, load)| pareto(costs, shape, load, length)),
    );
    for (name, text) in RECORDED {
        all.push(recorded(gap_file::parse(name, text)?, length));
    }
    Ok(all)
}

fn rate(costs: &Costs, percent: u32) -> f64 {
    costs.plain_capacity() * f64::from(percent) / 100.0
}

pub(super) fn poisson(costs: &Costs, class: SequenceClass, percent: u32, length: Length) -> Sequence {
    let gaps = Gaps::new(percent.into()).poisson(rate(costs, percent), length.total());
    Sequence::new(format!("random, {percent} %"), class, gaps).measured_from(length.adapting)
}

pub(super) fn steps(costs: &Costs, length: Length) -> Sequence {
    let mut gaps = Gaps::new(1);
    let all = [10, 90, 10].map(|percent| gaps.poisson(rate(costs, percent), length.measured));
    let sequence = Sequence::new("steps", SequenceClass::Steps, all.concat());
    Sequence { steps: vec![length.measured, 2 * length.measured], ..sequence }
}

fn bursts(costs: &Costs, period: u64, length: Length) -> Sequence {
    let mut gaps = Gaps::new(period);
    let periods = length.total().max(length.adapting + 2 * period).div_ceil(period);
    let mut all = Vec::new();
    for _ in 0..periods {
        let on = gaps.poisson(rate(costs, 90), period / 2);
        let silence = period - on.iter().sum::<u64>();
        all.extend(on);
        all.push(silence);
    }
    let sequence = Sequence::new(format!("period of {} ms", period / MILLI), SequenceClass::Bursts, all);
    sequence.measured_from(length.adapting)
}

fn equal_gaps(gap: u64, length: Length) -> Sequence {
    let sequence = Sequence::new(
        format!("{:.1} µs", gap as f64 / 1e3),
        SequenceClass::AroundGrace,
        repeated([gap], length.total()),
    );
    sequence.measured_from(length.adapting)
}

fn pareto(costs: &Costs, shape: f64, percent: u32, length: Length) -> Sequence {
    let mut gaps = Gaps::new(percent.into());
    let mean = 1e9 / rate(costs, percent);
    let mut now = 0;
    let all = std::iter::repeat_with(|| gaps.pareto(shape, mean)).take_while(|gap| {
        now += gap;
        now < length.total()
    });
    Sequence::new(format!("Pareto {shape}, {percent} %"), SequenceClass::HeavyTails, all)
        .measured_from(length.adapting)
}

/// Repeats a recorded sequence that is too short for the rules to adapt.
fn recorded(sequence: Sequence, length: Length) -> Sequence {
    let period = sequence.arrivals.last().copied().unwrap_or(0).max(1);
    let repetitions = 0..length.total().div_ceil(period);
    let arrivals =
        repetitions.flat_map(|turn| sequence.arrivals.iter().map(move |arrival| arrival + turn * period));
    Sequence { arrivals: arrivals.collect(), ..sequence }.measured_from(length.adapting)
}
