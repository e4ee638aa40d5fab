//! Table 5 and Figure 5: the four policies on Lull's memcached.

use policies::Policy;
use runtime::{DriverKind, WaitStrategy};

use super::super::contestant::Contestant;
use super::super::core_assignment::CoreAssignment;
use super::super::fleet_comparison::{Contender, FleetComparisonConfig, Reference};
use super::config::{CAPACITY_SHARE, PaperConfig, latency_budgets};
use super::fleet_loads::{compare, requests, workload_text};
use super::measured::PartResult;
use super::part::Part;
use crate::Error;
use crate::polling_config::PollingConfig;

/// The number of contenders.
pub(super) fn contenders(config: &PaperConfig) -> usize {
    Policy::PAPER.len() - 1 + config.budgets.len()
}

/// The number of loads beside the search for the capacity.
pub(super) fn loads(config: &PaperConfig) -> usize {
    1 + if config.rates.is_empty() { config.shares.len() } else { config.rates.len() }
}

pub(super) fn measure(
    config: &PaperConfig,
    cores: CoreAssignment,
    progress: &mut dyn FnMut(&str),
) -> Result<PartResult, Error> {
    let polling: Vec<PollingConfig> = latency_budgets(&config.budgets)
        .into_iter()
        .map(|latency_budget| PollingConfig { latency_budget, ..PollingConfig::default() })
        .collect();
    // On epoll, as the paper's memcached.
    let contenders = Contender::lull(&Contestant::policies(DriverKind::Epoll), &polling, WaitStrategy::Block);
    let published: Vec<_> = contenders.iter().map(|contender| contender.policy().map(published)).collect();
    let fleet = FleetComparisonConfig {
        reference: Reference::First,
        requests: requests(config.records),
        ..shape(config, Part::Policies, contenders, loads(config))
    };
    let workload = workload_text(&format!("{} connections", config.connections), config.records);
    let (mut part, _) = compare(fleet, &published, cores, workload, progress)?;
    // The paper's packing has the same 8 cores as the other policies.
    part.notes.push(match cores.packing == cores.client {
        true => "packing's network work runs on a second core, the fleet's, as there is no third: it has more CPU time \
                 than the other policies, at the fleet's expense"
            .to_owned(),
        false => "packing's network work runs on a second core: it has more CPU time than the other policies".to_owned(),
    });
    Ok(part)
}

/// The paper's name of a policy.
fn published((policy, _): (Policy, DriverKind)) -> &'static str {
    match policy {
        Policy::Packing => "IRQ Packing",
        Policy::Suppression => "IRQ Suppression",
        Policy::KernelPolling => "Kernel Polling",
        _ => "Vanilla",
    }
}

/// The rounds, rates and times of a comparison with a search for the capacity.
pub(super) fn shape(
    config: &PaperConfig,
    part: Part,
    contenders: Vec<Contender>,
    loads: usize,
) -> FleetComparisonConfig {
    FleetComparisonConfig {
        connections: config.connections,
        shares: config.shares.clone(),
        rates: config.rates.clone(),
        rounds: config.rounds,
        capacity_rounds: config.capacity_rounds,
        closed_loop: true,
        settle: 0.0,
        warm_up: config.warm_up,
        duration: config.turn,
        trial_warm_up: config.warm_up,
        trial_duration: config.trial_seconds(),
        time_limit: config.limit(part, contenders.len(), loads),
        capacity_share: CAPACITY_SHARE,
        ..FleetComparisonConfig::new(contenders, false)
    }
}
