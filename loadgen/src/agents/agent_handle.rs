//! The coordinator's connection to one agent.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use net::TcpStream;

use crate::agents::authenticated_channel::{ChannelError, Receiver, Role, Sender, open};
use crate::agents::messages::{AgentResponse, CoordinatorRequest};
use crate::error::Error;
use crate::run::schedule::POLL_INTERVAL;
use crate::stats::collector::Measurement;
use crate::stats::progress::Progress;

/// An agent from which nothing is received for this long is lost.
const AGENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Preparing includes connecting, which depends on the server.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(60);
/// How often an agent's clock is read: the shortest round trip is the most precise.
const CLOCK_READS: usize = 10;

#[derive(Debug, Clone, Copy)]
pub(super) struct ClockReading {
    pub(super) round_trip: Duration,
    /// Our time in the middle of the round trip.
    ours: Instant,
    /// The agent's time, in nanoseconds.
    theirs: u64,
}

#[derive(Debug)]
pub(super) struct AgentHandle {
    pub(super) name: String,
    pub(super) threads: usize,
    pub(super) weight: u32,
    pub(super) sender: Sender,
    receiver: Receiver,
}

pub(super) fn agent_error(agent: &str, reason: impl ToString) -> Error {
    Error::Agent { agent: agent.to_owned(), reason: reason.to_string() }
}

impl AgentHandle {
    pub(super) async fn connect(
        name: &str,
        address: std::net::SocketAddr,
        secret: &str,
    ) -> Result<Self, Error> {
        let connected = TcpStream::connect_timeout(address, AGENT_TIMEOUT).await;
        let stream = connected.map_err(|error| agent_error(name, format!("cannot connect: {error}")))?;
        stream.set_nodelay(true).map_err(|error| agent_error(name, error))?;
        let handshake = async {
            let (mut sender, mut receiver) = open(stream, secret.as_bytes(), Role::Coordinator).await?;
            // The first message proves that the coordinator knows the secret.
            sender.send(&CoordinatorRequest::Clock).await?;
            let welcome = receiver.receive_within(AGENT_TIMEOUT).await?;
            Ok::<_, ChannelError>((sender, receiver, welcome))
        };
        let (sender, mut receiver, welcome) = handshake.await.map_err(|error| agent_error(name, error))?;
        let (threads, weight) = match welcome {
            AgentResponse::Welcome { threads, weight } => (threads, weight),
            AgentResponse::Failed(reason) => return Err(agent_error(name, reason)),
            response => return Err(agent_error(name, format!("expected a welcome, received {response:?}"))),
        };
        // The response to the request for the clock.
        let clock = receiver.receive_within::<AgentResponse>(AGENT_TIMEOUT).await;
        clock.map_err(|error| agent_error(name, error))?;
        Ok(Self { name: name.to_owned(), threads, weight, sender, receiver })
    }

    /// Reads the agent's clock, with an error of at most half of the shortest round trip.
    pub(super) async fn read_clock(&mut self) -> Result<ClockReading, ChannelError> {
        let mut best = None::<ClockReading>;
        for _ in 0..CLOCK_READS {
            let asked = Instant::now();
            self.sender.send(&CoordinatorRequest::Clock).await?;
            let theirs = loop {
                match self.receiver.receive_within(AGENT_TIMEOUT).await? {
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

    pub(super) async fn start(&mut self, at: Instant, clock: ClockReading) -> Result<(), ChannelError> {
        let later = u64::try_from(at.saturating_duration_since(clock.ours).as_nanos()).unwrap_or(u64::MAX);
        self.sender.send(&CoordinatorRequest::Start(clock.theirs.saturating_add(later))).await
    }

    /// Waits until the agent has prepared the load.
    pub(super) async fn wait_ready(&mut self, since: Instant, stop: &AtomicBool) -> Result<(), ChannelError> {
        loop {
            match self.receiver.receive_within(POLL_INTERVAL).await {
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
    pub(super) async fn follow(
        mut self,
        stop: Rc<Cell<bool>>,
        progress: Rc<Cell<Option<Progress>>>,
    ) -> (Self, Result<Measurement, String>) {
        let mut stop_sent = false;
        loop {
            if stop.get() && !stop_sent {
                stop_sent = true;
                if let Err(error) = self.sender.send(&CoordinatorRequest::Stop).await {
                    return (self, Err(error.to_string()));
                }
            }
            match self.receiver.receive_within(POLL_INTERVAL).await {
                Ok(AgentResponse::Done(measurement)) => return (self, Ok(*measurement)),
                Ok(AgentResponse::Failed(reason)) => return (self, Err(reason)),
                Ok(AgentResponse::Running(latest)) => progress.set(latest),
                Ok(_) => {}
                Err(ChannelError::Timeout(_)) if self.receiver.idle_time() < AGENT_TIMEOUT => {}
                Err(ChannelError::Timeout(_)) => {
                    return (self, Err(ChannelError::Timeout(AGENT_TIMEOUT).to_string()));
                }
                Err(error) => return (self, Err(error.to_string())),
            }
        }
    }
}
