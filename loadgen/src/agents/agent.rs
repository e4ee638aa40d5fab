//! An agent: generates load on behalf of a coordinator.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use adapters::tls::Acceptor;
use futures_util::future::{Either, select};
use net::{TcpListener, TcpStream};

use crate::agents::channel::{AgentResponse, Channel, ChannelError, CoordinatorRequest, acceptor};
use crate::config::Config;
use crate::error::Error;
use crate::run::schedule::POLL_INTERVAL;
use crate::run::{Load, WorkerRange};
use crate::stats::timeline::Progress;

/// How often an agent sends a heartbeat during a run.
const HEARTBEAT: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentOptions {
    pub listen: SocketAddr,
    /// A PEM file with the certificate and the key of coordinator and agents, see
    /// [`IDENTITY_NAME`](crate::IDENTITY_NAME). Required unless the agent listens on the loopback
    /// address.
    pub identity: Option<PathBuf>,
    /// Share of the rate per connection, relative to the other generators (mutilate's lambda).
    /// Usually 1.
    pub weight: u32,
}

#[derive(Debug)]
pub struct Agent {
    listener: TcpListener,
    tls: Option<Acceptor>,
    weight: u32,
    /// Whether it works for a coordinator.
    busy: Cell<bool>,
    /// Whether it shuts down.
    stopping: Cell<bool>,
}

impl Agent {
    /// Listens on the configured address.
    ///
    /// # Errors
    /// Returns [`Error::Config`] if the address can't be bound, or isn't a loopback address and
    /// there is no identity, or if the identity can't be used.
    pub fn bind(options: AgentOptions) -> Result<Self, Error> {
        let AgentOptions { listen, identity, weight } = options;
        if !listen.ip().is_loopback() && identity.is_none() {
            return Err(Error::Config(format!(
                "without an identity anybody could make an agent on {} generate load: make one with --new-identity,                  and give it to the agent and its coordinator (--identity)",
                listen.ip()
            )));
        }
        let tls = identity.as_deref().map(acceptor).transpose()?;
        let listener = TcpListener::bind(listen)
            .map_err(|error| Error::Config(format!("cannot listen on {listen}: {error}")))?;
        Ok(Self { listener, tls, weight, busy: Cell::new(false), stopping: Cell::new(false) })
    }

    /// The address on which the agent listens.
    ///
    /// # Errors
    /// Returns the error of `getsockname`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves coordinators, one at a time, until `stop` is set. Calls `report` with a line
    /// for each thing that happens.
    pub async fn serve(self, stop: &AtomicBool, report: impl Fn(&str) + 'static) {
        let agent = Rc::new(self);
        let report: Rc<dyn Fn(&str)> = Rc::new(report);
        while !stop.load(Ordering::Relaxed) {
            let accepted = runtime::timeout(POLL_INTERVAL, agent.listener.accept()).await;
            let Ok(accepted) = accepted else { continue };
            let (stream, coordinator) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    report(&format!("cannot accept a coordinator: {error}"));
                    runtime::sleep(POLL_INTERVAL).await;
                    continue;
                }
            };
            // Each session holds a reference.
            if Rc::strong_count(&agent) > MAX_SESSIONS {
                continue;
            }
            let (agent, report) = (Rc::clone(&agent), Rc::clone(&report));
            // Sessions run concurrently, so that further coordinators learn that the agent is busy.
            drop(runtime::spawn(async move {
                if let Err(error) = agent.run_session(stream, coordinator, &*report).await {
                    report(&format!("{coordinator}: {error}"));
                }
            }));
        }
        agent.stopping.set(true);
        while agent.busy.get() {
            runtime::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn run_session(
        &self,
        stream: TcpStream,
        coordinator: SocketAddr,
        report: &dyn Fn(&str),
    ) -> Result<(), ChannelError> {
        let mut channel = Channel::accept(stream, self.tls.as_ref()).await?;
        if self.busy.replace(true) {
            let refusal = AgentResponse::Failed("it works for another coordinator".to_owned());
            return channel.send(&refusal).await;
        }
        let _busy = BusyGuard(&self.busy);
        report(&format!("{coordinator}: coordinator connected"));
        channel.send(&AgentResponse::Welcome { threads: runtime::workers(), weight: self.weight }).await?;
        // Between runs there is no timeout. TCP keepalive detects that the coordinator is gone.
        while !self.stopping.get() {
            match channel.receive_within(POLL_INTERVAL).await {
                Ok(CoordinatorRequest::Clock) => channel.send(&AgentResponse::Clock(clock())).await?,
                Ok(CoordinatorRequest::Prepare(config, range)) => {
                    self.run_load(&config, range, &mut channel, report).await?;
                }
                // Belongs to a run that has ended already.
                Ok(CoordinatorRequest::Start(_) | CoordinatorRequest::Stop) => {}
                Err(ChannelError::Timeout(_)) => {}
                Err(ChannelError::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn run_load(
        &self,
        config: &Config,
        range: WorkerRange,
        channel: &mut Channel,
        report: &dyn Fn(&str),
    ) -> Result<(), ChannelError> {
        if self.tls.is_none() && config.tls.is_some() {
            // Any user of this machine could be the coordinator.
            let refusal = "an agent without an identity opens no files: give both sides one (--identity)";
            return channel.send(&AgentResponse::Failed(refusal.to_owned())).await;
        }
        let stop = AtomicBool::new(false);
        let load = match Load::prepare(config, range, &stop).await {
            // The result of the load has the error of the worker.
            Ok(load) if load.has_ended_worker() => match load.finish(&stop, |_| {}).await {
                Err(error) => return channel.send(&AgentResponse::Failed(error.to_string())).await,
                Ok(_) => return channel.send(&AgentResponse::Failed("a worker ended".to_owned())).await,
            },
            Ok(load) => load,
            Err(error) => return channel.send(&AgentResponse::Failed(error.to_string())).await,
        };
        channel.send(&AgentResponse::Ready).await?;
        let ready = Instant::now();
        loop {
            match channel.receive_within(POLL_INTERVAL).await {
                Err(ChannelError::Timeout(_)) if ready.elapsed() < START_TIMEOUT && !self.stopping.get() => {}
                Ok(CoordinatorRequest::Start(time)) => {
                    load.start(instant_of(time));
                    break;
                }
                Ok(CoordinatorRequest::Clock) => channel.send(&AgentResponse::Clock(clock())).await?,
                Ok(CoordinatorRequest::Stop | CoordinatorRequest::Prepare(..)) => {
                    load.abandon();
                    return Ok(());
                }
                Err(error) => {
                    load.abandon();
                    return Err(error);
                }
            }
        }
        let servers: Vec<String> = config.servers.iter().map(ToString::to_string).collect();
        report(&format!("run started: {}", servers.join(", ")));
        let latest = RefCell::new(None::<Progress>);
        let finish = load.finish(&stop, |progress| *latest.borrow_mut() = Some(progress));
        // Listen for a stop request and send heartbeats during the run.
        let (finished, lost) = {
            let mut finish = std::pin::pin!(finish);
            loop {
                let received = {
                    let message = std::pin::pin!(channel.receive_within::<CoordinatorRequest>(HEARTBEAT));
                    match select(finish.as_mut(), message).await {
                        Either::Left((finished, _)) => break (finished, None),
                        Either::Right((received, _)) => received,
                    }
                };
                let mut lost = None;
                match received {
                    Ok(CoordinatorRequest::Stop) => stop.store(true, Ordering::Relaxed),
                    Ok(_) => {}
                    Err(ChannelError::Timeout(_)) => {
                        let progress = *latest.borrow();
                        lost = channel.send(&AgentResponse::Running(progress)).await.err();
                    }
                    Err(error) => lost = Some(error),
                }
                if lost.is_some() || self.stopping.get() {
                    stop.store(true, Ordering::Relaxed);
                    break (finish.as_mut().await, lost);
                }
            }
        };
        if let Some(error) = lost {
            return Err(error);
        }
        report("run ended");
        if self.stopping.get() {
            // The measurement is incomplete, while the coordinator's run continues.
            return channel.send(&AgentResponse::Failed("it was interrupted".to_owned())).await;
        }
        match finished {
            Ok(measurement) => channel.send(&AgentResponse::Done(Box::new(measurement))).await,
            Err(error) => channel.send(&AgentResponse::Failed(error.to_string())).await,
        }
    }
}

/// The clock that is reported to coordinators, in nanoseconds.
fn clock() -> u64 {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    u64::try_from(ORIGIN.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Converts a time of `clock`, limited to what a coordinator would choose.
fn instant_of(time: u64) -> Instant {
    Instant::now() + Duration::from_nanos(time.saturating_sub(clock())).min(START_TIMEOUT)
}

/// How long a prepared load waits for its start.
const START_TIMEOUT: Duration = Duration::from_secs(90);
const MAX_SESSIONS: usize = 16;

/// Marks the agent as free when it is dropped.
struct BusyGuard<'a>(&'a Cell<bool>);

impl Drop for BusyGuard<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}
