//! Figure 9: Lull's memcached with more and more connections.

use std::collections::BTreeMap;

use loadgen::medians::median_interval;
use policies::Policy;
use runtime::{DriverKind, WaitStrategy};

use super::super::contestant::Contestant;
use super::super::core_assignment::CoreAssignment;
use super::super::fleet_comparison::{Contender, FleetComparisonConfig, Reference, ServerMemory};
use super::config::PaperConfig;
use super::fleet_loads::{compare, requests, workload_text};
use super::measured::{Figure, MeasuredFigure, PartResult};
use super::part::Part;
use crate::Error;
use crate::polling_config::PollingConfig;

/// Vanilla and kernel polling, the two that the figure has beside F-Stack.
pub(super) const CONTENDERS: usize = 2;
/// The least number of connections by which memory is divided: with fewer, other memory decides.
const ENOUGH: usize = 100;

pub(super) fn measure(
    config: &PaperConfig,
    cores: CoreAssignment,
    progress: &mut dyn FnMut(&str),
) -> Result<PartResult, Error> {
    let contestants = [Policy::Vanilla, Policy::KernelPolling]
        .map(|policy| Contestant { policy, driver: DriverKind::Epoll });
    let contenders = Contender::lull(&contestants, &[PollingConfig::default()], WaitStrategy::Block);
    let published: Vec<_> = contenders.iter().map(|_| None).collect();
    let mut all: Option<PartResult> = None;
    // The memory of each contender with the fewest connections.
    let mut fewest: Option<(usize, Vec<ServerMemory>)> = None;
    for &connections in &config.connection_counts {
        let fleet = FleetComparisonConfig {
            reference: Reference::First,
            connections,
            requests: requests(config.connection_records),
            shares: Vec::new(),
            rounds: config.rounds,
            closed_loop: true,
            warm_up: config.warm_up,
            duration: config.turn,
            time_limit: config.limit(Part::Connections, CONTENDERS, 1),
            ..FleetComparisonConfig::new(contenders.clone(), false)
        };
        let workload = workload_text("1 to 10,000 connections", config.connection_records);
        let name =
            if connections == 1 { "1 connection".to_owned() } else { format!("{connections} connections") };
        let mut step = |text: &str| progress(&format!("{name}: {text}"));
        let (mut part, result) = match (compare(fleet, &published, cores, workload, &mut step), &mut all) {
            (Ok(measured), _) => measured,
            // What was measured before is not lost.
            (Err(error), Some(all)) => {
                all.failure = Some(format!("{name}: {error}"));
                break;
            }
            (Err(error), None) => return Err(error),
        };
        for load in &mut part.loads {
            load.name.clone_from(&name);
            for (index, row) in load.rows.iter_mut().enumerate() {
                let before = fewest.as_ref().and_then(|(count, memory)| Some((*count, *memory.get(index)?)));
                add_memory(&mut row.figures, connections, before, result.memory.get(index));
            }
        }
        part.notes.iter_mut().for_each(|note| *note = format!("{name}: {note}"));
        fewest.get_or_insert((connections, result.memory));
        match &mut all {
            None => all = Some(part),
            Some(all) => {
                all.loads.extend(part.loads);
                all.notes.extend(part.notes);
            }
        }
    }
    let mut all =
        all.ok_or_else(|| Error::NoCapacity("no number of connections was asked for".to_owned()))?;
    all.sort_classes();
    all.notes.push(
        "bytes per connection: the resident memory of a server with its connections above that of one with the fewest; \
         the kernel's: growth of its slabs while they were opened"
            .to_owned(),
    );
    Ok(all)
}

/// Adds what one more connection takes.
fn add_memory(
    figures: &mut BTreeMap<Figure, MeasuredFigure>,
    connections: usize,
    before: Option<(usize, ServerMemory)>,
    memory: Option<&ServerMemory>,
) {
    let Some(memory) = memory.filter(|_| connections >= ENOUGH) else { return };
    let mut add = |figure, bytes: f64| {
        figures.insert(figure, MeasuredFigure { value: median_interval(&[bytes]), ratio: None });
    };
    if let Some((fewest, before)) = before {
        let more = (connections - fewest.min(connections)).max(1) as f64;
        add(Figure::ConnectionBytes, memory.resident.saturating_sub(before.resident) as f64 / more);
    }
    if let Some(kernel) = memory.kernel {
        add(Figure::KernelConnectionBytes, kernel as f64 / connections as f64);
    }
}
