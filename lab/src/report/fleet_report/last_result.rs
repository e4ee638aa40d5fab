//! What `policies explain` reads of a comparison: kernel polling with each latency budget, over vanilla.

use loadgen::medians::Interval;
use policies::explain::measured::{Measured, MeasuredBudget, MeasuredRate, MeasuredRatio};
use policies::{GraceTime, Policy};

use crate::experiments::fleet_comparison::{
    Contender, FleetComparisonConfig, FleetComparisonResult, FleetRow, LoadResult, TurnMeasurement,
};
use crate::fleet::FleetPacing;

/// The rates at which kernel polling ran within a latency budget, and vanilla on the same driver. `None` if there are
/// none.
pub(super) fn measured(config: &FleetComparisonConfig, result: &FleetComparisonResult) -> Option<Measured> {
    let rates: Vec<MeasuredRate> =
        result.loads.iter().filter_map(|load| measured_rate(config, result, load)).collect();
    (!rates.is_empty()).then(|| Measured::now(rates))
}

fn measured_rate(
    config: &FleetComparisonConfig,
    result: &FleetComparisonResult,
    load: &LoadResult<FleetRow, TurnMeasurement>,
) -> Option<MeasuredRate> {
    let Some(FleetPacing::Open { rate }) = load.pacing else { return None };
    // The class with most rounds.
    let rows = &load.classes.first()?.rows;
    let budget = |(index, row): (usize, &FleetRow)| {
        let Contender::Lull { policy: Policy::KernelPolling, driver, polling, .. } =
            config.contenders.get(index)?
        else {
            return None;
        };
        let reference = config.contenders[config.reference_of(index)].policy();
        let ran = result.servers.get(index)?.as_ref()?.ran == Policy::KernelPolling.to_string();
        let is_comparison = reference == Some((Policy::Vanilla, *driver));
        let (cpu_ratio, p50_ratio) = (ratio(&row.cpu_ratio)?, ratio(&row.p50_ratio)?);
        (ran && is_comparison && polling.grace_time == GraceTime::Adaptive).then(|| MeasuredBudget {
            driver: driver.to_string(),
            latency_budget: polling.latency_budget,
            cpu_us: row.cpu_us.median,
            cpu_ratio,
            p50_us: row.p50_us.median,
            p50_ratio,
        })
    };
    let budgets: Vec<MeasuredBudget> = rows.iter().enumerate().filter_map(budget).collect();
    (!budgets.is_empty()).then_some(MeasuredRate { rate, share: load.share, budgets })
}

/// `None` where no round was valid. JSON has no other value for that.
fn ratio(interval: &Interval) -> Option<MeasuredRatio> {
    let &Interval { median, low, high, count, .. } = interval;
    let is_valid = count > 0 && [median, low, high].iter().all(|value| value.is_finite());
    is_valid.then(|| MeasuredRatio { median, interval: interval.reaches_target().then_some((low, high)) })
}

#[cfg(test)]
mod tests {
    use loadgen::interleaved_rounds::DistanceClass;
    use loadgen::medians::median_interval;

    use super::*;
    use crate::report::sample_results::{config, equal, interval, load, result, row, running};

    #[test]
    fn rates_of_the_open_loop_are_measured_with_their_budget() {
        let mut result = result(DistanceClass::Single, equal());
        result.loads[0].classes[0].rows[1].cpu_ratio = interval(0.6, 0.7, 0.8);
        result.loads.push(load(None, DistanceClass::Single, vec![row("closed"), row("closed")]));
        let measured = measured(&config(), &result).unwrap();
        let [rate] = &measured.rates[..] else { panic!("{measured:?}") };
        assert_eq!((rate.rate, rate.share, rate.budgets.len()), (50e3, Some(0.5), 1));
        let MeasuredBudget { driver, latency_budget, cpu_us, cpu_ratio, p50_us, .. } = &rate.budgets[0];
        assert_eq!((driver.as_str(), latency_budget.to_string().as_str()), ("epoll", "0"));
        assert_eq!((*cpu_us, *p50_us), (3.0, 10.0));
        assert_eq!(*cpu_ratio, MeasuredRatio { median: 0.7, interval: Some((0.6, 0.8)) });
    }

    #[test]
    fn without_kernel_polling_or_a_valid_round_nothing_is_measured() {
        let mut blocked = result(DistanceClass::Single, equal());
        blocked.servers[1] = running("blocking", &["no queue"]);
        assert!(measured(&config(), &blocked).is_none());
        let mut empty = result(DistanceClass::Single, equal());
        empty.loads[0].classes[0].rows[1].cpu_ratio = median_interval(&[]);
        assert!(measured(&config(), &empty).is_none());
        let mut vanilla = config();
        vanilla.contenders.remove(1);
        assert!(measured(&vanilla, &result(DistanceClass::Single, equal())).is_none());
        let mut without_vanilla = config();
        without_vanilla.contenders[0] = without_vanilla.contenders[1].clone();
        assert!(measured(&without_vanilla, &result(DistanceClass::Single, equal())).is_none());
    }

    #[test]
    fn a_grace_time_by_hand_is_no_latency_budget() {
        let mut fixed = config();
        if let Contender::Lull { polling, .. } = &mut fixed.contenders[1] {
            polling.grace_time = "50".parse().unwrap();
        }
        assert!(measured(&fixed, &result(DistanceClass::Single, equal())).is_none());
    }
}
