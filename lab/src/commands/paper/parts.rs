//! The parts of the paper, each a series of experiments.

use std::io;
use std::time::Duration;

use loadgen::{Distribution, Mix, Workload};
use policies::Policy;
use policies::controller::PollInterval;
use runtime::DriverKind;
use serde::{Deserialize, Serialize};

use super::programs::{BUILD, Programs, WebRoot};
use crate::Error;
use crate::cores::CoreAssignment;
use crate::experiment::Bed;
use crate::experiment::{Contender, Experiment, Load};
use crate::fleet::FleetRequests;
use crate::network::PollingConfig;
use crate::rounds::{LoadResult, Row};
use crate::testbed::Testbed;

/// Of 31 requests one stores: ETC has 30 gets for a set (Atikoglu et al., the paper's reference 3).
/// The paper names no ratio for its experiments.
const UPDATE_RATIO: f64 = 1.0 / 31.0;
/// The poll intervals of kernel polling, µs.
const INTERVALS: [u64; 2] = [30, 100];
/// Seconds of load before a turn of what is attached to, as in `lab attach`.
const ATTACHED_SETTLE: f64 = 0.8;

/// How much is measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PaperConfig {
    pub quick: bool,
    /// Records of the ETC workload. The paper has 1,000,000.
    pub records: u64,
    /// Records for Figure 9, which starts a server for each number of connections.
    pub connection_records: u64,
    /// Connections of the fleet: the paper's 1120 for 8 cores are 140 for one.
    pub connections: usize,
    /// Requests per second of Figure 5.
    pub rates: Vec<u32>,
    pub connection_counts: Vec<usize>,
    /// Bytes of the files of Table 2: what fits into a packet with its headers.
    pub file_sizes: Vec<usize>,
    /// Seconds of a turn, and of the load before it, in the place of an experiment's own.
    turn: Option<f64>,
    rounds: Option<usize>,
}

impl PaperConfig {
    /// About twelve minutes, or two if `quick`.
    pub fn new(quick: bool) -> Self {
        Self {
            quick,
            records: if quick { 20_000 } else { 1_000_000 },
            connection_records: if quick { 10_000 } else { 100_000 },
            connections: 140,
            rates: if quick {
                vec![40_000, 100_000]
            } else {
                vec![20_000, 40_000, 60_000, 80_000, 100_000, 150_000]
            },
            connection_counts: if quick { vec![1, 100, 10_000] } else { vec![1, 10, 100, 1_000, 10_000] },
            file_sizes: if quick { vec![64] } else { vec![64, 1 << 10] },
            turn: None,
            rounds: None,
        }
    }

    /// The same with shorter turns and fewer rounds, records and connections, in closed loops: to
    /// see that it works, not to measure.
    pub fn shortened(mut self, turn: Option<Duration>, rounds: Option<usize>) -> Self {
        if turn.is_some() {
            self.records = self.records.min(1_000);
            self.connection_records = self.connection_records.min(1_000);
            self.connections = self.connections.min(8);
            self.connection_counts.retain(|count| *count <= 100);
            self.rates.clear();
        }
        Self { turn: turn.map(|turn| turn.as_secs_f64()), rounds, ..self }
    }

    /// Ratios refer to the first contender, as the paper's do. Without rates it is a closed loop alone.
    fn experiment(&self, contenders: Vec<Contender>, rates: &[u32], records: u64) -> Experiment {
        let rates = rates.iter().map(|&rate| Load::Rate(rate.into()));
        let usual = Experiment::new(contenders, self.quick);
        Experiment {
            references: vec![0],
            loads: rates.chain([Load::Closed]).collect(),
            connections: self.connections,
            requests: FleetRequests::Memcached(Box::new(Workload {
                key: Distribution::EtcKey,
                value: Distribution::EtcValue,
                records,
                mix: Mix::updates(UPDATE_RATIO),
                ..Workload::default()
            })),
            rounds: self.rounds.unwrap_or(if self.quick { usual.rounds } else { 20 }),
            settle: self.turn.unwrap_or(usual.settle),
            warm_up: self.turn.unwrap_or(usual.warm_up),
            duration: self.turn.unwrap_or(usual.duration),
            ..usual
        }
    }
}

fn poll_intervals() -> Vec<PollInterval> {
    // They are in range, so none is left out.
    INTERVALS.iter().filter_map(|&micros| PollInterval::new(Duration::from_micros(micros)).ok()).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// The four policies on Lull's memcached: Table 5 and Figure 5.
    Policies,
    /// nginx as it runs and attached to, and Lull's static files: Table 2.
    Web,
    /// Lull's memcached with 1 to 10,000 connections: Figure 9.
    Connections,
}

impl Part {
    /// What takes part in the place of the paper's systems.
    pub(super) fn instead(self) -> &'static str {
        match self {
            Self::Policies => "Lull's memcached on epoll in the place of memcached 1.6.9",
            Self::Web => {
                "nginx of this machine, with kernel polling attached from outside, in the place of F-Stack, which is not \
                 measured: it needs a NIC with DPDK"
            }
            Self::Connections => "Lull's memcached on the kernel's stack; no user-level stack takes part",
        }
    }
}

pub type Parts = Vec<(Part, Result<PartResult, String>)>;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PartResult {
    /// The load generator, the connections and the records, in a sentence.
    pub workload: String,
    /// All loads, those of the class with most rounds first.
    pub loads: Vec<LoadResult>,
    pub notes: Vec<String>,
}

/// What is measured. Dropping it removes the files of web servers.
pub struct PaperPlan {
    pub programs: Programs,
    bed: Bed,
    parts: Vec<(Part, Result<PartPlan, String>)>,
    _web_root: WebRoot,
}

impl PaperPlan {
    /// On this machine, of which a part may lack a program, or all the permission.
    pub fn new(config: &PaperConfig, cores: CoreAssignment) -> io::Result<Self> {
        let (programs, web_root) = (Programs::find(), WebRoot::create(&config.file_sizes)?);
        let prevented = prevented();
        let plan = |part| match &prevented {
            Some(reason) => (part, Err(reason.clone())),
            None => (part, PartPlan::new(part, config, &cores, &programs, &web_root)),
        };
        let parts = [Part::Policies, Part::Web, Part::Connections].map(plan).into();
        Ok(Self { programs, bed: Bed::of_testbeds(cores), parts, _web_root: web_root })
    }

    /// About how many turns it takes: fewer where time runs out, and more where turns are repeated.
    pub fn steps(&self) -> usize {
        let plans = self.parts.iter().flat_map(|(_, plan)| plan);
        plans.flat_map(|plan| &plan.experiments).map(|(_, experiment)| experiment.steps()).sum()
    }

    /// Measures all parts. Calls `progress` before each turn. A part that fails is missing, and the
    /// others are measured.
    pub fn measure(self, progress: &mut dyn FnMut(&str)) -> Parts {
        let bed = &self.bed;
        let mut measure = |part: Part, plan: PartPlan| {
            let result = plan.measure(bed, &mut |step| progress(&format!("{part:?}: {step}")));
            let result = result.map_err(|error| format!("failed: {error}"))?;
            if result.loads.iter().flat_map(|load| &load.rows).any(Row::has_valid_turn) {
                Ok(result)
            } else {
                Err(format!("no turn was valid: {}", result.notes.join("; ")))
            }
        };
        let parts = self.parts.into_iter();
        parts.map(|(part, plan)| (part, plan.and_then(|plan| measure(part, plan)))).collect()
    }
}

fn prevented() -> Option<String> {
    let reason = Testbed::new(1).err()?;
    let needs =
        if reason.kind() == io::ErrorKind::PermissionDenied { "needs root" } else { "needs a testbed" };
    Some(format!("{needs} ({reason}): policies are settings of a queue, and loopback has none"))
}

struct PartPlan {
    /// Where there are several: what the closed loop is called, and the number that they differ in.
    experiments: Vec<(Option<(String, f64)>, Experiment)>,
    workload: String,
    note: Option<String>,
}

impl PartPlan {
    fn new(
        part: Part,
        config: &PaperConfig,
        cores: &CoreAssignment,
        programs: &Programs,
        root: &WebRoot,
    ) -> Result<Self, String> {
        // Lull's memcached on epoll, as the paper's memcached.
        let lull = |policy| Contender::lull(policy, DriverKind::Epoll, PollingConfig::default());
        let connections = config.connections;
        Ok(match part {
            Part::Policies => {
                let mut contenders =
                    [Policy::Vanilla, Policy::Packing, Policy::Suppression].map(lull).to_vec();
                contenders.extend(Contender::with_intervals(DriverKind::Epoll, &poll_intervals()));
                // The paper's packing has the same 8 cores as the other policies.
                let whose = if cores.packing_is_shared() {
                    ", the fleet's, as there is no third, at the fleet's expense"
                } else {
                    ""
                };
                Self {
                    experiments: vec![(None, config.experiment(contenders, &config.rates, config.records))],
                    workload: format!(
                        "a fleet of {connections} connections on one core, ETC keys and values, {} records, one set in 31 \
                         requests, one request in flight on each connection",
                        config.records
                    ),
                    note: Some(format!(
                        "packing's network work runs on a second core{whose}: it has more CPU time than the other policies"
                    )),
                }
            }
            Part::Web => {
                if programs.nginx.is_none() {
                    return Err("nginx is not installed (Debian: apt-get install nginx)".to_owned());
                }
                let contenders = programs.web_servers(root, &poll_intervals());
                let experiment = |&size: &usize| {
                    let mut experiment = config.experiment(contenders.clone(), &[], 0);
                    experiment.settle = config.turn.unwrap_or(ATTACHED_SETTLE);
                    let request = format!("GET /{size} HTTP/1.1\r\nHost: lab\r\n\r\n");
                    experiment.requests = FleetRequests::Text { request, reply: None };
                    (Some((format!("{size} B"), size as f64)), experiment)
                };
                let note = if programs.static_files.is_some() {
                    "Lull's static_files is asked for the policy that its row names by RUNTIME_POLICY; whether it runs is not \
                     verified"
                        .to_owned()
                } else {
                    format!("Lull's static_files: not built ({BUILD})")
                };
                Self {
                    experiments: config.file_sizes.iter().map(experiment).collect(),
                    workload: format!(
                        "a fleet of {connections} connections on one core; files from the page cache"
                    ),
                    note: Some(note),
                }
            }
            // Vanilla and kernel polling, the two that it has beside F-Stack.
            Part::Connections => {
                let contenders = [Policy::Vanilla, Policy::KernelPolling].map(lull).to_vec();
                let experiment = |&connections: &usize| {
                    let mut experiment =
                        config.experiment(contenders.clone(), &[], config.connection_records);
                    experiment.connections = connections;
                    let plural = if connections == 1 { "" } else { "s" };
                    (Some((format!("{connections} connection{plural}"), connections as f64)), experiment)
                };
                Self {
                    experiments: config.connection_counts.iter().map(experiment).collect(),
                    workload: "a fleet of 1 to 10,000 connections on one core, ETC keys and values, one set in 31 requests"
                        .to_owned(),
                    note: None,
                }
            }
        })
    }

    /// Runs the experiments. If a later one fails, a note says so: what was measured before is not
    /// lost.
    fn measure(self, bed: &Bed, progress: &mut dyn FnMut(&str)) -> Result<PartResult, Error> {
        let Self { experiments, workload, note } = self;
        let notes = note.into_iter().collect();
        let mut result = PartResult { workload, loads: Vec::new(), notes };
        for (named, experiment) in experiments {
            let name = named.as_ref().map_or_else(String::new, |(name, _)| format!("{name}: "));
            let outcome = match experiment.run(bed, &mut |step| progress(&format!("{name}{step}"))) {
                Ok(outcome) => outcome,
                Err(error) if result.loads.is_empty() => return Err(error),
                Err(error) => {
                    result.notes.push(format!("incomplete: {name}{error}"));
                    break;
                }
            };
            let contenders = experiment.contenders.iter().zip(&outcome.servers);
            let steps_down = contenders.filter_map(|(it, running)| running.as_ref()?.note(&it.name()));
            let notes = outcome.results.notes.into_iter().chain(steps_down);
            result.notes.extend(notes.map(|note| format!("{name}{note}")));
            for mut load in outcome.results.loads {
                if let Some((name, at)) = &named {
                    (load.name, load.at) = (name.clone(), *at);
                }
                result.loads.push(load);
            }
        }
        Ok(result)
    }
}
