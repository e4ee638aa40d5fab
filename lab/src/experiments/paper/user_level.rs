//! Tables 1 and 3: the kernel's stack beside one in user space, under the same memcached.

use policies::Policy;
use runtime::{DriverKind, WaitStrategy};

use super::super::contestant::Contestant;
use super::super::core_assignment::CoreAssignment;
use super::super::fleet_comparison::{Contender, FleetComparisonConfig, Reference};
use super::config::{PaperConfig, latency_budgets};
use super::fleet_loads::{compare, requests, workload_text};
use super::measured::PartResult;
use super::part::Part;
use super::policies::shape;
use super::published::USER_LEVEL;
use crate::Error;
use crate::polling_config::PollingConfig;

/// Vanilla, kernel polling, and the stack in user space.
pub(super) const CONTENDERS: usize = 3;
/// The shares of vanilla's capacity at which the open loop is measured.
const SHARES: [f64; 2] = [0.5, 1.1];
/// Seconds for which the CPU time at idle is measured.
const IDLE: f64 = 0.5;
/// The latency budget of kernel polling, µs: latency first, as a stack that polls all the time has it.
const BUDGET: u16 = 0;

/// The number of loads beside the search for the capacity.
pub(super) fn loads(config: &PaperConfig) -> usize {
    1 + if config.rates.is_empty() { SHARES.len() } else { config.rates.len() }
}

/// Measures the part. The inner error is why the stack in user space can't run here.
pub(super) fn measure(
    config: &PaperConfig,
    cores: CoreAssignment,
    progress: &mut dyn FnMut(&str),
) -> Result<Result<PartResult, String>, Error> {
    let contestants = [Policy::Vanilla, Policy::KernelPolling]
        .map(|policy| Contestant { policy, driver: DriverKind::Epoll });
    let polling = latency_budgets(&[BUDGET])
        .into_iter()
        .map(|latency_budget| PollingConfig { latency_budget, ..PollingConfig::default() });
    let polling: Vec<_> = polling.collect();
    let mut contenders = Contender::lull(&contestants, &polling, WaitStrategy::Block);
    contenders.push(Contender::UserLevel);
    let published = [Some("Vanilla"), None, Some(USER_LEVEL)];
    let fleet = FleetComparisonConfig {
        reference: Reference::First,
        requests: requests(config.records),
        shares: SHARES.to_vec(),
        idle: IDLE,
        ..shape(config, Part::UserLevel, contenders, loads(config))
    };
    let workload = workload_text(&format!("{} connections", config.connections), config.records);
    let (mut part, _) = match compare(fleet, &published, cores, workload, progress) {
        Err(Error::UserLevelServer(reason)) => return Ok(Err(reason)),
        result => result?,
    };
    part.notes.extend(
        [
            "the user-level stack is smoltcp over AF_XDP, with a thread that polls all the time; it is neither F-Stack nor \
             Caladan. Protocol and store are Lull's memcached in all three",
            "on a veth AF_XDP runs in native mode, but copies: a request from the sender's packet into a page, from there into \
             the socket's frame, and from there into smoltcp's buffer; a reply into smoltcp's buffer, the frame and the \
             kernel's packet. The kernel's stack copies each once. A NIC with zero-copy drivers spares the stack the copies \
             between kernel and frame",
            "the driver's receiving, the XDP program and the sending are system calls of the polling thread, so they are its \
             system time; TCP in user space is part of App. Its CPU time is that of the whole core at any rate",
            "TCP checksums are not verified by either stack, as the sender leaves them to the offload; for what it sends smoltcp \
             computes them in software, and the kernel leaves them to the offload",
            "between its turns the user-level server is stopped (SIGSTOP), since it would take the core from the others",
        ]
        .map(str::to_owned),
    );
    Ok(Ok(part))
}
