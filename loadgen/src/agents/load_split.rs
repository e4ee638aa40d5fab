//! Divides a load among the coordinator and its agents.

use crate::agents::agent_handle::AgentHandle;
use crate::config::{Config, Loop};
use crate::workload::arrival::Arrival;

/// The configurations of the coordinator and its agents.
pub(super) struct LoadSplit {
    pub(super) coordinator: Config,
    pub(super) agents: Vec<Config>,
    /// Workers of all generators.
    pub(super) workers: usize,
}

impl LoadSplit {
    /// Divides the rate by connections and weights. `weight` is the coordinator's.
    pub(super) fn new(config: &Config, weight: u32, agents: &[AgentHandle]) -> Self {
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
