//! The parts, each an experiment under a fleet or a series of them.

use std::collections::BTreeMap;
use std::path::Path;

use policies::Policy;
use runtime::DriverKind;

use super::config::{CAPACITY_SHARE, PaperConfig, latency_budgets};
use super::part::Part;
use super::part_result::PartResult;
use super::programs::{Program, Programs};
use super::web_servers::{WebRoot, nginx_servers, own_servers};
use crate::Error;
use crate::engine::{CoreAssignment, Figure, Measured};
use crate::experiment::{Contender, Experiment, Load, Outcome, ServerCommand, ServerMemory, workload_memory};
use crate::fleet::FleetRequests;
use crate::polling_config::PollingConfig;

/// The least number of connections by which memory is divided: with fewer, other memory decides.
const ENOUGH: usize = 100;

/// A part as an experiment.
pub(super) struct FleetPart {
    pub(super) experiment: Experiment,
    /// The paper's row that each contender corresponds to.
    published: Vec<Option<&'static str>>,
    /// The load, for the report.
    workload: String,
    notes: Vec<String>,
}

/// Lull's memcached on epoll, as the paper's memcached.
fn lull(policy: Policy) -> Contender {
    Contender::lull(policy, DriverKind::Epoll, PollingConfig::default())
}

/// Table 5 and Figure 5: the four policies on Lull's memcached.
pub(super) fn policies(config: &PaperConfig, cores: CoreAssignment) -> FleetPart {
    let budgets = latency_budgets(&config.budgets);
    let polling = Contender::with_budgets(DriverKind::Epoll, &budgets);
    let contenders: Vec<Contender> = [Policy::Vanilla, Policy::Packing, Policy::Suppression]
        .map(lull)
        .into_iter()
        .chain(polling)
        .collect();
    let mut published = vec![Some("Vanilla"), Some("IRQ Packing"), Some("IRQ Suppression")];
    published.resize(contenders.len(), Some("Kernel Polling"));
    // The paper's packing has the same 8 cores as the other policies.
    let whose = if cores.packing == cores.client {
        ", the fleet's, as there is no third, at the fleet's expense"
    } else {
        ""
    };
    let notes = vec![format!(
        "packing's network work runs on a second core{whose}: it has more CPU time than the other policies"
    )];
    let experiment = shape(config, Part::Policies, contenders, &config.shares);
    FleetPart { workload: etc_workload(config.connections, config.records), experiment, published, notes }
}

/// Unmodified memcached, memcached under `policies attach`, and Lull's: how much of a gain comes from the policy.
pub(super) fn attached(config: &PaperConfig, cores: CoreAssignment, program: &Path) -> FleetPart {
    const LEAST_MEMORY: u64 = 256;
    let mebibytes = (workload_memory(&PaperConfig::etc(config.records)) >> 20).max(LEAST_MEMORY);
    let server = ServerCommand::memcached_with_memory(program.to_owned(), mebibytes);
    let mut contenders = Contender::attached(&server, &latency_budgets(&config.attached_budgets));
    let mut published = vec![Some("Vanilla")];
    published.resize(contenders.len(), Some("Kernel Polling"));
    contenders.extend([Policy::Vanilla, Policy::KernelPolling].map(lull));
    published.extend([Some("Vanilla"), Some("Kernel Polling")]);
    let mut experiment = shape(config, Part::Attached, contenders, &config.attached_shares);
    experiment.settle = config.settle;
    // From outside the law is asked every 50 ms, so a trial needs longer to settle.
    experiment.trial_warm_up = config.warm_up.max(config.settle / 2.0);
    let shares_a_core = cores.packing == cores.client;
    let notes = shares_a_core.then(|| {
        "without a third core, what attaches to memcached shares the fleet's core, whose pauses are left out".to_owned()
    });
    let workload = etc_workload(config.connections, config.records);
    FleetPart { experiment, published, workload, notes: notes.into_iter().collect() }
}

/// Figure 9, with this number of connections: vanilla and kernel polling, the two that it has beside F-Stack.
pub(super) fn connections(config: &PaperConfig, connections: usize) -> FleetPart {
    let contenders = vec![lull(Policy::Vanilla), lull(Policy::KernelPolling)];
    let mut experiment = shape(config, Part::Connections, contenders, &[]);
    experiment.connections = connections;
    experiment.requests = requests(config.connection_records);
    experiment.loads = vec![Load::Closed(0.0)];
    let workload =
        "a fleet of 1 to 10,000 connections on one core, ETC keys and values, one set in 31 requests"
            .to_owned();
    let published = vec![None; experiment.contenders.len()];
    FleetPart { published, experiment, workload, notes: Vec::new() }
}

/// Table 2 with files of this size: nginx as it runs and attached to, and this project's web server.
fn web(config: &PaperConfig, servers: &[(Contender, Option<&'static str>)], size: usize) -> FleetPart {
    let (contenders, published): (Vec<_>, Vec<_>) = servers.iter().cloned().unzip();
    let mut experiment = shape(config, Part::Web, contenders, &[]);
    experiment.requests =
        FleetRequests::Text { request: format!("GET /{size} HTTP/1.1\r\nHost: lab\r\n\r\n"), reply: None };
    experiment.settle = config.settle;
    experiment.loads = vec![Load::Closed(0.0)];
    let workload =
        format!("a fleet of {} connections on one core; files from the page cache", config.connections);
    FleetPart { experiment, published, workload, notes: Vec::new() }
}

fn etc_workload(connections: usize, records: u64) -> String {
    format!(
        "a fleet of {connections} connections on one core, ETC keys and values, {records} records, one set in 31 requests, one \
         request in flight on each connection"
    )
}

fn requests(records: u64) -> FleetRequests {
    FleetRequests::Memcached(Box::new(PaperConfig::etc(records)))
}

/// The rounds, rates and times of a part. Ratios refer to the first contender, as the paper's do.
fn shape(config: &PaperConfig, part: Part, contenders: Vec<Contender>, shares: &[f64]) -> Experiment {
    let open: Vec<Load> = match &config.rates[..] {
        [] => shares.iter().copied().map(Load::Share).collect(),
        rates => rates.iter().copied().map(Load::Rate).collect(),
    };
    let loads: Vec<Load> = open.into_iter().chain([Load::Closed(0.0)]).collect();
    let of_part = if matches!(part, Part::Connections | Part::Web) { 1 } else { loads.len() };
    Experiment {
        references: vec![0],
        loads,
        connections: config.connections,
        requests: requests(config.records),
        rounds: config.rounds,
        capacity_rounds: config.capacity_rounds,
        warm_up: config.warm_up,
        duration: config.turn,
        trial_warm_up: config.warm_up,
        trial_duration: config.trial_seconds(),
        time_limit: config.limit(part, contenders.len(), of_part),
        capacity_share: CAPACITY_SHARE,
        ..Experiment::new(contenders, false)
    }
}

impl FleetPart {
    /// Runs the experiment.
    pub(super) fn measure(
        self,
        cores: CoreAssignment,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(PartResult, Outcome), Error> {
        let Self { experiment, published, workload, mut notes } = self;
        let outcome = experiment.run(cores, progress)?;
        notes.extend(outcome.results.notes.iter().cloned());
        for (contender, running) in experiment.contenders.iter().zip(&outcome.servers) {
            if let Some(running) = running.as_ref().filter(|running| !running.steps_down.is_empty()) {
                notes.push(format!(
                    "{}: {} ran: {}",
                    contender.name(),
                    running.ran,
                    running.steps_down.join("; ")
                ));
            }
        }
        let part = PartResult {
            reference: experiment.contenders[0].name(),
            published: published.iter().map(|it| it.map(str::to_owned)).collect(),
            workload,
            loads: outcome.results.loads.clone(),
            notes,
            failure: None,
        };
        Ok((part, outcome))
    }
}

/// Measures experiments that differ in one number, which names their closed loops. `after` adds to what each has measured.
fn measure_series(
    series: impl Iterator<Item = (String, f64, FleetPart)>,
    cores: CoreAssignment,
    progress: &mut dyn FnMut(&str),
    mut after: impl FnMut(f64, &mut PartResult, &Outcome),
) -> Result<PartResult, Error> {
    let mut all: Option<PartResult> = None;
    for (name, at, part) in series {
        let mut step = |text: &str| progress(&format!("{name}: {text}"));
        let (mut part, outcome) = match (part.measure(cores, &mut step), &mut all) {
            (Ok(measured), _) => measured,
            // What was measured before is not lost.
            (Err(error), Some(all)) => {
                all.failure = Some(format!("{name}: {error}"));
                break;
            }
            (Err(error), None) => return Err(error),
        };
        for load in &mut part.loads {
            (load.name, load.at) = (name.clone(), at);
        }
        after(at, &mut part, &outcome);
        part.notes.iter_mut().for_each(|note| *note = format!("{name}: {note}"));
        match &mut all {
            None => all = Some(part),
            Some(all) => {
                all.loads.extend(part.loads);
                all.notes.extend(part.notes);
            }
        }
    }
    all.ok_or_else(|| Error::NoCapacity("nothing was asked for".to_owned()))
}

/// Figure 9: Lull's memcached with more and more connections.
pub(super) fn measure_connections(
    config: &PaperConfig,
    cores: CoreAssignment,
    progress: &mut dyn FnMut(&str),
) -> Result<PartResult, Error> {
    let series = config.connection_counts.iter().map(|&count| {
        let plural = if count == 1 { "" } else { "s" };
        (format!("{count} connection{plural}"), count as f64, connections(config, count))
    });
    // The memory of each contender with the fewest connections.
    let mut fewest: Option<(usize, Vec<ServerMemory>)> = None;
    let mut all = measure_series(series, cores, progress, |count, part, outcome| {
        let count = count as usize;
        for (index, row) in part.loads.iter_mut().flat_map(|load| load.rows.iter_mut().enumerate()) {
            let before = fewest.as_ref().and_then(|(count, memory)| Some((*count, *memory.get(index)?)));
            add_memory(&mut row.figures, count, before, outcome.memory.get(index));
        }
        fewest.get_or_insert_with(|| (count, outcome.memory.clone()));
    })?;
    all.notes.push(
        "bytes per connection: the resident memory of a server with its connections above that of one with the fewest; \
         the kernel's: growth of its slabs while they were opened"
            .to_owned(),
    );
    Ok(all)
}

/// Table 2: nginx as it runs and attached to, and this project's web server where it is built and starts.
pub(super) fn measure_web(
    config: &PaperConfig,
    cores: CoreAssignment,
    programs: &Programs,
    nginx: &Program,
    progress: &mut dyn FnMut(&str),
) -> Result<PartResult, Error> {
    let root = WebRoot::create(&config.file_sizes)?;
    let (nginx, own) = (nginx_servers(config, nginx, &root)?, own_servers(programs, &root));
    let mut measure = |servers: &[_]| {
        let part = |&size: &usize| (format!("{size} B"), size as f64, web(config, servers, size));
        measure_series(config.file_sizes.iter().map(part), cores, progress, |_, _, _| {})
    };
    match measure(&[nginx.clone(), own.clone()].concat()) {
        Err(error) if !own.is_empty() => {
            let mut part = measure(&nginx)?;
            part.notes.push(format!("Lull's own web server: not measured: {error}"));
            Ok(part)
        }
        measured => {
            let mut part = measured?;
            part.notes.push(if own.is_empty() {
                "Lull's own web server: not installed (no program `web` beside lab)".to_owned()
            } else {
                "Lull's web is asked for the policy that its row names by RUNTIME_POLICY; whether it runs is not verified"
                    .to_owned()
            });
            Ok(part)
        }
    }
}

/// Adds what one more connection takes.
fn add_memory(
    figures: &mut BTreeMap<Figure, Measured>,
    connections: usize,
    before: Option<(usize, ServerMemory)>,
    memory: Option<&ServerMemory>,
) {
    let Some(memory) = memory.filter(|_| connections >= ENOUGH) else { return };
    if let Some((fewest, before)) = before {
        let more = (connections - fewest.min(connections)).max(1) as f64;
        let bytes = memory.resident.saturating_sub(before.resident) as f64 / more;
        figures.insert(Figure::ConnectionBytes, Measured::once(bytes));
    }
    if let Some(kernel) = memory.kernel {
        figures.insert(Figure::KernelConnectionBytes, Measured::once(kernel as f64 / connections as f64));
    }
}
