//! Load from several machines: a coordinator configures agents, all start at the same time, and
//! their measurements are merged without loss.
//!
//! An agent generates load on behalf of a coordinator. Unless it listens on the loopback address,
//! both need the same identity, a certificate with its key: they speak TLS, and each accepts only a
//! peer that has that key.

pub(crate) mod agent;
pub(crate) mod channel;

use std::cell::Cell;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use adapters::tls::Connector;
use net::TcpStream;

use crate::agents::channel::{AgentResponse, Channel, ChannelError, CoordinatorRequest, connector};
use crate::config::{Config, Loop};
use crate::error::Error;
use crate::report::{AgentOutcome, Report};
use crate::run::schedule::POLL_INTERVAL;
use crate::run::{Load, WorkerRange, run_until};
use crate::stats::collector::Measurement;
use crate::stats::timeline::Progress;
use crate::workload::arrival::Arrival;

/// The default port of agents; mutilate's port.
pub const AGENT_PORT: u16 = 5556;

/// From the end of the preparation to the start: time to notify all agents.
const START_DELAY: Duration = Duration::from_millis(200);

/// Runs loads on this machine and on agents at the same time.
#[derive(Debug)]
pub struct Coordinator {
    /// The coordinator's share of the rate per connection.
    weight: u32,
    agents: Vec<AgentHandle>,
    /// Names of lost agents, with the reason.
    lost: Vec<(String, String)>,
}

impl Coordinator {
    /// Connects to agents, if there are any, given by name and address. The name is used in reports
    /// and errors. `identity` is the file of [`AgentOptions`](crate::AgentOptions::identity).
    /// `weight` is the coordinator's share of the rate per connection; each agent has its own
    /// weight.
    ///
    /// # Errors
    /// Returns [`Error::Agent`] if an agent can't be reached, speaks another version of the
    /// protocol, has another identity or works for another coordinator, and [`Error::Config`] if
    /// the identity can't be used.
    pub async fn connect(
        agents: &[(String, SocketAddr)],
        identity: Option<&Path>,
        weight: u32,
    ) -> Result<Self, Error> {
        let tls = identity.map(connector).transpose()?;
        let mut connected = Vec::new();
        for (name, address) in agents {
            connected.push(AgentHandle::connect(name, *address, tls.as_ref()).await?);
        }
        Ok(Self { weight, agents: connected, lost: Vec::new() })
    }

    /// Runs a load together with all agents, as [`run_until`] does without agents. If an agent is
    /// lost, the report is invalid and names the agent.
    ///
    /// # Errors
    /// As [`run_until`]. Also returns [`Error::Agent`] if an agent can't prepare the load, or was
    /// lost in an earlier run.
    pub async fn run(
        &mut self,
        config: &Config,
        stop: &AtomicBool,
        progress: impl FnMut(Progress),
    ) -> Result<Report, Error> {
        if let Some((name, reason)) = self.lost.first() {
            return Err(agent_error(name, reason));
        }
        if self.agents.is_empty() {
            return run_until(config, stop, progress).await;
        }
        config.validate()?;
        let split = LoadSplit::new(config, self.weight, &self.agents);
        let load = match self.start_together(&split, stop).await {
            Ok(load) => load,
            Err(error) => {
                for agent in &mut self.agents {
                    // Fails for the agent that caused the error, if it was lost.
                    let _ = agent.channel.send(&CoordinatorRequest::Stop).await;
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
        Report::compute(config, measurement?, outcomes).await
    }

    /// Prepares the load on all machines, and starts it at the same time.
    async fn start_together(&mut self, split: &LoadSplit, stop: &AtomicBool) -> Result<Load, Error> {
        let mut first = runtime::workers();
        for (agent, config) in self.agents.iter_mut().zip(&split.agents) {
            let range = WorkerRange { first, total: split.workers };
            first += agent.threads;
            let request = CoordinatorRequest::Prepare(Box::new(config.clone()), range);
            agent.channel.send(&request).await.map_err(|error| agent_error(&agent.name, error))?;
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

/// An agent from which nothing is received for this long is lost.
const AGENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Preparing includes connecting, which depends on the server.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(60);
/// How often an agent's clock is read: the shortest round trip is the most precise.
const CLOCK_READS: usize = 10;

#[derive(Debug, Clone, Copy)]
struct ClockReading {
    round_trip: Duration,
    /// Our time in the middle of the round trip.
    ours: Instant,
    /// The agent's time, in nanoseconds.
    theirs: u64,
}

#[derive(Debug)]
struct AgentHandle {
    name: String,
    threads: usize,
    weight: u32,
    channel: Channel,
}

fn agent_error(agent: &str, reason: impl ToString) -> Error {
    Error::Agent { agent: agent.to_owned(), reason: reason.to_string() }
}

impl AgentHandle {
    async fn connect(name: &str, address: SocketAddr, tls: Option<&Connector>) -> Result<Self, Error> {
        let connected = TcpStream::connect_timeout(address, AGENT_TIMEOUT).await;
        let stream = connected.map_err(|error| agent_error(name, format!("cannot connect: {error}")))?;
        stream.set_nodelay(true).map_err(|error| agent_error(name, error))?;
        let welcomed = async {
            let mut channel = Channel::connect(stream, tls).await?;
            let welcome = channel.receive_within(AGENT_TIMEOUT).await?;
            Ok::<_, ChannelError>((channel, welcome))
        };
        let (channel, welcome) = welcomed.await.map_err(|error| agent_error(name, error))?;
        match welcome {
            AgentResponse::Welcome { threads, weight } => {
                Ok(Self { name: name.to_owned(), threads, weight, channel })
            }
            AgentResponse::Failed(reason) => Err(agent_error(name, reason)),
            response => Err(agent_error(name, format!("expected a welcome, received {response:?}"))),
        }
    }

    /// Reads the agent's clock, with an error of at most half of the shortest round trip.
    async fn read_clock(&mut self) -> Result<ClockReading, ChannelError> {
        let mut best = None::<ClockReading>;
        for _ in 0..CLOCK_READS {
            let asked = Instant::now();
            self.channel.send(&CoordinatorRequest::Clock).await?;
            let theirs = loop {
                match self.channel.receive_within(AGENT_TIMEOUT).await? {
                    AgentResponse::Clock(theirs) => break theirs,
                    AgentResponse::Running(_) => {}
                    AgentResponse::Failed(reason) => return Err(ChannelError::Refused(reason)),
                    response => {
                        let what = format!("expected the clock, received {response:?}");
                        return Err(ChannelError::InvalidMessage(what));
                    }
                }
            };
            let round_trip = asked.elapsed();
            if best.is_none_or(|best| round_trip < best.round_trip) {
                best = Some(ClockReading { round_trip, ours: asked + round_trip / 2, theirs });
            }
        }
        best.ok_or_else(|| ChannelError::InvalidMessage("no clock".to_owned()))
    }

    async fn start(&mut self, at: Instant, clock: ClockReading) -> Result<(), ChannelError> {
        let later = u64::try_from(at.saturating_duration_since(clock.ours).as_nanos()).unwrap_or(u64::MAX);
        self.channel.send(&CoordinatorRequest::Start(clock.theirs.saturating_add(later))).await
    }

    /// Waits until the agent has prepared the load.
    async fn wait_ready(&mut self, since: Instant, stop: &AtomicBool) -> Result<(), ChannelError> {
        loop {
            match self.channel.receive_within(POLL_INTERVAL).await {
                Ok(AgentResponse::Ready) => return Ok(()),
                Ok(AgentResponse::Failed(reason)) => return Err(ChannelError::Refused(reason)),
                Ok(response) => {
                    let what = format!("expected readiness, received {response:?}");
                    return Err(ChannelError::InvalidMessage(what));
                }
                Err(ChannelError::Timeout(_)) if stop.load(Ordering::Relaxed) => {
                    return Err(ChannelError::Refused("interrupted before it was ready".to_owned()));
                }
                Err(ChannelError::Timeout(_)) if since.elapsed() < PREPARE_TIMEOUT => {}
                Err(ChannelError::Timeout(_)) => return Err(ChannelError::Timeout(PREPARE_TIMEOUT)),
                Err(error) => return Err(error),
            }
        }
    }

    /// Follows a run until it is over, and forwards `stop`. The error is the reason why the agent
    /// was lost.
    async fn follow(
        mut self,
        stop: Rc<Cell<bool>>,
        progress: Rc<Cell<Option<Progress>>>,
    ) -> (Self, Result<Measurement, String>) {
        let mut stop_sent = false;
        loop {
            if stop.get() && !stop_sent {
                stop_sent = true;
                if let Err(error) = self.channel.send(&CoordinatorRequest::Stop).await {
                    return (self, Err(error.to_string()));
                }
            }
            match self.channel.receive_within(POLL_INTERVAL).await {
                Ok(AgentResponse::Done(measurement)) => return (self, Ok(*measurement)),
                Ok(AgentResponse::Failed(reason)) => return (self, Err(reason)),
                Ok(AgentResponse::Running(latest)) => progress.set(latest),
                Ok(_) => {}
                Err(ChannelError::Timeout(_)) if self.channel.last_received.elapsed() < AGENT_TIMEOUT => {}
                Err(ChannelError::Timeout(_)) => {
                    return (self, Err(ChannelError::Timeout(AGENT_TIMEOUT).to_string()));
                }
                Err(error) => return (self, Err(error.to_string())),
            }
        }
    }
}
