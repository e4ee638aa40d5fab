//! An agent: does what a master says, and tells it what came of it.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use net::{TcpListener, TcpStream};

use crate::agents::channel::{Fault, Receiver, Sender, Side, open};
use crate::agents::messages::{Order, Word};
use crate::config::{Config, Loop};
use crate::error::Error;
use crate::progress::Progress;
use crate::run::{LOOK, Load, Share};

/// So often an agent tells that it is at work.
pub(super) const HEARTBEAT: Duration = Duration::from_millis(500);

/// How an agent takes part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentOptions {
    /// Where it listens.
    pub listen: SocketAddr,
    /// What its masters know, too; needed unless it listens on the loopback address.
    pub secret: Option<String>,
    /// How much of the rate it takes for each of its connections, where others take 1 (mutilate's lambda).
    pub weight: u32,
}

/// An agent that listens.
#[derive(Debug)]
pub struct Agent {
    listener: TcpListener,
    options: AgentOptions,
}

impl Agent {
    /// # Errors
    /// Where the address can't be had, or would let anybody in.
    pub fn bind(options: AgentOptions) -> Result<Self, Error> {
        let refuse = |what: String| Error::Config(what);
        let is_own = match options.listen.ip() {
            IpAddr::V4(ip) => ip.is_loopback(),
            IpAddr::V6(ip) => ip.is_loopback(),
        };
        if !is_own && options.secret.as_deref().unwrap_or_default().is_empty() {
            return Err(refuse(format!(
                "an agent on {} would load whatever anybody tells it to: give it and its master a secret",
                options.listen.ip()
            )));
        }
        let listener = TcpListener::bind(options.listen)
            .map_err(|error| refuse(format!("cannot listen on {}: {error}", options.listen)))?;
        Ok(Self { listener, options })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves masters, one at a time, until `stop` is set. Tells a line of what happens.
    pub async fn serve(&self, stop: &AtomicBool, tell: impl Fn(&str) + 'static) {
        let busy = Rc::new(Cell::new(false));
        let tell: Rc<dyn Fn(&str)> = Rc::new(tell);
        let ends = Arc::new(AtomicBool::new(false));
        while !stop.load(Ordering::Relaxed) {
            let Ok(accepted) = runtime::timeout(LOOK, self.listener.accept()).await else { continue };
            let (stream, master) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tell(&format!("cannot take on a master: {error}"));
                    runtime::sleep(LOOK).await;
                    continue;
                }
            };
            // One for each session that there is.
            if Rc::strong_count(&busy) > SESSIONS {
                continue;
            }
            let session =
                Session { options: self.options.clone(), busy: Rc::clone(&busy), ends: Arc::clone(&ends) };
            let tell = Rc::clone(&tell);
            // Beside the one that is served, so that another is told why it isn't.
            drop(runtime::spawn(async move {
                match session.run(stream, master, &*tell).await {
                    Ok(()) => {}
                    Err(fault) => tell(&format!("{master}: {fault}")),
                }
            }));
        }
        ends.store(true, Ordering::Relaxed);
        while busy.get() {
            runtime::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// A clock that a master can be told of.
fn clock() -> u64 {
    use std::sync::OnceLock;
    static BEGINNING: OnceLock<Instant> = OnceLock::new();
    u64::try_from(BEGINNING.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// When the clock shows this, but not later than a master would have it.
fn moment(at: u64) -> Instant {
    Instant::now() + Duration::from_nanos(at.saturating_sub(clock())).min(PATIENCE)
}

/// A master that takes longer to begin is not served.
const PATIENCE: Duration = Duration::from_secs(90);
/// Whoever takes longer to say the first word that only a master can say is none.
const STRANGERS: Duration = Duration::from_secs(5);
/// So many are heard at once.
const SESSIONS: usize = 16;

struct Session {
    options: AgentOptions,
    busy: Rc<Cell<bool>>,
    ends: Arc<AtomicBool>,
}

/// No other master meanwhile.
struct Busy(Rc<Cell<bool>>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Session {
    async fn run(&self, stream: TcpStream, master: SocketAddr, tell: &dyn Fn(&str)) -> Result<(), Fault> {
        let secret = self.options.secret.as_deref().unwrap_or_default();
        let (mut sender, mut receiver) = open(stream, secret.as_bytes(), Side::Agent).await?;
        // Whoever asks for the time knows the secret.
        let first = receiver.receive_within(STRANGERS).await;
        if let Err(Fault::Secret) = first {
            // It can't read this, and sees from that why it isn't served.
            let _ = sender.send(&Word::Failed("the secrets differ".to_owned())).await;
        }
        let mut order = first?;
        if self.busy.replace(true) {
            let refusal = Word::Failed("it works for another master".to_owned());
            return sender.send(&refusal).await;
        }
        let _busy = Busy(Rc::clone(&self.busy));
        tell(&format!("{master}: takes part"));
        sender.send(&Word::Welcome { threads: runtime::workers(), weight: self.options.weight }).await?;
        loop {
            match order {
                Order::Time => sender.send(&Word::Time(clock())).await?,
                Order::Prepare(config, share) => {
                    self.work(&config, share, &mut sender, &mut receiver, tell).await?;
                }
                // Of a run that is over already.
                Order::Begin(_) | Order::Stop => {}
            }
            // Between runs a master may take its time; if it is gone, the connection says so.
            order = loop {
                if self.ends.load(Ordering::Relaxed) {
                    return Ok(());
                }
                match receiver.receive_within(LOOK).await {
                    Ok(order) => break order,
                    Err(Fault::Silent(_)) => {}
                    Err(Fault::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                    Err(fault) => return Err(fault),
                }
            };
        }
    }

    async fn work(
        &self,
        config: &Config,
        share: Share,
        sender: &mut Sender,
        receiver: &mut Receiver,
        tell: &dyn Fn(&str),
    ) -> Result<(), Fault> {
        if self.options.secret.is_none() && names_files(config) {
            // Anybody on this machine may be its master.
            let refusal = "an agent without a secret opens no files: give it and its master one";
            return sender.send(&Word::Failed(refusal.to_owned())).await;
        }
        let stop = AtomicBool::new(false);
        let load = match Load::prepare(config, share, &stop).await {
            // The reason why a worker has ended comes with the run's.
            Ok(load) if load.has_ended() => match load.finish(&stop, |_| {}).await {
                Err(error) => return sender.send(&Word::Failed(error.to_string())).await,
                Ok(_) => return sender.send(&Word::Failed("a worker ended".to_owned())).await,
            },
            Ok(load) => load,
            Err(error) => return sender.send(&Word::Failed(error.to_string())).await,
        };
        sender.send(&Word::Ready).await?;
        let ready = Instant::now();
        loop {
            match receiver.receive_within(LOOK).await {
                Err(Fault::Silent(_)) if ready.elapsed() < PATIENCE && !self.ends.load(Ordering::Relaxed) => {
                }
                Ok(Order::Begin(at)) => {
                    load.begin(moment(at));
                    break;
                }
                Ok(Order::Time) => sender.send(&Word::Time(clock())).await?,
                Ok(Order::Stop | Order::Prepare(..)) => {
                    load.abandon();
                    return Ok(());
                }
                Err(fault) => {
                    load.abandon();
                    return Err(fault);
                }
            }
        }
        let servers: Vec<String> = config.servers.iter().map(ToString::to_string).collect();
        tell(&format!("loads {}", servers.join(", ")));
        let seen = RefCell::new(None::<Progress>);
        let finish = load.finish(&stop, |progress| *seen.borrow_mut() = Some(progress));
        // Until it is over one side listens, and says that it is there.
        let (finished, gone) = {
            let mut finish = std::pin::pin!(finish);
            let mut gone = None;
            loop {
                let tick = std::pin::pin!(receiver.receive_within::<Order>(HEARTBEAT));
                match select(finish.as_mut(), tick).await {
                    Either::Left((finished, _)) => break (finished, gone),
                    Either::Right((Ok(Order::Stop), _)) => stop.store(true, Ordering::Relaxed),
                    Either::Right((Ok(_), _)) => {}
                    Either::Right((Err(Fault::Silent(_)), _)) => {
                        let progress = *seen.borrow();
                        if let Err(fault) = sender.send(&Word::Working(progress)).await {
                            gone = Some(fault);
                        }
                    }
                    Either::Right((Err(fault), _)) => gone = Some(fault),
                }
                if gone.is_some() || self.ends.load(Ordering::Relaxed) {
                    // Nobody wants what would be measured from here on.
                    stop.store(true, Ordering::Relaxed);
                    break (finish.as_mut().await, gone);
                }
            }
        };
        if let Some(fault) = gone {
            return Err(fault);
        }
        tell("done");
        if self.ends.load(Ordering::Relaxed) {
            // What it measured is less than was asked for, and its master goes on.
            return sender.send(&Word::Failed("it was interrupted".to_owned())).await;
        }
        match finished {
            Ok(measured) => sender.send(&Word::Done(Box::new(measured))).await,
            Err(error) => sender.send(&Word::Failed(error.to_string())).await,
        }
    }
}

/// Whether a load is described by files as well.
fn names_files(config: &Config) -> bool {
    let times = matches!(&config.pacing, Loop::Recorded { times: Some(_), .. });
    times || config.workload.trace.is_some() || config.tls.is_some()
}
