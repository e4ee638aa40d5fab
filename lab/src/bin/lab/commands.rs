//! The subcommands: which contenders under which loads, and where the report goes.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lab::Error;
use lab::commands::baseline::{self, Baseline};
use lab::commands::card;
use lab::commands::comparison::Comparison;
use lab::commands::paper::{PaperConfig, PaperPlan, PaperReport};
use lab::commands::self_test::self_test_verdict;
use lab::cores::{AwakeCores, CoreAssignment};
use lab::experiment::{Bed, Contender, Experiment, Load, ServerCommand, requests_for};
use lab::fleet::FleetRequests;
use lab::instructions::{self, Counted, InstructionReport};
use lab::network::PollingConfig;
use lab::peers::PeerService;
use lab::preflight;
use lab::testbed::{Receiver, Testbed};
use policies::{Policy, host};
use runtime::DriverKind;

use crate::flags::{
    AttachFlags, CardFlags, CompareFlags, INSTRUCTIONS, IdleCores, InstructionFlags, PaperFlags, PeerFlags,
    RunFlags, SelfTestFlags,
};
use crate::output::{Output, with_bar};

/// Requests per second and worker of a memcached server on Lull. At the first one less than two
/// packets come in the default poll interval, at the second one more.
const RATES: [f64; 2] = [50e3, 100e3];
/// Those of servers on epoll, and of applications.
const LOW_RATES: [f64; 2] = [25e3, 50e3];

fn with_rates(rates: [f64; 2]) -> Vec<Load> {
    rates.map(Load::Rate).into_iter().chain([Load::Closed]).collect()
}

pub fn compare(flags: &CompareFlags) -> Result<(), Error> {
    let cores = CoreAssignment::for_workers(flags.workers.map(usize::from))?;
    let mut contenders = flags.contenders.clone();
    if contenders.is_empty() {
        let lull = |policy, driver| Contender::lull(policy, driver, PollingConfig::default());
        contenders.extend([DriverKind::Epoll, DriverKind::Uring].map(|driver| lull(Policy::Vanilla, driver)));
        contenders.extend(Contender::with_intervals(DriverKind::Auto, &flags.poll_interval));
    }
    let grace = |contender: Contender| contender.with_grace_time(flags.gro_flush_timeout);
    let mut contenders: Vec<Contender> = contenders.into_iter().map(grace).collect();
    let threads = cores.servers.len();
    let memcached = flags.memcached.clone().map(|path| ServerCommand::memcached(path, threads));
    contenders.extend(memcached.map(|server| Contender::Program { server, attached: None }));
    let quick = flags.run.quick;
    let experiment = Experiment {
        loads: with_rates(RATES),
        receivers: vec![Receiver::Fifo, Receiver::Rps],
        // What it costs to change how the queue is driven, at the beginning of a load, is part of it.
        settle: 0.0,
        warm_up: 0.0,
        duration: if quick { 0.4 } else { 1.0 },
        ..Experiment::new(contenders, quick)
    };
    run(experiment, testbed("compare", cores)?, &flags.run)?.write()
}

pub fn peers(flags: &PeerFlags) -> Result<(), Error> {
    let service = flags.service;
    let contenders = Contender::peers(service);
    let mut experiment = Experiment::new(contenders, flags.run.quick);
    experiment.requests = requests_for(service);
    experiment.references = vec![0];
    experiment.loads = with_rates(LOW_RATES);
    run(experiment, one_worker("peers")?, &flags.run)?.write()
}

fn installed_memcached(path: PathBuf) -> Result<ServerCommand, Error> {
    let server = ServerCommand::memcached(path, 1);
    let hint = "install it (Debian: apt-get install memcached), or name another path or server to `lab attach`, with \
                --memcached or --server";
    server.check_installed(hint)?;
    Ok(server)
}

pub fn attach(flags: &AttachFlags) -> Result<(), Error> {
    let server = match &flags.server {
        Some(command) => ServerCommand::shell(command)?,
        None => installed_memcached(flags.memcached.clone())?,
    };
    let contenders = Contender::attached(&server, &flags.poll_interval);
    let mut experiment = Experiment {
        loads: with_rates(LOW_RATES),
        // From outside the controller is asked every 50 ms, and begins with interrupts after
        // each idle time.
        settle: 0.8,
        warm_up: 0.1,
        duration: 0.3,
        ..Experiment::new(contenders, flags.run.quick)
    };
    if let Some(request) = &flags.request {
        let request = request.replace("\\r", "\r").replace("\\n", "\n");
        experiment.requests = FleetRequests::Text { request, reply: None };
    }
    run(experiment, one_worker("attach")?, &flags.run)?.write()
}

/// A server beside itself, and beside one that computes longer for each request.
pub fn self_test(flags: &SelfTestFlags) -> Result<(), Error> {
    let work = Duration::from_micros(flags.work.into());
    let contenders = [Duration::ZERO, Duration::ZERO, work].map(Contender::working).into();
    let experiment = Experiment {
        references: vec![0],
        // Low enough that the slowest server is far from saturated: a busier server batches more.
        loads: vec![Load::Rate(40e3)],
        requests: requests_for(PeerService::Echo),
        rounds: if flags.run.quick { 16 } else { 48 },
        ..Experiment::new(contenders, true)
    };
    let mut report = run(experiment, one_worker("self-test")?, &flags.run)?;
    let verdict = self_test_verdict(&report.comparison.outcome.results, flags.work.into());
    report.comparison.verdict = vec![verdict.sentence.clone()];
    report.write()?;
    if verdict.passed { Ok(()) } else { Err(verdict.sentence.into()) }
}

/// Connections that servers are started for.
const MOST_CONNECTIONS: usize = 10_000;

/// A comparison, and where it goes.
struct Report {
    comparison: Comparison,
    output: Output,
    /// The folder and the name under which the run is kept.
    save: Option<(PathBuf, String)>,
}

impl Report {
    fn write(&self) -> Result<(), Error> {
        let screen = self.comparison.screen(&self.output.page());
        self.output.write(&self.comparison.document(), &self.comparison, &screen)?;
        let Some((folder, name)) = &self.save else { return Ok(()) };
        Baseline::of(&self.comparison).save(folder, name)
    }
}

fn run(mut experiment: Experiment, bed: Bed, flags: &RunFlags) -> Result<Report, Error> {
    let against = flags.against.as_ref().map(|name| Baseline::read(&flags.report.output, name));
    let against = against.transpose()?;
    if let Some(name) = &flags.save {
        baseline::path(&flags.report.output, name)?;
    }
    let mut flags = flags.clone();
    if let Some(then) = against.as_ref().filter(|_| flags.rates.is_empty()) {
        flags.rates = then.rates();
    }
    flags.set(&mut experiment);
    let all = experiment.connections * bed.workers();
    if all > MOST_CONNECTIONS {
        let (each, workers) = (experiment.connections, bed.workers());
        return Err(format!(
            "--connections {each} for each of {workers} workers are more than {MOST_CONNECTIONS}, which a server takes"
        )
        .into());
    }
    let output = Output::create(flags.report.format, &flags.report.output)?;
    if !flags.anyway {
        preflight::check(&bed.cores)?;
    }
    let awake = (flags.idle_cores == IdleCores::Awake).then(AwakeCores::request);
    let begun = Instant::now();
    let outcome = with_bar(experiment.steps(), |progress| experiment.run(&bed, progress))?;
    let minutes = begun.elapsed().as_secs_f64() / 60.0;
    let mut comparison = Comparison::new(experiment, &bed, matches!(awake, Some(Ok(_))), minutes, outcome);
    if let Some((then, name)) = against.zip(flags.against.as_ref()) {
        comparison.against = then.beside(name, &comparison);
    }
    let save = flags.save.as_ref().map(|name| (flags.report.output.clone(), name.clone()));
    Ok(Report { comparison, output, save })
}

fn one_worker(command: &str) -> Result<Bed, Error> {
    testbed(command, CoreAssignment::choose()?)
}

/// Tries whether there can be one, before everything else.
fn testbed(command: &str, cores: CoreAssignment) -> Result<Bed, Error> {
    let denied = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => format!(
            "{error}; `lab {command}` needs root: kernel polling is a setting of a queue, and loopback has none"
        ),
        _ => error.to_string(),
    };
    Testbed::new(1).map_err(denied)?;
    Ok(Bed::of_testbeds(cores))
}

/// Compares policies on a card.
pub fn on_card(flags: &CardFlags) -> Result<(), Error> {
    if !flags.run.receiver.is_empty() {
        return Err("--receiver has no effect on `lab card`: a card has interrupts".into());
    }
    let (this, interface) = (&flags.interface, &flags.client_interface);
    let (card, looking) = card::hold(this, &flags.client, interface, false)?;
    drop(looking);
    eprint!("{}", card::changes(&card));
    if flags.check {
        return Ok(());
    }
    let before = host::interface(this)?;
    let (card, ends) = card::hold(this, &flags.client, interface, true)?;
    let quick = flags.run.quick;
    let mut experiment = Experiment {
        // On a card a rate is that of all workers.
        loads: with_rates(RATES.map(|rate| rate * card.server.queues.max(1) as f64)),
        receivers: vec![Receiver::Interrupt],
        settle: 0.3,
        duration: if quick { 0.4 } else { 1.0 },
        ..Experiment::new(flags.contenders.clone(), quick)
    };
    // A turn begins with the start of its server and fleets.
    experiment.around = 1.0 + 0.25 * card.fleet_cores().len() as f64;
    experiment.connections = (experiment.connections * card.server.queues.max(1)).min(MOST_CONNECTIONS);
    let mut report = run(experiment, Bed::of_card(card)?, &flags.run)?;
    drop(ends);
    report.comparison.notes.push(card::restored(&before, &host::interface(this)?));
    report.write()
}

pub fn instructions(flags: &InstructionFlags) -> Result<(), Error> {
    let folder = flags.guest.clone().or_else(|| std::env::var_os("LULL_GUEST").map(Into::into));
    let folder =
        folder.ok_or("no machine to count on: run LULL_GUEST=$(tests/guest/prepare) lab instructions")?;
    let kernel = std::fs::read_to_string(folder.join("fetched"))
        .map_err(|error| format!("{}: {error}: tests/guest/prepare makes this folder", folder.display()))?;
    let output = Output::create(flags.format, &flags.output)?;
    let counting = flags.counting.clone();
    let rows =
        with_bar(counting.devices.len(), |progress| instructions::count(&folder, &counting, progress))?;
    let report = InstructionReport { kernel: kernel.trim().to_owned(), counting, rows };
    output.write_all(&report.document(), &report)
}

pub fn paper(flags: &PaperFlags) -> Result<(), Error> {
    let output = Output::create(Default::default(), &flags.output)?;
    let usual = || Path::new(INSTRUCTIONS).exists().then(|| INSTRUCTIONS.into());
    let counted = flags.instructions.clone().or_else(usual).map(|path| Counted::read(&path)).transpose()?;
    let config = PaperConfig::new(flags.quick)
        .shortened(flags.turn_time.map(Duration::from_millis), flags.rounds.map(usize::from));
    let cores = CoreAssignment::choose()?;
    // Fails without permission; all are compared under the same conditions either way.
    let awake = AwakeCores::request();
    let plan = PaperPlan::new(&config, cores.clone())?;
    let programs = plan.programs.clone();
    let parts = with_bar(plan.steps(), |progress| plan.measure(progress));
    let report = PaperReport::new(config, cores, awake.is_ok(), programs, parts, counted);
    let summary = format!("{}\n{}\n", report.summary(), output.page());
    output.write(&report.document(), &report, &summary)
}
