//! The experiment process's side: runs the role that the lab assigned.

use std::fmt::Write;
use std::io::{self, BufRead};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use policies::attach::{AttachConfig, AttachEvent, Attachment, Target, observe};
use policies::controller::PollInterval;
use policies::explain::Severity;
use policies::{Cpus, JournalDir, recover};
use runtime::Builder;
use rustix::process::{Signal, set_parent_process_death_signal, setsid};
use servers::memcached::{Config, Server};

use super::messages::{ProcessRole, RunningPolicy, ServerReady, send};
use crate::fleet::{Fleet, FleetConfig, store_records};
use crate::peers::lull::worker_report;
use crate::peers::raise_descriptor_limit;
use crate::rounds::AttachProgress;
use crate::testbed::{CardEnd, Namespace, SERVER_INTERFACE};
use crate::{Error, peers};

/// Runs this process as an experiment process. The first line of standard input is its
/// [`ProcessRole`] as JSON, `namespace` the path of the network namespace to enter. Returns when the
/// lab closes its end, or when a load is over.
pub fn run(namespace: Option<&str>) -> Result<(), Error> {
    let mut role = String::new();
    io::stdin().lock().read_line(&mut role)?;
    let role = serde_json::from_str(&role)?;
    // What has changed an interface restores it when the lab is killed, too.
    let restores = matches!(role, ProcessRole::Card { .. });
    set_parent_process_death_signal((!restores).then_some(Signal::KILL))?;
    if let Some(path) = namespace {
        Namespace::open(path)?.enter_process()?;
    }
    match role {
        ProcessRole::Server { network, cores, address, memory } => {
            run_server(network.builder(&cores), address, memory)
        }
        ProcessRole::Fleet { fleet, core, stores } => {
            Cpus::one(core).pin(None)?;
            sent(run_fleet(fleet, stores))
        }
        ProcessRole::Program { program, arguments, cores } => {
            cores.into_iter().collect::<Cpus>().pin(None)?;
            // The signal on the lab's death stays set across exec. Not KILL: a server of several
            // processes, such as nginx, ends its workers when it is asked to end, and leaves them
            // behind when it is killed.
            set_parent_process_death_signal(Some(Signal::TERM))?;
            let error = Command::new(&program).args(&arguments).stdout(Stdio::null()).exec();
            Err(format!("{}: {error}", program.display()).into())
        }
        ProcessRole::Card { interface, peer, changes } => {
            // Interrupted at a terminal the lab ends, and this process restores.
            let _ = setsid();
            sent(run_card(&interface, peer, changes))
        }
        ProcessRole::Attach { pid, poll_interval, core } => {
            Cpus::one(core).pin(None)?;
            sent(run_attacher(pid, poll_interval))
        }
        ProcessRole::EchoServer(spec) => Ok(peers::serve(&spec, |address, ran, steps_down| {
            let policy = ran.map(|ran| RunningPolicy { ran, steps_down });
            send(&ServerReady { address, policy })
        })?),
    }
}

/// The most connections that the server accepts: those of the largest load, and those that observe
/// it.
const MOST_CONNECTIONS: usize = 10_100;

fn run_server(builder: Builder, address: IpAddr, memory: u64) -> Result<(), Error> {
    let runtime = builder.build()?;
    raise_descriptor_limit()?;
    let config = Config {
        listen: vec![(address, None)],
        port: Some(0),
        max_connections: MOST_CONNECTIONS,
        memory: memory.max(Config::default().memory),
        ..Config::default()
    };
    runtime.block_on(async move {
        let server = Server::start(&config).await?;
        let report = worker_report()?;
        let policy = RunningPolicy { ran: report.running.to_string(), steps_down: report.steps_down };
        send(&ServerReady { address: server.addresses()[0], policy: Some(policy) })?;
        // Until the lab closes its end: then the runtime restores what its policy changed.
        runtime::spawn_blocking(until_closed).await?;
        drop(server);
        Ok(())
    })
}

/// Returns when the lab closes its end, or is killed.
fn until_closed() {
    let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
}

/// How long a killed lab's servers may take to end.
const SERVERS_END: Duration = Duration::from_millis(500);

fn run_card(interface: &str, peer: Option<[u8; 6]>, changes: bool) -> Result<(), Error> {
    let end = CardEnd::check(interface, peer.is_none())?;
    let changed = changes.then(|| end.change(peer)).transpose()?;
    send(&Ok::<_, String>(&end))?;
    until_closed();
    drop(changed);
    if changes && peer.is_some() {
        // What policies of servers have changed that were killed with the lab.
        thread::sleep(SERVERS_END);
        if let Err(error) = recover(&JournalDir::default()) {
            tracing::warn!("{interface}: {error}: run `policies restore`");
        }
    }
    Ok(())
}

/// The lab awaits what a fleet or what attaches has to say: an error is that, too.
fn sent(result: Result<(), Error>) -> Result<(), Error> {
    result.or_else(|error| Ok(send(&Err::<(), _>(error.to_string()))?))
}

/// Stays connected to one server, and runs loads until the lab closes this process's standard
/// input.
fn run_fleet(fleet: FleetConfig, stores: bool) -> Result<(), Error> {
    if stores {
        store_records(&fleet.requests, fleet.server)?;
    }
    let mut fleet = Fleet::connect(fleet)?;
    send(&Ok::<_, String>(()))?;
    for line in io::stdin().lock().lines() {
        send(&Ok::<_, String>(fleet.run(&serde_json::from_str(&line?)?)?))?;
    }
    fleet.close()
}

/// How long attaching may take: looking takes half a second, and two scans have to agree.
const ATTACHES_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
struct Reported {
    attached: bool,
    /// Why an instance was left alone, or a queue refused.
    refusals: Vec<String>,
    progress: AttachProgress,
}

impl Reported {
    fn take_in(&mut self, event: &AttachEvent) {
        match event {
            AttachEvent::Attached { .. } => self.attached = true,
            AttachEvent::LeftAlone { .. } | AttachEvent::QueueRefused { .. } => {
                self.refusals.push(event.to_string());
            }
            AttachEvent::SteppedBack { reason, .. } => self.progress.stepped_back.push(reason.clone()),
            _ => {}
        }
    }
}

/// Attaches to the server, and says what it did at each command, until the lab closes this
/// process's standard input.
fn run_attacher(pid: u32, poll_interval: PollInterval) -> Result<(), Error> {
    let target = Target::Process(pid);
    check_attachable(&target)?;
    let reported = Arc::new(Mutex::new(Reported::default()));
    let seen = Arc::clone(&reported);
    let interface = Some(SERVER_INTERFACE.to_owned());
    let config = AttachConfig { interface, poll_interval, ..AttachConfig::new(target) };
    let on_event =
        move |event: &AttachEvent| seen.lock().unwrap_or_else(PoisonError::into_inner).take_in(event);
    let attachment = Attachment::start(config, on_event)?;
    let reported = || reported.lock().unwrap_or_else(PoisonError::into_inner);
    let deadline = Instant::now() + ATTACHES_WITHIN;
    while !reported().attached {
        if Instant::now() > deadline {
            let mut reasons = vec![format!("nothing was attached within {} s", ATTACHES_WITHIN.as_secs())];
            reasons.append(&mut reported().refusals);
            return Err(reasons.join("; ").into());
        }
        thread::sleep(Duration::from_millis(10));
    }
    send(&Ok::<_, String>(()))?;
    for command in io::stdin().lock().lines() {
        command?;
        let instances = attachment.status().queues.iter().map(|queue| queue.instances.len()).sum();
        let progress = std::mem::take(&mut reported().progress);
        send(&Ok::<_, String>(AttachProgress { instances, ..progress }))?;
    }
    Ok(())
}

/// Says what prevents attaching, with what to do about it.
fn check_attachable(target: &Target) -> Result<(), Error> {
    let observation = observe(target, Some(SERVER_INTERFACE), &JournalDir::default())?;
    if !observation.is_prevented() {
        return Ok(());
    }
    let mut text = observation.verdict();
    for finding in observation.findings.iter().filter(|finding| finding.severity == Severity::Prevents) {
        let _ = write!(text, " {}", finding.summary);
        if let Some(remedy) = &finding.remedy {
            let _ = write!(text, " To do: {remedy}.");
        }
    }
    Err(text.into())
}
