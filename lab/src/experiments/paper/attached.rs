//! Unmodified memcached, memcached under `policies attach`, and Lull's: how much of a gain comes from the policy.

use std::path::Path;

use policies::Policy;
use runtime::{DriverKind, WaitStrategy};

use super::super::contestant::Contestant;
use super::super::core_assignment::CoreAssignment;
use super::super::fleet_comparison::{Contender, FleetComparisonConfig, Reference};
use super::config::{PaperConfig, latency_budgets};
use super::fleet_loads::{Published, compare, memcached, requests, workload_text};
use super::measured::PartResult;
use super::part::Part;
use super::policies::shape;
use crate::Error;
use crate::polling_config::PollingConfig;

/// The number of contenders.
pub(super) fn contenders(config: &PaperConfig) -> usize {
    1 + config.attached_budgets.len() + 2
}

/// The number of loads beside the search for the capacity.
pub(super) fn loads(config: &PaperConfig) -> usize {
    1 + if config.rates.is_empty() { config.attached_shares.len() } else { config.rates.len() }
}

pub(super) fn measure(
    config: &PaperConfig,
    cores: CoreAssignment,
    program: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<PartResult, Error> {
    let server = memcached(program, config.records);
    let attached = Contender::attached(&server, &latency_budgets(&config.attached_budgets)).into_iter();
    let mut contenders: Vec<Published> = attached
        .map(|contender| {
            let published = if contender.is_attached() { "Kernel Polling" } else { "Vanilla" };
            (contender, Some(published))
        })
        .collect();
    let lull = [(Policy::Vanilla, "Vanilla"), (Policy::KernelPolling, "Kernel Polling")];
    for (policy, published) in lull {
        let contestant = Contestant { policy, driver: DriverKind::Epoll };
        let lull = Contender::lull(&[contestant], &[PollingConfig::default()], WaitStrategy::Block);
        contenders.extend(lull.into_iter().map(|contender| (contender, Some(published))));
    }
    let (contenders, published): (Vec<_>, Vec<_>) = contenders.into_iter().unzip();
    let fleet = FleetComparisonConfig {
        reference: Reference::First,
        requests: requests(config.records),
        shares: config.attached_shares.clone(),
        settle: config.settle,
        // From outside the law is asked every 50 ms, so a trial needs longer to settle.
        trial_warm_up: config.warm_up.max(config.settle / 2.0),
        ..shape(config, Part::Attached, contenders, loads(config))
    };
    let workload = workload_text(&format!("{} connections", config.connections), config.records);
    let (mut part, _) = compare(fleet, &published, cores, workload, progress)?;
    if cores.packing == cores.client {
        part.notes.push(
            "without a third core, what attaches to memcached shares the fleet's core, whose pauses are left out"
                .to_owned(),
        );
    }
    Ok(part)
}
