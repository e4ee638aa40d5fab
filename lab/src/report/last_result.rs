//! What `policies explain` reads of a comparison: kernel polling with each latency budget, over the
//! better vanilla.

use loadgen::medians::Interval;
use policies::explain::measured::{Measured, MeasuredBudget, MeasuredRate, MeasuredRatio};
use policies::{GraceTime, Policy};

use super::comparison::Comparison;
use crate::engine::{Figure, LoadKind, LoadResult, Row};
use crate::experiment::Contender;

impl Comparison {
    /// The rates at which kernel polling ran within a latency budget, beside vanilla. `None` if
    /// there are none.
    pub fn measured(&self) -> Option<Measured> {
        let open = self.outcome.results.leading().filter(|load| load.kind == LoadKind::Open);
        let rates: Vec<MeasuredRate> = open.filter_map(|load| self.measured_rate(load)).collect();
        let has_vanilla =
            self.experiment.references.iter().all(|&index| self.experiment.contenders[index].is_vanilla());
        (has_vanilla && !rates.is_empty()).then(|| Measured::now(rates))
    }

    fn measured_rate(&self, load: &LoadResult) -> Option<MeasuredRate> {
        let budget = |(index, row): (usize, &Row)| {
            let Contender::Lull { policy: Policy::KernelPolling, driver, polling, .. } =
                self.experiment.contenders.get(index)?
            else {
                return None;
            };
            let ran = self.outcome.servers.get(index)?.as_ref()?.ran == Policy::KernelPolling.name();
            let [cpu, p50] = [Figure::CpuPerRequest, Figure::P50].map(|figure| row.figures.get(&figure));
            let (cpu, p50) = (cpu?, p50?);
            (ran && polling.grace_time == GraceTime::Adaptive).then_some(MeasuredBudget {
                driver: driver.to_string(),
                latency_budget: polling.latency_budget,
                cpu_us: cpu.value.median,
                cpu_ratio: ratio(cpu.ratio.as_ref()?),
                p50_us: p50.value.median,
                p50_ratio: ratio(p50.ratio.as_ref()?),
            })
        };
        let budgets: Vec<MeasuredBudget> = load.rows.iter().enumerate().filter_map(budget).collect();
        (!budgets.is_empty()).then_some(MeasuredRate { rate: load.at, share: load.share, budgets })
    }
}

fn ratio(interval: &Interval) -> MeasuredRatio {
    let Interval { median, low, high, .. } = *interval;
    MeasuredRatio { median, interval: interval.reaches_target().then_some((low, high)) }
}
