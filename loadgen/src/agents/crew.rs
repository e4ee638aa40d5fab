//! A master's agents.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use net::TcpStream;

use crate::agents::channel::{Fault, Receiver, Sender, Side, open};
use crate::agents::messages::{Order, Word};
use crate::config::{Config, Loop};
use crate::error::Error;
use crate::progress::Progress;
use crate::report::Report;
use crate::run::{LOOK, Load, Measured, Share};
use crate::workload::Arrival;

/// An agent of which nothing is heard for so long is gone.
const SILENCE: Duration = Duration::from_secs(5);
/// Connections take as long as the server takes to accept them.
const PREPARE_WITHIN: Duration = Duration::from_secs(60);
/// So often an agent's clock is asked for: the fastest answer tells best.
const ASKED: usize = 10;
/// From the last preparation to the beginning: time to tell everybody.
const AHEAD: Duration = Duration::from_millis(200);

/// What came of an agent's run.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) agent: String,
    /// Why there is nothing of it.
    pub(crate) outcome: Result<Measured, String>,
}

/// What a clock shows, and how long it took to learn that.
#[derive(Debug, Clone, Copy)]
struct Clock {
    took: Duration,
    ours: Instant,
    theirs: u64,
}

#[derive(Debug)]
struct Member {
    name: String,
    threads: usize,
    weight: u32,
    sender: Sender,
    receiver: Receiver,
}

/// Agents that take part; none is a crew as well, whose master does all.
#[derive(Debug)]
pub struct Crew {
    /// The master's share of the rate for each of its connections.
    weight: u32,
    members: Vec<Member>,
    /// Those that were lost, and why.
    lost: Vec<(String, String)>,
}

fn failed(agent: &str, reason: impl ToString) -> Error {
    Error::Agent { agent: agent.to_owned(), reason: reason.to_string() }
}

async fn meet(name: &str, address: std::net::SocketAddr, secret: &str) -> Result<Member, Error> {
    let connected = TcpStream::connect_timeout(address, SILENCE).await;
    let stream = connected.map_err(|error| failed(name, format!("cannot connect: {error}")))?;
    stream.set_nodelay(true).map_err(|error| failed(name, error))?;
    let met = async {
        let (mut sender, mut receiver) = open(stream, secret.as_bytes(), Side::Master).await?;
        sender.send(&Order::Time).await?;
        let welcome = receiver.receive_within(SILENCE).await?;
        Ok::<_, Fault>((sender, receiver, welcome))
    };
    let (sender, mut receiver, welcome) = met.await.map_err(|fault| failed(name, fault))?;
    let (threads, weight) = match welcome {
        Word::Welcome { threads, weight } => (threads, weight),
        Word::Failed(reason) => return Err(failed(name, reason)),
        word => return Err(failed(name, format!("it does not welcome its master, but says {word:?}"))),
    };
    // The answer to the question that came first.
    receiver.receive_within::<Word>(SILENCE).await.map_err(|fault| failed(name, fault))?;
    Ok(Member { name: name.to_owned(), threads, weight, sender, receiver })
}

impl Member {
    /// The agent's clock at this moment of ours, to half of the fastest round trip, which is told, too.
    async fn clock(&mut self) -> Result<Clock, Fault> {
        let mut best = None::<(Duration, Instant, u64)>;
        for _ in 0..ASKED {
            let asked = Instant::now();
            self.sender.send(&Order::Time).await?;
            let theirs = loop {
                match self.receiver.receive_within(SILENCE).await? {
                    Word::Time(theirs) => break theirs,
                    Word::Working(_) => {}
                    Word::Failed(reason) => return Err(Fault::Refused(reason)),
                    word => return Err(Fault::Message(format!("{word:?} for the time"))),
                }
            };
            let took = asked.elapsed();
            if best.is_none_or(|(least, ..)| took < least) {
                best = Some((took, asked + took / 2, theirs));
            }
        }
        let best = best.map(|(took, ours, theirs)| Clock { took, ours, theirs });
        best.ok_or_else(|| Fault::Message("no time".to_owned()))
    }

    async fn begin(&mut self, at: Instant, Clock { ours, theirs, .. }: Clock) -> Result<(), Fault> {
        let later = u64::try_from(at.saturating_duration_since(ours).as_nanos()).unwrap_or(u64::MAX);
        self.sender.send(&Order::Begin(theirs.saturating_add(later))).await
    }

    /// Waits until the agent has prepared what it was told to.
    async fn ready(&mut self, since: Instant, stop: &AtomicBool) -> Result<(), Fault> {
        loop {
            match self.receiver.receive_within(LOOK).await {
                Ok(Word::Ready) => return Ok(()),
                Ok(Word::Failed(reason)) => return Err(Fault::Refused(reason)),
                Ok(word) => return Err(Fault::Message(format!("{word:?} where it was to be ready"))),
                Err(Fault::Silent(_)) if stop.load(Ordering::Relaxed) => {
                    return Err(Fault::Refused("interrupted before it was ready".to_owned()));
                }
                Err(Fault::Silent(_)) if since.elapsed() < PREPARE_WITHIN => {}
                Err(Fault::Silent(_)) => return Err(Fault::Silent(PREPARE_WITHIN)),
                Err(fault) => return Err(fault),
            }
        }
    }
}

impl Crew {
    /// Calls agents together; a name is for people, an address is where it listens. `weight` is the master's
    /// share of the rate for each of its connections, as each agent has one of its own.
    ///
    /// # Errors
    /// Where one can't be reached, speaks another version, has another secret, or works for somebody else.
    pub async fn call(
        agents: &[(String, std::net::SocketAddr)],
        secret: Option<&str>,
        weight: u32,
    ) -> Result<Self, Error> {
        let mut crew = Self { weight, members: Vec::new(), lost: Vec::new() };
        for (name, address) in agents {
            crew.members.push(meet(name, *address, secret.unwrap_or_default()).await?);
        }
        Ok(crew)
    }

    /// Runs a load together with all agents, as [`run_until`](crate::run_until) does alone. Where an
    /// agent is lost, the report says so, and that the load was not what was asked for.
    ///
    /// # Errors
    /// As [`run_until`](crate::run_until), and where an agent can't prepare the load.
    pub async fn run(
        &mut self,
        config: &Config,
        stop: &AtomicBool,
        progress: impl FnMut(Progress),
    ) -> Result<Report, Error> {
        config.check()?;
        if let Some((name, reason)) = self.lost.first() {
            return Err(failed(name, reason));
        }
        let plan = Plan::new(config, self.weight, &self.members);
        let load = match self.gather(&plan, stop).await {
            Ok(load) => load,
            Err(error) => {
                // Who is ready waits for nothing otherwise.
                for member in &mut self.members {
                    // It may be this one that is gone.
                    let _ = member.sender.send(&Order::Stop).await;
                }
                return Err(error);
            }
        };
        let (stopping, mut seen, mut listeners) = (Rc::new(Cell::new(false)), Vec::new(), Vec::new());
        for member in std::mem::take(&mut self.members) {
            let last = Rc::new(Cell::new(None));
            seen.push(Rc::clone(&last));
            listeners.push(runtime::spawn(follow(member, Rc::clone(&stopping), last)));
        }
        let measured = load
            .finish(stop, {
                let (mut progress, stopping) = (progress, &stopping);
                move |own| {
                    stopping.set(stopping.get() || stop.load(Ordering::Relaxed));
                    // Latencies are the master's own: percentiles of several can't be put together.
                    let all =
                        seen.iter().filter_map(|last| last.get()).fold(own, |all, one: Progress| Progress {
                            requests: all.requests + one.requests,
                            qps: all.qps + one.qps,
                            errors: all.errors + one.errors,
                            ..all
                        });
                    progress(all);
                }
            })
            .await;
        // Also where it ended because it was sure enough, or failed.
        let early = measured.as_ref().map_or(true, |measured| measured.stopped);
        stopping.set(stopping.get() || early);
        let mut parts = Vec::new();
        for listener in listeners {
            let (member, outcome) = listener.await?;
            let agent = member.name.clone();
            match &outcome {
                Ok(_) => self.members.push(member),
                Err(reason) => self.lost.push((agent.clone(), reason.clone())),
            }
            parts.push(Part { agent, outcome });
        }
        Ok(Report::new(config, measured?, parts))
    }

    /// Has everybody prepare, and begin at the same time.
    async fn gather(&mut self, plan: &Plan, stop: &AtomicBool) -> Result<Load, Error> {
        let mut first = runtime::workers();
        for (member, theirs) in self.members.iter_mut().zip(&plan.theirs) {
            let share = Share { first, of: plan.workers };
            first += member.threads;
            let order = Order::Prepare(Box::new(theirs.clone()), share);
            member.sender.send(&order).await.map_err(|fault| failed(&member.name, fault))?;
        }
        let since = Instant::now();
        for member in &mut self.members {
            member.ready(since, stop).await.map_err(|fault| failed(&member.name, fault))?;
        }
        let load = Load::prepare(&plan.mine, Share { first: 0, of: plan.workers }, stop).await?;
        let mut clocks = Vec::new();
        for member in &mut self.members {
            let clock = member.clock().await;
            match clock {
                Ok(clock) => clocks.push(clock),
                Err(fault) => {
                    load.abandon();
                    return Err(failed(&member.name, fault));
                }
            }
        }
        // Until all have been told.
        let slowest = clocks.iter().map(|clock| clock.took).max();
        let at = Instant::now() + slowest.map_or(Duration::ZERO, |slowest| AHEAD + slowest * 2);
        for (member, clock) in self.members.iter_mut().zip(clocks) {
            if let Err(fault) = member.begin(at, clock).await {
                load.abandon();
                return Err(failed(&member.name, fault));
            }
        }
        load.begin(at);
        Ok(load)
    }
}

/// Listens to an agent until its run is over, and tells it when to stop.
async fn follow(
    mut member: Member,
    stop: Rc<Cell<bool>>,
    last: Rc<Cell<Option<Progress>>>,
) -> (Member, Result<Measured, String>) {
    let mut told = false;
    loop {
        if stop.get() && !told {
            told = true;
            if let Err(fault) = member.sender.send(&Order::Stop).await {
                return (member, Err(fault.to_string()));
            }
        }
        match member.receiver.receive_within(LOOK).await {
            Ok(Word::Done(measured)) => return (member, Ok(*measured)),
            Ok(Word::Failed(reason)) => return (member, Err(reason)),
            Ok(Word::Working(progress)) => last.set(progress),
            Ok(_) => {}
            Err(Fault::Silent(_)) if member.receiver.silent_for() < SILENCE => {}
            Err(Fault::Silent(_)) => return (member, Err(Fault::Silent(SILENCE).to_string())),
            Err(fault) => return (member, Err(fault.to_string())),
        }
    }
}

/// Who does what.
struct Plan {
    mine: Config,
    theirs: Vec<Config>,
    /// Of all.
    workers: usize,
}

impl Plan {
    fn new(config: &Config, own: u32, members: &[Member]) -> Self {
        let mut mine = config.clone();
        let apart = config.apart;
        if !members.is_empty() {
            mine.connections = apart.connections.unwrap_or(config.connections);
            mine.depth = apart.depth.unwrap_or(config.depth);
        }
        let weigh = |config: &Config, threads: usize, weight: u32| {
            config.all_connections(threads) as f64 * f64::from(weight)
        };
        let agents: f64 = members.iter().map(|member| weigh(config, member.threads, member.weight)).sum();
        let master = weigh(&mine, runtime::workers(), own);
        // It is the master who says when it is enough.
        let mut theirs = vec![Config { until_sure: None, ..config.clone() }; members.len()];
        if let Loop::Open { rate, arrival } = &config.pacing {
            let apart = apart.rate.filter(|_| !members.is_empty());
            let all = agents + if apart.is_some() { 0.0 } else { master };
            for (member, config) in members.iter().zip(&mut theirs) {
                let rate = rate * weigh(config, member.threads, member.weight) / all;
                config.pacing = Loop::Open { rate, arrival: *arrival };
            }
            mine.pacing = match apart {
                Some(rate) if rate > 0.0 => Loop::Open { rate, arrival: *arrival },
                Some(_) => Loop::Closed,
                None => Loop::Open { rate: rate * master / all, arrival: *arrival },
            };
        } else if let Some(rate) = apart.rate.filter(|rate| *rate > 0.0 && !members.is_empty()) {
            // Agents in a closed loop, and a master that asks now and then.
            mine.pacing = Loop::Open { rate, arrival: Arrival::EXPONENTIAL };
            mine.think = None;
        }
        let workers = runtime::workers() + members.iter().map(|member| member.threads).sum::<usize>();
        Self { mine, theirs, workers }
    }
}
