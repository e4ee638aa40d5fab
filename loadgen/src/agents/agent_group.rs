//! The coordinator's agents, and a run together with them.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::agents::agent_handle::{AgentHandle, agent_error};
use crate::agents::authenticated_channel::check_secret;
use crate::agents::messages::CoordinatorRequest;
use crate::config::{Config, Loop};
use crate::error::Error;
use crate::report::run_report::{AgentOutcome, Report};
use crate::run::measured_run::{Load, WorkerRange};
use crate::stats::progress::Progress;
use crate::workload::arrival::Arrival;

/// From the end of the preparation to the start: time to notify all agents.
const START_DELAY: Duration = Duration::from_millis(200);

#[derive(Debug, Default)]
pub(super) struct AgentGroup {
    /// The coordinator's share of the rate per connection.
    weight: u32,
    agents: Vec<AgentHandle>,
    /// Names of lost agents, with the reason.
    lost: Vec<(String, String)>,
}

impl AgentGroup {
    pub(super) async fn connect(
        addresses: &[(String, std::net::SocketAddr)],
        secret: Option<&str>,
        weight: u32,
    ) -> Result<Self, Error> {
        check_secret(secret)?;
        let mut agents = Vec::new();
        for (name, address) in addresses {
            agents.push(AgentHandle::connect(name, *address, secret.unwrap_or_default()).await?);
        }
        Ok(Self { weight, agents, lost: Vec::new() })
    }

    /// Whether there never were any agents.
    pub(super) fn is_empty(&self) -> bool {
        self.agents.is_empty() && self.lost.is_empty()
    }

    pub(super) async fn run(
        &mut self,
        config: &Config,
        stop: &AtomicBool,
        progress: impl FnMut(Progress),
    ) -> Result<Report, Error> {
        config.validate()?;
        if let Some((name, reason)) = self.lost.first() {
            return Err(agent_error(name, reason));
        }
        let split = LoadSplit::new(config, self.weight, &self.agents);
        let load = match self.start_together(&split, stop).await {
            Ok(load) => load,
            Err(error) => {
                for agent in &mut self.agents {
                    // Fails for the agent that caused the error, if it was lost.
                    let _ = agent.sender.send(&CoordinatorRequest::Stop).await;
                }
                return Err(error);
            }
        };
        let (stopping, mut remote, mut followers) = (Rc::new(Cell::new(false)), Vec::new(), Vec::new());
        for agent in std::mem::take(&mut self.agents) {
            let latest = Rc::new(Cell::new(None));
            remote.push(Rc::clone(&latest));
            followers.push(runtime::spawn(agent.follow(Rc::clone(&stopping), latest)));
        }
        let measurement = load
            .finish(stop, {
                let (mut progress, stopping) = (progress, &stopping);
                move |local| {
                    stopping.set(stopping.get() || stop.load(Ordering::Relaxed));
                    // Latencies are the coordinator's: percentiles of several generators can't be
                    // combined.
                    let add = |sum: Progress, one: Progress| Progress {
                        requests: sum.requests + one.requests,
                        qps: sum.qps + one.qps,
                        errors: sum.errors + one.errors,
                        ..sum
                    };
                    progress(remote.iter().filter_map(|latest| latest.get()).fold(local, add));
                }
            })
            .await;
        // Stop the agents also if the run ended because of its precision, or failed.
        let ended_early = measurement.as_ref().map_or(true, |measurement| measurement.stopped);
        stopping.set(stopping.get() || ended_early);
        let mut outcomes = Vec::new();
        for follower in followers {
            let (agent, result) = follower.await?;
            let name = agent.name.clone();
            match &result {
                Ok(_) => self.agents.push(agent),
                Err(reason) => self.lost.push((name.clone(), reason.clone())),
            }
            outcomes.push(AgentOutcome { agent: name, result });
        }
        Ok(Report::new(config, measurement?, outcomes))
    }

    /// Prepares the load on all machines, and starts it at the same time.
    async fn start_together(&mut self, split: &LoadSplit, stop: &AtomicBool) -> Result<Load, Error> {
        let mut first = runtime::workers();
        for (agent, config) in self.agents.iter_mut().zip(&split.agents) {
            let range = WorkerRange { first, total: split.workers };
            first += agent.threads;
            let request = CoordinatorRequest::Prepare(Box::new(config.clone()), range);
            agent.sender.send(&request).await.map_err(|error| agent_error(&agent.name, error))?;
        }
        let since = Instant::now();
        for agent in &mut self.agents {
            agent.wait_ready(since, stop).await.map_err(|error| agent_error(&agent.name, error))?;
        }
        let range = WorkerRange { first: 0, total: split.workers };
        let load = Load::prepare(&split.coordinator, range, stop).await?;
        let mut clocks = Vec::new();
        for agent in &mut self.agents {
            match agent.read_clock().await {
                Ok(clock) => clocks.push(clock),
                Err(error) => {
                    load.abandon();
                    return Err(agent_error(&agent.name, error));
                }
            }
        }
        let slowest = clocks.iter().map(|clock| clock.round_trip).max();
        let at = Instant::now() + slowest.map_or(Duration::ZERO, |slowest| START_DELAY + slowest * 2);
        for (agent, clock) in self.agents.iter_mut().zip(clocks) {
            if let Err(error) = agent.start(at, clock).await {
                load.abandon();
                return Err(agent_error(&agent.name, error));
            }
        }
        load.start(at);
        Ok(load)
    }
}

struct LoadSplit {
    coordinator: Config,
    agents: Vec<Config>,
    workers: usize,
}

impl LoadSplit {
    /// Divides the rate by connections and weights. `weight` is the coordinator's.
    fn new(config: &Config, weight: u32, agents: &[AgentHandle]) -> Self {
        let mut mine = config.clone();
        let overrides = config.measurement_overrides;
        mine.connections = overrides.connections.unwrap_or(config.connections);
        mine.depth = overrides.depth.unwrap_or(config.depth);
        let weigh = |config: &Config, threads: usize, weight: u32| {
            config.total_connections(threads) as f64 * f64::from(weight)
        };
        let agents_weight: f64 = agents.iter().map(|agent| weigh(config, agent.threads, agent.weight)).sum();
        let my_weight = weigh(&mine, runtime::workers(), weight);
        // The coordinator decides when the precision is reached.
        let mut theirs = vec![Config { target_precision: None, ..config.clone() }; agents.len()];
        if let Loop::Open { rate, arrival } = &config.pacing {
            let all = agents_weight + if overrides.rate.is_some() { 0.0 } else { my_weight };
            for (agent, config) in agents.iter().zip(&mut theirs) {
                let rate = rate * weigh(config, agent.threads, agent.weight) / all;
                config.pacing = Loop::Open { rate, arrival: *arrival };
            }
            mine.pacing = match overrides.rate {
                Some(rate) if rate > 0.0 => Loop::Open { rate, arrival: *arrival },
                Some(_) => Loop::Closed,
                None => Loop::Open { rate: rate * my_weight / all, arrival: *arrival },
            };
        } else if let Some(rate) = overrides.rate.filter(|rate| *rate > 0.0) {
            // The agents run the closed loop, the coordinator measures at its own rate.
            mine.pacing = Loop::Open { rate, arrival: Arrival::EXPONENTIAL };
            mine.think = None;
        }
        let workers = runtime::workers() + agents.iter().map(|agent| agent.threads).sum::<usize>();
        Self { coordinator: mine, agents: theirs, workers }
    }
}
