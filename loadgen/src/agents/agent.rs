//! An agent: generates load on behalf of a coordinator.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use net::{TcpListener, TcpStream};

use crate::agents::authenticated_channel::{ChannelError, Receiver, Role, Sender, check_secret, open};
use crate::agents::messages::{AgentResponse, CoordinatorRequest};
use crate::config::Config;
use crate::error::Error;
use crate::run::measured_run::{Load, WorkerRange};
use crate::run::schedule::POLL_INTERVAL;
use crate::stats::progress::Progress;

/// How often an agent sends a heartbeat during a run.
const HEARTBEAT: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentOptions {
    pub listen: SocketAddr,
    /// The secret shared with the coordinator, at least 16 bytes. Required unless the agent listens
    /// on the loopback address.
    pub secret: Option<String>,
    /// Share of the rate per connection, relative to the other generators (mutilate's lambda).
    /// Usually 1.
    pub weight: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AgentEvent {
    AcceptFailed(String),
    CoordinatorConnected(SocketAddr),
    SessionFailed { coordinator: SocketAddr, reason: String },
    RunStarted(Vec<String>),
    RunEnded,
}

impl fmt::Display for AgentEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AcceptFailed(reason) => write!(f, "cannot accept a coordinator: {reason}"),
            Self::CoordinatorConnected(address) => write!(f, "{address}: coordinator connected"),
            Self::SessionFailed { coordinator, reason } => write!(f, "{coordinator}: {reason}"),
            Self::RunStarted(servers) => write!(f, "run started: {}", servers.join(", ")),
            Self::RunEnded => write!(f, "run ended"),
        }
    }
}

#[derive(Debug)]
pub struct Agent {
    listener: TcpListener,
    options: AgentOptions,
}

impl Agent {
    /// Listens on the configured address.
    ///
    /// # Errors
    /// Returns [`Error::Config`] if the address can't be bound, or isn't a loopback address and
    /// there is no secret, or if the secret has less than 16 bytes.
    pub fn bind(options: AgentOptions) -> Result<Self, Error> {
        check_secret(options.secret.as_deref())?;
        let is_loopback = match options.listen.ip() {
            IpAddr::V4(ip) => ip.is_loopback(),
            IpAddr::V6(ip) => ip.is_loopback(),
        };
        if !is_loopback && options.secret.as_deref().unwrap_or_default().is_empty() {
            return Err(Error::Config(format!(
                "without a secret anybody could make an agent on {} generate load: configure one on the agent and \
                 its coordinator (--secret-file)",
                options.listen.ip()
            )));
        }
        let listener = TcpListener::bind(options.listen)
            .map_err(|error| Error::Config(format!("cannot listen on {}: {error}", options.listen)))?;
        Ok(Self { listener, options })
    }

    /// The address on which the agent listens.
    ///
    /// # Errors
    /// Returns the error of `getsockname`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves coordinators, one at a time, until `stop` is set. Calls `on_event` with what happens.
    pub async fn serve(&self, stop: &AtomicBool, on_event: impl Fn(AgentEvent) + 'static) {
        let busy = Rc::new(Cell::new(false));
        let on_event: Rc<dyn Fn(AgentEvent)> = Rc::new(on_event);
        let stopping = Arc::new(AtomicBool::new(false));
        while !stop.load(Ordering::Relaxed) {
            let accepted = runtime::timeout(POLL_INTERVAL, self.listener.accept()).await;
            let Ok(accepted) = accepted else { continue };
            let (stream, coordinator) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    on_event(AgentEvent::AcceptFailed(error.to_string()));
                    runtime::sleep(POLL_INTERVAL).await;
                    continue;
                }
            };
            // Each session holds a reference.
            if Rc::strong_count(&busy) > MAX_SESSIONS {
                continue;
            }
            let session = Session {
                options: self.options.clone(),
                busy: Rc::clone(&busy),
                stopping: Arc::clone(&stopping),
            };
            let on_event = Rc::clone(&on_event);
            // Sessions run concurrently, so that further coordinators learn that the agent is busy.
            drop(runtime::spawn(async move {
                if let Err(error) = session.run(stream, coordinator, &*on_event).await {
                    on_event(AgentEvent::SessionFailed { coordinator, reason: error.to_string() });
                }
            }));
        }
        stopping.store(true, Ordering::Relaxed);
        while busy.get() {
            runtime::sleep(Duration::from_millis(10)).await;
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
/// How long a new connection may take to authenticate.
const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_SESSIONS: usize = 16;

struct Session {
    options: AgentOptions,
    busy: Rc<Cell<bool>>,
    /// Set when the agent shuts down.
    stopping: Arc<AtomicBool>,
}

/// Marks the agent as busy while it exists.
struct BusyGuard(Rc<Cell<bool>>);

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Session {
    async fn run(
        &self,
        stream: TcpStream,
        coordinator: SocketAddr,
        on_event: &dyn Fn(AgentEvent),
    ) -> Result<(), ChannelError> {
        let secret = self.options.secret.as_deref().unwrap_or_default();
        let (mut sender, mut receiver) = open(stream, secret.as_bytes(), Role::Agent).await?;
        // The first message proves that the peer knows the secret.
        let first = receiver.receive_within(AUTHENTICATION_TIMEOUT).await;
        if let Err(ChannelError::SecretMismatch) = first {
            // Fails if the peer has closed the connection.
            let _ = sender.refuse().await;
        }
        let mut request = first?;
        if self.busy.replace(true) {
            let refusal = AgentResponse::Failed("it works for another coordinator".to_owned());
            return sender.send(&refusal).await;
        }
        let _busy = BusyGuard(Rc::clone(&self.busy));
        on_event(AgentEvent::CoordinatorConnected(coordinator));
        let weight = self.options.weight;
        sender.send(&AgentResponse::Welcome { threads: runtime::workers(), weight }).await?;
        loop {
            match request {
                CoordinatorRequest::Clock => sender.send(&AgentResponse::Clock(clock())).await?,
                CoordinatorRequest::Prepare(config, range) => {
                    self.run_load(&config, range, &mut sender, &mut receiver, on_event).await?;
                }
                // Belongs to a run that has ended already.
                CoordinatorRequest::Start(_) | CoordinatorRequest::Stop => {}
            }
            // Between runs there is no timeout. TCP keepalive detects that the coordinator is gone.
            request = loop {
                if self.stopping.load(Ordering::Relaxed) {
                    return Ok(());
                }
                match receiver.receive_within(POLL_INTERVAL).await {
                    Ok(request) => break request,
                    Err(ChannelError::Timeout(_)) => {}
                    Err(ChannelError::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                        return Ok(());
                    }
                    Err(error) => return Err(error),
                }
            };
        }
    }

    async fn run_load(
        &self,
        config: &Config,
        range: WorkerRange,
        sender: &mut Sender,
        receiver: &mut Receiver,
        on_event: &dyn Fn(AgentEvent),
    ) -> Result<(), ChannelError> {
        if self.options.secret.is_none() && config.tls.is_some() {
            // Any user of this machine could be the coordinator.
            let refusal =
                "an agent without a secret opens no files: configure one on both sides (--secret-file)";
            return sender.send(&AgentResponse::Failed(refusal.to_owned())).await;
        }
        let stop = AtomicBool::new(false);
        let load = match Load::prepare(config, range, &stop).await {
            // The result of the load has the error of the worker.
            Ok(load) if load.has_ended_worker() => match load.finish(&stop, |_| {}).await {
                Err(error) => return sender.send(&AgentResponse::Failed(error.to_string())).await,
                Ok(_) => return sender.send(&AgentResponse::Failed("a worker ended".to_owned())).await,
            },
            Ok(load) => load,
            Err(error) => return sender.send(&AgentResponse::Failed(error.to_string())).await,
        };
        sender.send(&AgentResponse::Ready).await?;
        let ready = Instant::now();
        loop {
            match receiver.receive_within(POLL_INTERVAL).await {
                Err(ChannelError::Timeout(_))
                    if ready.elapsed() < START_TIMEOUT && !self.stopping.load(Ordering::Relaxed) => {}
                Ok(CoordinatorRequest::Start(time)) => {
                    load.start(instant_of(time));
                    break;
                }
                Ok(CoordinatorRequest::Clock) => sender.send(&AgentResponse::Clock(clock())).await?,
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
        on_event(AgentEvent::RunStarted(config.servers.iter().map(ToString::to_string).collect()));
        let latest = RefCell::new(None::<Progress>);
        let finish = load.finish(&stop, |progress| *latest.borrow_mut() = Some(progress));
        // Listen for a stop request and send heartbeats during the run.
        let (finished, lost) = {
            let mut finish = std::pin::pin!(finish);
            let mut lost = None;
            loop {
                let tick = std::pin::pin!(receiver.receive_within::<CoordinatorRequest>(HEARTBEAT));
                match select(finish.as_mut(), tick).await {
                    Either::Left((finished, _)) => break (finished, lost),
                    Either::Right((Ok(CoordinatorRequest::Stop), _)) => stop.store(true, Ordering::Relaxed),
                    Either::Right((Ok(_), _)) => {}
                    Either::Right((Err(ChannelError::Timeout(_)), _)) => {
                        let progress = *latest.borrow();
                        if let Err(error) = sender.send(&AgentResponse::Running(progress)).await {
                            lost = Some(error);
                        }
                    }
                    Either::Right((Err(error), _)) => lost = Some(error),
                }
                if lost.is_some() || self.stopping.load(Ordering::Relaxed) {
                    stop.store(true, Ordering::Relaxed);
                    break (finish.as_mut().await, lost);
                }
            }
        };
        if let Some(error) = lost {
            return Err(error);
        }
        on_event(AgentEvent::RunEnded);
        if self.stopping.load(Ordering::Relaxed) {
            // The measurement is incomplete, while the coordinator's run continues.
            return sender.send(&AgentResponse::Failed("it was interrupted".to_owned())).await;
        }
        match finished {
            Ok(measurement) => sender.send(&AgentResponse::Done(Box::new(measurement))).await,
            Err(error) => sender.send(&AgentResponse::Failed(error.to_string())).await,
        }
    }
}
