//! The subcommands: run an experiment, and print its report.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use lab::experiments::generator_comparison::{self, GeneratorComparisonConfig};
use lab::experiments::machine_check::check_machine;
use lab::experiments::memcached_cpu::{MemcachedCpuComparison, MemcachedCpuConfig, MemcachedLoad};
use lab::experiments::peer_comparison::{self, PeerComparisonConfig};
use lab::experiments::policy_comparison::{ComparisonConfig, PolicyComparison};
use lab::experiments::{Contestant, CoreAssignment};
use lab::report::{
    GeneratorReport, KernelClientReport, Machine, MachineCheckReport, PeerReport, ReportDiff,
    memcached_cpu_line,
};
use lab::testbed::Testbed;
use runtime::DriverKind;

use crate::flags::{
    CheckFlags, ComparisonFlags, DiffFlags, Format, GeneratorFlags, MemcachedCpuFlags, PeerFlags,
};
use crate::output::{Failure, create_file, write_report};
use crate::progress_bar::{begin_step, progress_bar};

/// Measures the closed loop of one kernel client.
pub fn kernel_client_report(mut comparison: PolicyComparison) -> Result<KernelClientReport, Failure> {
    let bar = progress_bar(comparison.config.contestants.len() * comparison.config.rounds);
    let measured = comparison.compare(|message| begin_step(&bar, message))?;
    bar.finish_and_clear();
    Ok(KernelClientReport::new(&comparison, measured))
}

pub fn check(flags: &CheckFlags) -> Result<(), Failure> {
    let rounds = ComparisonConfig::new(Contestant::policies(DriverKind::Epoll), false).rounds;
    let check = check_machine(Duration::from_secs(flags.seconds.into()), rounds)?;
    let report = MachineCheckReport { machine: Machine::read(), check };
    write_report(flags.format, None, &report, || report.text())
}

pub fn diff(flags: &DiffFlags) -> Result<(), Failure> {
    let report = ReportDiff::read(&flags.before, &flags.after)?;
    write_report(flags.format, None, &report, || report.text())
}

pub fn compare_peers(flags: &PeerFlags) -> Result<(), Failure> {
    let service = flags.service()?;
    let flags = &flags.comparison;
    let file = create_file(flags.run.report.output.as_deref())?;
    let mut config = PeerComparisonConfig::new(service, flags.run.quick);
    config.rounds = flags.run.rounds.map_or(config.rounds, usize::from);
    let cores = CoreAssignment::choose()?;
    let bar = progress_bar(config.steps());
    let progress = |message: &str| begin_step(&bar, message);
    let results = peer_comparison::compare_peers(&config, cores, progress)?;
    bar.finish_and_clear();
    let report =
        PeerReport { machine: Machine::read(), cores, config, rows: results.rows, runs: results.runs };
    write_report(flags.run.report.format, file, &report, || report.text())
}

pub fn compare_generators(flags: &GeneratorFlags) -> Result<(), Failure> {
    let config = GeneratorComparisonConfig {
        memcached: flags.memcached.clone(),
        loadgen: program_beside_lab("loadgen")?,
        mutilate: flags.mutilate.clone(),
        mc_crusher: flags.mc_crusher.clone(),
        depths: flags.depths.clone(),
        connections: flags.connections,
        seconds: flags.seconds,
        rounds: flags.rounds.into(),
    };
    let others = usize::from(config.mutilate.is_some()) + usize::from(config.mc_crusher.is_some());
    let bar = progress_bar(config.depths.len() * config.rounds * (1 + others));
    let cores = CoreAssignment::choose()?;
    let progress = |message: &str| begin_step(&bar, message);
    let results = generator_comparison::compare_generators(&config, cores, progress)?;
    bar.finish_and_clear();
    let report =
        GeneratorReport { machine: Machine::read(), cores, config, rows: results.rows, runs: results.runs };
    write_report(flags.format, None, &report, || report.text())
}

pub fn compare_memcached_cpu(flags: MemcachedCpuFlags) -> Result<(), Failure> {
    let beside_lab = |path: Option<PathBuf>, name| path.map_or_else(|| program_beside_lab(name), Ok);
    let config = MemcachedCpuConfig {
        ours: beside_lab(flags.ours, "memcached")?,
        theirs: flags.theirs,
        loadgen: beside_lab(flags.loadgen, "loadgen")?,
        rounds: flags.rounds.into(),
        seconds: flags.seconds,
    };
    let comparison = MemcachedCpuComparison::start(config, CoreAssignment::choose()?)?;
    let mut out = io::stdout().lock();
    if flags.format == Format::Json {
        let results: Result<Vec<_>, _> =
            MemcachedLoad::ALL.iter().map(|load| comparison.measure(load)).collect();
        writeln!(out, "{}", serde_json::to_string_pretty(&results?)?)?;
        return Ok(());
    }
    for (name, version) in comparison.versions()? {
        writeln!(out, "{name}: {version}")?;
    }
    for load in &MemcachedLoad::ALL {
        let results = comparison.measure(load)?;
        for row in &results.rows {
            writeln!(out, "{}", memcached_cpu_line(row))?;
        }
        writeln!(out, "{}", results.run.summary())?;
    }
    Ok(())
}

/// The comparison that the flags describe, on the testbed if possible.
pub fn new_comparison(
    flags: &ComparisonFlags,
    contestants: Vec<Contestant>,
) -> Result<PolicyComparison, Failure> {
    let testbed = if flags.loopback { None } else { create_testbed()? };
    let mut config = ComparisonConfig::new(contestants, flags.run.quick);
    config.rounds = flags.run.rounds.map_or(config.rounds, usize::from);
    config.connections = flags.run.connections.into();
    config.wait = flags.wait;
    Ok(PolicyComparison::new(testbed, flags.cores()?, config, flags.polling()[0]))
}

/// Creates the testbed, or returns `None` without the permission to create namespaces. Any other failure is an error.
pub fn create_testbed() -> io::Result<Option<Testbed>> {
    match Testbed::new(1) {
        Ok(testbed) => Ok(Some(testbed)),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            eprintln!(
                "lab: {error}; using loopback, which has no queue to poll and can't show what the policies do"
            );
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The path of a program of this project, which is in the folder of this one.
fn program_beside_lab(name: &str) -> Result<PathBuf, Failure> {
    let path = std::env::current_exe()?.with_file_name(name);
    if path.is_file() {
        return Ok(path);
    }
    Err(format!("{} does not exist: build it with cargo build --release", path.display()).into())
}
