//! The subcommands that load servers with a fleet.

use std::io;
use std::time::Duration;

use lab::experiments::fleet_comparison::{
    Contender, FleetComparison, FleetComparisonConfig, Reference, ServerCommand, requests_for,
};
use lab::experiments::policy_comparison::PolicyComparison;
use lab::experiments::{Contestant, CoreAssignment};
use lab::fleet::FleetRequests;
use lab::idle_cores::AwakeCores;
use lab::peers::PeerService;
use lab::polling_config::PollingConfig;
use lab::report::{FleetReport, SelfTestReport};
use lab::testbed::Testbed;
use policies::Policy;
use runtime::DriverKind;

use crate::commands::{kernel_client_report, new_comparison};
use crate::flags::{AttachFlags, ComparisonFlags, PeerFlags, RunFlags, SelfTestFlags};
use crate::output::{Failure, create_file, keep_report, write_report};
use crate::progress_bar::{begin_step, progress_bar};

/// Compares under a fleet on the testbed, or without permission to create one under a kernel client on loopback.
pub fn compare(flags: &ComparisonFlags, contestants: Vec<Contestant>) -> Result<(), Failure> {
    let comparison = new_comparison(flags, contestants)?;
    if comparison.has_testbed() {
        return compare_policies(flags, comparison);
    }
    let run = &flags.run;
    let of_fleet = !run.rates.is_empty() || run.capacity_p99.is_some();
    if of_fleet || flags.memcached.is_some() || flags.depth != 1 || flags.think != 0 {
        return Err("--memcached, --rates, --capacity-p99, --depth and --think are of the fleet, which needs the testbed; leave them out, or run as root without --loopback".into());
    }
    let file = create_file(flags.run.report.output.as_deref())?;
    let report = kernel_client_report(comparison)?;
    write_report(flags.run.report.format, file, &report, || report.text())
}

/// Compares this project's memcached server under several policies or drivers.
fn compare_policies(flags: &ComparisonFlags, kernel_client: PolicyComparison) -> Result<(), Failure> {
    let file = create_file(flags.run.report.output.as_deref())?;
    // Also under the kernel client; both comparisons are one report.
    let _awake = (!flags.cores_sleep).then(AwakeCores::request);
    let contestants = &kernel_client.config.contestants;
    let named = flags.contenders.iter().map(|named| named.contender(flags.wait));
    let mut contenders: Vec<Contender> = named.collect();
    if contenders.is_empty() {
        contenders = Contender::lull(contestants, &flags.polling(), flags.wait);
    }
    contenders.extend(
        flags
            .memcached
            .clone()
            .map(|program| Contender::Program { server: ServerCommand::memcached(program), attached: None }),
    );
    let config = FleetComparisonConfig::new(contenders, flags.run.quick);
    let mut report = measure(flags, config, kernel_client.cores)?;
    if !flags.run.quick && flags.run.rates.is_empty() {
        report.kernel_client = Some(kernel_client_report(kernel_client)?);
    }
    keep_report(&report);
    write_report(flags.run.report.format, file, &report, || report.text())
}

/// Compares a service on other runtimes, as they run, with the same on Lull under each policy.
pub fn compare_peers(flags: &PeerFlags) -> Result<(), Failure> {
    let service = flags.service()?;
    let flags = &flags.comparison;
    let file = create_file(flags.run.report.output.as_deref())?;
    let mut config =
        FleetComparisonConfig::new(Contender::peers(service, flags.polling()[0]), flags.run.quick);
    config.requests = requests_for(service);
    config.reference = Reference::First;
    if !flags.run.quick {
        config.shares = vec![0.25, 0.5, 0.9];
    }
    config.closed_loop |= service == PeerService::Threads;
    let report = measure(flags, config, flags.cores()?)?;
    write_report(flags.run.report.format, file, &report, || report.text())
}

/// Compares a server of another project, as it runs, with the same under kernel polling from outside.
pub fn attach(flags: &AttachFlags) -> Result<(), Failure> {
    let server = match &flags.server {
        Some(command) => ServerCommand::shell(command)?,
        None => {
            let server = ServerCommand::memcached(flags.memcached.clone());
            let hint = "install it (Debian: apt-get install memcached), or name another path with --memcached or \
                        another server with --server";
            server.check_installed(hint)?;
            server
        }
    };
    require_testbed("attach")?;
    let mut config = FleetComparisonConfig::attached(&server, &flags.latency_budget, flags.run.quick);
    if let Some(request) = &flags.request {
        let request = with_escapes(request)?;
        config.requests = FleetRequests::Text { request, reply: None };
    }
    set_run(&mut config, &flags.run);
    let file = create_file(flags.run.report.output.as_deref())?;
    let report = run(config, CoreAssignment::choose()?)?;
    write_report(flags.run.report.format, file, &report, || report.text())
}

/// Fails without permission to create a testbed.
pub fn require_testbed(command: &str) -> Result<(), Failure> {
    match Testbed::new(1) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(format!(
            "{error}; `lab {command}` needs root: kernel polling is a setting of a queue, and loopback has none"
        )
        .into()),
        Err(error) => Err(error.to_string().into()),
    }
}

/// A request from the command line, in which `\r`, `\n` and `\\` stand for what they do in C.
fn with_escapes(text: &str) -> Result<String, Failure> {
    let mut request = String::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        request.push(match character {
            '\\' => match characters.next() {
                Some('r') => '\r',
                Some('n') => '\n',
                Some('\\') => '\\',
                other => {
                    let other = other.map(String::from).unwrap_or_default();
                    return Err(format!("--request: \\{other} is none of \\r, \\n and \\\\").into());
                }
            },
            character => character,
        });
    }
    if request.is_empty() {
        return Err("--request is empty".into());
    }
    Ok(request)
}

/// Compares a server with itself, and with one that computes longer for each request.
pub fn self_test(flags: &SelfTestFlags) -> Result<(), Failure> {
    let work = Duration::from_micros(flags.work.into());
    let server =
        |work| Contender::lull_echo(Policy::Vanilla, DriverKind::Epoll, PollingConfig::default(), work);
    let contenders = vec![server(Duration::ZERO), server(Duration::ZERO), server(work)];
    let mut config = FleetComparisonConfig::new(contenders, true);
    config.requests = requests_for(PeerService::Echo);
    config.reference = Reference::First;
    // Low enough that the slowest server is far from saturated: a busier server batches more.
    config.shares = vec![0.25];
    config.capacity_share = 0.3;
    config.rounds = flags.rounds.into();
    let report = SelfTestReport::new(run(config, CoreAssignment::choose()?)?, work);
    write_report(flags.format, None, &report, || report.text())?;
    if report.passed() { Ok(()) } else { Err(report.verdict().into()) }
}

/// Runs a comparison with what the flags say of it.
fn measure(
    flags: &ComparisonFlags,
    mut config: FleetComparisonConfig,
    cores: CoreAssignment,
) -> Result<FleetReport, Failure> {
    config.depth = flags.depth.into();
    config.think_us = flags.think.into();
    set_run(&mut config, &flags.run);
    if !flags.contenders.is_empty() {
        config.reference = Reference::First;
    }
    run_with(config, cores, !flags.cores_sleep)
}

fn set_run(config: &mut FleetComparisonConfig, flags: &RunFlags) {
    config.connections = flags.connections.into();
    config.rates = flags.rates.iter().copied().map(f64::from).collect();
    if let Some(rounds) = flags.rounds {
        (config.rounds, config.capacity_rounds) = (rounds.into(), rounds.into());
    }
    if let Some(micros) = flags.capacity_p99 {
        config.capacity_p99_us = micros.into();
    }
}

/// Runs a comparison on these cores.
pub fn run(config: FleetComparisonConfig, cores: CoreAssignment) -> Result<FleetReport, Failure> {
    run_with(config, cores, true)
}

/// The same; idle cores are kept awake, or left as the machine has them.
fn run_with(
    config: FleetComparisonConfig,
    cores: CoreAssignment,
    keeps_awake: bool,
) -> Result<FleetReport, Failure> {
    if cores.server == cores.client {
        return Err("a fleet needs a core of its own, and this process may use one core only".into());
    }
    let awake = keeps_awake.then(AwakeCores::request);
    let searches = usize::from(config.searches_capacity());
    let rounds = (config.loads() - searches) * config.rounds + searches * config.capacity_rounds;
    let bar = progress_bar(rounds * config.contenders.len());
    let comparison = FleetComparison::start(config.clone(), cores)?;
    let result = comparison.run(|message| begin_step(&bar, message))?;
    bar.finish_and_clear();
    Ok(FleetReport::new(config, cores, matches!(awake, Some(Ok(_))), result))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ends_of_a_request_are_written_as_in_c() {
        assert_eq!(
            with_escapes(r"GET / HTTP/1.1\r\nHost: a\\b\r\n\r\n").unwrap(),
            "GET / HTTP/1.1\r\nHost: a\\b\r\n\r\n"
        );
        for wrong in [r"\t", "PING\\", ""] {
            assert!(with_escapes(wrong).unwrap_err().to_string().starts_with("--request"), "{wrong}");
        }
    }
}
