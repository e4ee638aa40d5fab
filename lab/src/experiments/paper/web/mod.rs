//! Table 2: nginx under wrk, as it runs and attached to.

mod servers;
mod wrk;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use loadgen::interleaved_rounds::{RepeatPolicy, Rounds};

use self::servers::{WebContestant, WebRoot, contestants, url};
use super::super::core_assignment::CoreAssignment;
use super::super::fleet_comparison::{RunningServer, ServerFigures};
use super::super::memcached_process::spawn_on_core;
use super::super::steal::STEAL_LIMIT;
use super::super::turn_conditions::{ConditionsGuard, MeasuredRounds, name_classes};
use super::config::PaperConfig;
use super::measured::{Figure, FigureCollector, LoadKind, MeasuredLoad, MeasuredRow, PartResult};
use super::part::Part;
use super::programs::{Program, Programs};
use crate::Error;
use crate::testbed::{CLIENT_INTERFACE, QueueThread, poll_by_thread};

/// How long a first reply may take.
const FIRST_REPLY: Duration = Duration::from_secs(5);

/// A server that runs, and the connection by which it is attached to.
struct RunningWeb {
    contestant: WebContestant,
    server: RunningServer,
    /// Its queue would not be known without a connection, and wrk closes its own after each turn.
    _connection: TcpStream,
}

/// A turn.
struct WebTurn {
    rate: f64,
    p50: f64,
    p99: f64,
    figures: ServerFigures,
}

/// The number of contenders, of which some may not start.
pub(super) fn contenders(config: &PaperConfig, programs: &Programs) -> usize {
    1 + config.attached_budgets.len() + if programs.web.is_some() { 2 } else { 0 }
}

pub(super) fn measure(
    config: &PaperConfig,
    cores: CoreAssignment,
    programs: &Programs,
    (nginx, wrk): (&Program, &Program),
    progress: &mut dyn FnMut(&str),
) -> Result<PartResult, Error> {
    let root = WebRoot::create(&config.file_sizes)?;
    let mut notes = vec![
        "a turn begins with the policy that a server is in when it is idle: attached, the first 50 ms or more of a turn \
         are under plain interrupts"
            .to_owned(),
    ];
    if programs.web.is_none() {
        notes.push("Lull's own web server: not installed (no program `web` beside lab)".to_owned());
    } else {
        notes.push(
            "Lull's web is asked for the policy that its row names by RUNTIME_POLICY; whether it runs is not verified"
                .to_owned(),
        );
    }
    let mut running = Vec::new();
    for contestant in contestants(config, programs, nginx, &root)? {
        let (name, optional) = (contestant.contender.name(), contestant.optional);
        match start(contestant, cores, config) {
            Ok(web) => running.push(web),
            Err(error) if optional => notes.push(format!("{name}: not measured: {error}")),
            Err(error) => return Err(error),
        }
    }
    // Of each size.
    let limit = config.limit(Part::Web, running.len(), 1);
    let (mut measured, mut invalid, mut failure) = (Vec::new(), Vec::new(), None);
    for &size in &config.file_sizes {
        match measure_size(size, &mut running, cores, config, wrk, limit, progress) {
            Ok((rounds, reason)) => {
                measured.push(rounds);
                invalid.push(reason);
            }
            Err(error) if measured.is_empty() => return Err(error),
            // What was measured before is not lost.
            Err(error) => {
                failure = Some(format!("{}: {error}", size_name(size)));
                break;
            }
        }
    }
    name_classes(&mut measured);
    notes.extend(measured.iter().zip(invalid).map(|(rounds, reason)| {
        rounds.summary() + &reason.map(|it| format!(", for example: {it}")).unwrap_or_default()
    }));
    let loads = config.file_sizes.iter().zip(&measured);
    let loads = loads.flat_map(|(&size, rounds)| size_loads(size, rounds, &running)).collect();
    let workload = format!(
        "wrk with one thread and {} connections on one core; files from the page cache",
        config.wrk_connections
    );
    let reference = running.first().map(|web| web.contestant.contender.name()).unwrap_or_default();
    let mut part = PartResult { reference, workload, loads, notes, failure };
    part.sort_classes();
    Ok(part)
}

/// Measures all contestants with files of one size. Returns the rounds, and why a turn was not valid, if one was not.
fn measure_size(
    size: usize,
    running: &mut [RunningWeb],
    cores: CoreAssignment,
    config: &PaperConfig,
    wrk: &Program,
    limit: Duration,
    progress: &mut dyn FnMut(&str),
) -> Result<(MeasuredRounds<WebTurn>, Option<String>), Error> {
    let name = size_name(size);
    let mut rounds = Rounds::new(running.len(), config.rounds)
        .time_limit(limit)
        .repeat_above(STEAL_LIMIT, RepeatPolicy::Within(limit / 2));
    let mut invalid = None;
    while let Some(turn) = rounds.next_turn() {
        let web = &mut running[turn.contestant()];
        progress(&format!("{name}: {}, round {}", web.contestant.contender.name(), turn.round() + 1));
        let guard = ConditionsGuard::begin(cores)?;
        let measured = measure_turn(web, wrk, config, size)?;
        // Steal of the client's core counts, too: wrk does not leave pauses of its core out of its latencies, as a fleet does.
        let conditions = guard.end()?;
        let value = measured.map_err(|reason| invalid = Some(reason)).ok();
        rounds.finish_turn(turn, value, conditions);
    }
    let contestants = running.iter().map(|web| web.contestant.contender.name()).collect();
    Ok((MeasuredRounds { load: name, contestants, finished: rounds.finish() }, invalid))
}

/// The rows of one size, for each distance of the cores.
fn size_loads(size: usize, measured: &MeasuredRounds<WebTurn>, running: &[RunningWeb]) -> Vec<MeasuredLoad> {
    let classes = measured.finished.classes.iter().filter(|class| !class.rounds.is_empty());
    let loads = classes.map(|class| {
        let rows = running.iter().enumerate().map(|(index, web)| {
            let mut figures = FigureCollector::new(&class.rounds, index, 0);
            figures.add(Figure::Throughput, |turn: &WebTurn| Some(turn.rate));
            figures.add(Figure::P50, |turn| Some(turn.p50));
            figures.add(Figure::P99, |turn| Some(turn.p99));
            figures.add_server(|turn| turn.figures);
            MeasuredRow {
                system: web.contestant.contender.name(),
                published: web.contestant.published.map(str::to_owned),
                figures: figures.figures,
            }
        });
        MeasuredLoad {
            name: measured.load.clone(),
            kind: LoadKind::Closed,
            at: size as f64,
            class: class.class,
            rounds: class.rounds.len(),
            rows: rows.collect(),
        }
    });
    loads.collect()
}

fn start(
    contestant: WebContestant,
    cores: CoreAssignment,
    config: &PaperConfig,
) -> Result<RunningWeb, Error> {
    let mut server = RunningServer::start(&contestant.contender, cores, 0)?;
    poll_by_thread(&server.testbed.client, CLIENT_INTERFACE, cores.client, QueueThread::Client)?;
    let address = server.address;
    let size = config.file_sizes.first().copied().unwrap_or(0);
    let connection = server.testbed.client.run(|| first_reply(address, size))?;
    server.attach(&contestant.contender)?;
    Ok(RunningWeb { contestant, server, _connection: connection })
}

/// Asks for a file, and returns the connection, which stays open.
fn first_reply(address: SocketAddr, size: usize) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(FIRST_REPLY))?;
    write!(stream, "GET /{size} HTTP/1.1\r\nHost: lab\r\n\r\n")?;
    let (mut reply, mut buffer) = (Vec::new(), [0; 4096]);
    // The whole reply, so that the server waits for the next request.
    loop {
        let received = stream.read(&mut buffer)?;
        reply.extend_from_slice(&buffer[..received]);
        let end = reply.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        if received == 0 || end.is_some_and(|end| reply.len() >= end + 4 + size) {
            break;
        }
    }
    if reply.starts_with(b"HTTP/1.1 200 ") {
        return Ok(stream);
    }
    let line = String::from_utf8_lossy(&reply).lines().next().unwrap_or_default().to_owned();
    Err(io::Error::other(format!("the server answered {line:?} instead of the file")))
}

/// Runs wrk once. The inner error is why the turn is not valid.
fn measure_turn(
    web: &mut RunningWeb,
    program: &Program,
    config: &PaperConfig,
    size: usize,
) -> Result<Result<WebTurn, String>, Error> {
    let before = web.server.read()?;
    let core = web.server.cores.client;
    let output = web.server.testbed.client.run(|| {
        let mut command = wrk::command(&program.path, config.wrk_connections, config.wrk_seconds, &url(size));
        spawn_on_core(core, &mut command).map_err(io::Error::other)?.wait_with_output()
    })?;
    let after = web.server.read()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let Some(measured) = wrk::parse(&text) else {
        let error = String::from_utf8_lossy(&output.stderr);
        return Ok(Err(format!("wrk printed no result: {}", error.lines().next().unwrap_or_default())));
    };
    if let Some(errors) = measured.errors {
        return Ok(Err(errors));
    }
    let (cores, receiver) = (web.server.cores, web.server.receiver);
    let figures = ServerFigures::between(&before, &after, cores, receiver, measured.requests);
    if let Some(reason) = after.detached() {
        return Ok(Err(reason));
    }
    Ok(Ok(WebTurn { rate: measured.rate, p50: measured.p50, p99: measured.p99, figures }))
}

/// For example `16 KiB`.
fn size_name(size: usize) -> String {
    match size {
        size if size >= 1 << 20 && size.is_multiple_of(1 << 20) => format!("{} MiB", size >> 20),
        size if size >= 1 << 10 && size.is_multiple_of(1 << 10) => format!("{} KiB", size >> 10),
        size => format!("{size} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_named_in_the_largest_unit_that_divides_them() {
        assert_eq!(
            [64, 1024, 16 << 10, 1 << 20, 1500].map(size_name),
            ["64 B", "1 KiB", "16 KiB", "1 MiB", "1500 B"]
        );
    }
}
