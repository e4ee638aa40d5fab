//! The parts, each a series of experiments under a fleet.

use std::time::Duration;

use policies::Policy;
use runtime::DriverKind;
use serde::Serialize;

use super::Part;
use super::config::{PaperConfig, latency_budgets};
use super::programs::{BUILD, Programs, WebRoot};
use crate::Error;
use crate::engine::{CoreAssignment, LoadKind, LoadResult, Row};
use crate::experiment::{Contender, Experiment, Load};
use crate::fleet::FleetRequests;
use crate::polling_config::PollingConfig;

/// The part of the time that the search for the capacity has, where there is one.
const CAPACITY_SHARE: f64 = 0.35;

pub(super) struct PartPlan {
    /// Where there are several: what the closed loop is called, and the number that they differ in.
    experiments: Vec<(Option<(String, f64)>, Experiment)>,
    published: Vec<Option<&'static str>>,
    workload: String,
    notes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PartResult {
    pub reference: String,
    /// The paper's row that each contender corresponds to, by index.
    pub published: Vec<Option<&'static str>>,
    /// The load generator, the connections and the records, in a sentence.
    pub workload: String,
    /// All loads, those of the class with most rounds first.
    pub loads: Vec<LoadResult>,
    /// What to doubt, a sentence each.
    pub notes: Vec<String>,
}

impl PartResult {
    /// Whether anything beside a capacity was measured.
    pub(super) fn has_figures(&self) -> bool {
        let loads = self.loads.iter().filter(|load| load.kind != LoadKind::Capacity);
        loads.flat_map(|load| &load.rows).any(Row::has_valid_turn)
    }
}

pub(super) fn plan(
    part: Part,
    config: &PaperConfig,
    cores: CoreAssignment,
    programs: &Programs,
    root: &WebRoot,
) -> Result<PartPlan, String> {
    let missing = |name: &str| format!("{name} is not installed (Debian: apt-get install {name})");
    // Lull's memcached on epoll, as the paper's memcached.
    let lull = |policy| Contender::lull(policy, DriverKind::Epoll, PollingConfig::default());
    let shares_a_core = cores.packing == cores.client;
    let connections = config.connections;
    let etc = format!(
        "a fleet of {connections} connections on one core, ETC keys and values, {} records, one set in 31 requests, one request \
         in flight on each connection",
        config.records
    );
    Ok(match part {
        Part::Policies => {
            let mut contenders = [Policy::Vanilla, Policy::Packing, Policy::Suppression].map(lull).to_vec();
            contenders.extend(Contender::with_budgets(DriverKind::Epoll, &latency_budgets(&config.budgets)));
            let mut published = vec![Some("Vanilla"), Some("IRQ Packing"), Some("IRQ Suppression")];
            published.resize(contenders.len(), Some("Kernel Polling"));
            // The paper's packing has the same 8 cores as the other policies.
            let whose = if shares_a_core {
                ", the fleet's, as there is no third, at the fleet's expense"
            } else {
                ""
            };
            let note = format!(
                "packing's network work runs on a second core{whose}: it has more CPU time than the other policies"
            );
            let experiment = shape(config, contenders, &config.shares, 0.0);
            PartPlan { experiments: vec![(None, experiment)], published, workload: etc, notes: vec![note] }
        }
        Part::Web => {
            let nginx = programs.nginx.as_ref().ok_or_else(|| missing("nginx"))?;
            let (contenders, published) = programs.web_servers(config, nginx, root);
            let experiment = |&size: &usize| {
                let mut experiment = shape(config, contenders.clone(), &[], config.settle);
                let request = format!("GET /{size} HTTP/1.1\r\nHost: lab\r\n\r\n");
                experiment.requests = FleetRequests::Text { request, reply: None };
                experiment.loads = vec![Load::Closed];
                (Some((format!("{size} B"), size as f64)), experiment)
            };
            let note = if published.contains(&None) {
                "Lull's static_files is asked for the policy that its row names by RUNTIME_POLICY; whether it runs is not verified"
                    .to_owned()
            } else {
                format!("Lull's static_files: not built ({BUILD})")
            };
            PartPlan {
                experiments: config.file_sizes.iter().map(experiment).collect(),
                published,
                workload: format!(
                    "a fleet of {connections} connections on one core; files from the page cache"
                ),
                notes: vec![note],
            }
        }
        // Vanilla and kernel polling, the two that it has beside F-Stack.
        Part::Connections => {
            let contenders = [Policy::Vanilla, Policy::KernelPolling].map(lull).to_vec();
            let experiment = |&connections: &usize| {
                let mut experiment = shape(config, contenders.clone(), &[], 0.0);
                experiment.connections = connections;
                experiment.requests = requests(config.connection_records);
                experiment.loads = vec![Load::Closed];
                let plural = if connections == 1 { "" } else { "s" };
                (Some((format!("{connections} connection{plural}"), connections as f64)), experiment)
            };
            let workload =
                "a fleet of 1 to 10,000 connections on one core, ETC keys and values, one set in 31 requests";
            PartPlan {
                experiments: config.connection_counts.iter().map(experiment).collect(),
                published: vec![None; contenders.len()],
                workload: workload.to_owned(),
                notes: Vec::new(),
            }
        }
    })
}

fn requests(records: u64) -> FleetRequests {
    FleetRequests::Memcached(Box::new(PaperConfig::etc(records)))
}

/// The rounds, rates and times of a part. Ratios refer to the first contender, as the paper's do.
fn shape(config: &PaperConfig, contenders: Vec<Contender>, shares: &[f64], settle: f64) -> Experiment {
    let rates: Vec<Load> = match &config.rates[..] {
        [] => shares.iter().copied().map(Load::Share).collect(),
        rates => rates.iter().copied().map(Load::Rate).collect(),
    };
    let loads: Vec<Load> = rates.into_iter().chain([Load::Closed]).collect();
    let of_part = if shares.is_empty() { 1 } else { loads.len() };
    let seconds = config.load_seconds + settle * 8.0;
    Experiment {
        references: vec![0],
        loads,
        connections: config.connections,
        requests: requests(config.records),
        rounds: config.rounds,
        capacity_rounds: config.capacity_rounds,
        settle,
        warm_up: config.warm_up,
        duration: config.turn,
        trial_warm_up: config.warm_up,
        trial_duration: config.turn.min(0.15),
        time_limit: Duration::from_secs_f64((contenders.len() * of_part) as f64 * seconds),
        capacity_share: CAPACITY_SHARE,
        ..Experiment::new(contenders, false)
    }
}

impl PartPlan {
    pub(super) fn steps(&self) -> usize {
        self.experiments.iter().map(|(_, experiment)| experiment.steps()).sum()
    }

    /// Runs the experiments. If a later one fails, a note says so: what was measured before is not
    /// lost.
    pub(super) fn measure(
        self,
        cores: CoreAssignment,
        progress: &mut dyn FnMut(&str),
    ) -> Result<PartResult, Error> {
        let Self { experiments, published, workload, mut notes } = self;
        let mut all = Vec::new();
        let mut reference = String::new();
        for (named, experiment) in experiments {
            let name = named.as_ref().map_or_else(String::new, |(name, _)| format!("{name}: "));
            let outcome = match experiment.run(cores, &mut |step| progress(&format!("{name}{step}"))) {
                Ok(outcome) => outcome,
                Err(error) if all.is_empty() => return Err(error),
                Err(error) => {
                    notes.push(format!("incomplete: {name}{error}"));
                    break;
                }
            };
            reference = experiment.contenders[0].name();
            notes.extend(outcome.results.notes.iter().map(|note| format!("{name}{note}")));
            for (contender, running) in experiment.contenders.iter().zip(&outcome.servers) {
                let Some(running) = running.as_ref().filter(|it| !it.steps_down.is_empty()) else { continue };
                let (contender, reasons) = (contender.name(), running.steps_down.join("; "));
                notes.push(format!("{name}{contender}: {} ran: {reasons}", running.ran));
            }
            for mut load in outcome.results.loads {
                if let Some((name, at)) = &named {
                    (load.name, load.at) = (name.clone(), *at);
                }
                all.push(load);
            }
        }
        Ok(PartResult { reference, published, workload, loads: all, notes })
    }
}
