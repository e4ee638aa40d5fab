//! Table 2: nginx under wrk, as it runs and attached to.

mod servers;
mod wrk;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use self::servers::{WebContestant, WebRoot, contestants, url};
use super::config::PaperConfig;
use super::part::Part;
use super::part_result::PartResult;
use super::programs::{Program, Programs};
use crate::Error;
use crate::engine::{CoreAssignment, Figure, LoadKind, LoadPlan, Runner, Turn};
use crate::experiment::{RunningServer, host_turn, spawn_on_core};
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
    let names: Vec<String> = running.iter().map(|web| web.contestant.contender.name()).collect();
    let mut runner = Runner::new(cores, progress);
    let mut failure = None;
    for &size in &config.file_sizes {
        let plan = LoadPlan::new(size_name(size), LoadKind::Closed, size as f64, config.rounds, limit);
        // Steal of the client's core counts, too: wrk does not leave pauses of its core out of its latencies, as a fleet does.
        let measured =
            runner.measure(plan, &names, |index| measure_turn(&mut running[index], wrk, config, size));
        match measured {
            Ok(()) => {}
            Err(error) if runner.last().is_none() => return Err(error),
            // What was measured before is not lost.
            Err(error) => {
                failure = Some(format!("{}: {error}", size_name(size)));
                break;
            }
        }
    }
    let results = runner.finish(&[0]);
    notes.extend(results.notes);
    let workload = format!(
        "wrk with one thread and {} connections on one core; files from the page cache",
        config.wrk_connections
    );
    Ok(PartResult {
        reference: names.first().cloned().unwrap_or_default(),
        published: running.iter().map(|web| web.contestant.published.map(str::to_owned)).collect(),
        workload,
        loads: results.loads,
        notes,
        failure,
    })
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

/// Runs wrk once.
fn measure_turn(
    web: &mut RunningWeb,
    program: &Program,
    config: &PaperConfig,
    size: usize,
) -> Result<Turn, Error> {
    let before = web.server.read()?;
    let core = web.server.cores.cores.client;
    let output = web.server.testbed.client.run(|| {
        let mut command = wrk::command(&program.path, config.wrk_connections, config.wrk_seconds, &url(size));
        spawn_on_core(core, &mut command).map_err(io::Error::other)?.wait_with_output()
    })?;
    let after = web.server.read()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let Some(measured) = wrk::parse(&text) else {
        let error = String::from_utf8_lossy(&output.stderr);
        return Ok(Turn::invalid(format!(
            "wrk printed no result: {}",
            error.lines().next().unwrap_or_default()
        )));
    };
    let mut turn = host_turn(&before, &after, web.server.cores, measured.requests);
    turn.set(Figure::Throughput, measured.rate);
    turn.set(Figure::P50, measured.p50);
    turn.set(Figure::P99, measured.p99);
    turn.steal = None;
    turn.invalid = measured.errors.or(turn.invalid);
    Ok(turn)
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
