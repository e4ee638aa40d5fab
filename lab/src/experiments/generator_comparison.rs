//! Load generators compared: how many requests each generates per second of its CPU time, against one memcached.
//! mutilate and mc-crusher have to be built elsewhere.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use loadgen::interleaved_rounds::{DistanceClass, FinishedRounds, RepeatPolicy, Rounds, figures, ratios};
use loadgen::medians::{Interval, median_interval};
use procfs::process::Process;
use serde::Serialize;

use super::core_assignment::CoreAssignment;
use super::memcached_process::{MemcachedProcess, spawn_on_core};
use super::steal::STEAL_LIMIT;
use super::turn_conditions::{ConditionsGuard, MeasuredRounds, classes_by_rounds, name_classes, time_limit};
use crate::Error;

/// What is compared, and how.
#[derive(Debug, Clone, Serialize)]
pub struct GeneratorComparisonConfig {
    /// Path of the memcached server.
    pub memcached: PathBuf,
    /// Path of this project's loadgen.
    pub loadgen: PathBuf,
    /// Path of mutilate; `None` leaves it out.
    pub mutilate: Option<PathBuf>,
    /// Path of mc-crusher; `None` leaves it out.
    pub mc_crusher: Option<PathBuf>,
    /// Requests in flight on each connection; each value is a comparison.
    pub depths: Vec<u16>,
    /// The number of connections.
    pub connections: u16,
    /// Seconds of a turn.
    pub seconds: u16,
    /// The number of rounds.
    pub rounds: usize,
}

/// One generator at one depth.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct GeneratorRow {
    /// The generator's name.
    pub generator: String,
    /// The class of distance between the cores in which it was measured.
    pub class: DistanceClass,
    /// Requests in flight on each connection.
    pub depth: u16,
    /// Requests a second, counted by the server.
    pub qps: Interval,
    /// CPU time of the generator per request, µs.
    pub cpu_us: Interval,
    /// Requests per second of CPU time over those of the first generator in the same round; `None` for the first.
    pub ratio: Option<Interval>,
}

const RECORDS: u64 = 10_000;
const VALUE_BYTES: usize = 200;
/// The prefix of mc-crusher's keys. A number follows; most keys have 30 bytes, as those of the other generators.
const CRUSHER_PREFIX: &str = "crusher-------------------";
const CRUSHER_NAME: &str = "mc-crusher";

/// What a comparison of generators measured.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct GeneratorResults {
    /// A row for each generator and depth, by class of distance; the class with most rounds first.
    pub rows: Vec<GeneratorRow>,
    /// Every turn at each depth.
    pub runs: Vec<MeasuredRounds<GeneratorMeasurement>>,
}

/// Compares the generators. Calls `progress` before each turn.
///
/// # Errors
/// If a program can't be started, or generates no load.
pub fn compare_generators(
    config: &GeneratorComparisonConfig,
    cores: CoreAssignment,
    mut progress: impl FnMut(&str),
) -> Result<GeneratorResults, Error> {
    let arguments = ["-u", "root", "-l", "127.0.0.1", "-t", "1", "-m", "256"];
    let server = MemcachedProcess::start(&config.memcached, &arguments, cores.server)?;
    let loaded = Command::new(&config.loadgen)
        .args(["-s", &server.address().to_string(), "--loadonly", "--quiet", "-K", "30"])
        .args(["-V", &VALUE_BYTES.to_string(), "-r", &RECORDS.to_string()])
        .stderr(Stdio::null())
        .status()
        .map_err(|error| Error::program(&config.loadgen, error))?;
    if !loaded.success() {
        return Err(Error::program(&config.loadgen, format!("could not store the records ({loaded})")));
    }
    store_crusher_records(server.address())?;
    let crusher_config = std::env::temp_dir().join(format!("lab-{}.conf", std::process::id()));
    let mut runs = Vec::new();
    for &depth in &config.depths {
        let lines = format!(
            "send=ascii_get,recv=blind_read,conns={},key_prefix={CRUSHER_PREFIX},key_count={RECORDS},pipelines={depth}\n",
            config.connections
        );
        std::fs::write(&crusher_config, lines).map_err(|error| Error::program(&crusher_config, error))?;
        let generators = generators(config, depth, server.address(), &crusher_config);
        let compared = compare_at_depth(&generators, &server, cores, config, |round, name| {
            progress(&format!("depth {depth}, round {}, {name}", round + 1));
        });
        // A file that is left behind does no harm.
        let _ = std::fs::remove_file(&crusher_config);
        runs.push(MeasuredRounds {
            load: format!("depth {depth}"),
            contestants: generators.iter().map(|generator| generator.name.to_owned()).collect(),
            finished: compared?,
        });
    }
    name_classes(&mut runs);
    let mut rows = Vec::new();
    for class in classes_by_rounds(&runs) {
        for (&depth, run) in config.depths.iter().zip(&runs) {
            let in_class = run.finished.classes.iter().find(|it| it.class == class && !it.rounds.is_empty());
            let Some(rounds) = in_class.map(|it| &it.rounds) else { continue };
            rows.extend(run.contestants.iter().enumerate().map(|(index, name)| GeneratorRow {
                generator: name.clone(),
                class,
                depth,
                qps: median_interval(&figures(rounds, index, |it| it.qps)),
                cpu_us: median_interval(&figures(rounds, index, |it| it.cpu_us)),
                ratio: (index > 0).then(|| median_interval(&ratios(rounds, index, 0, |it| 1.0 / it.cpu_us))),
            }));
        }
    }
    Ok(GeneratorResults { rows, runs })
}

/// Measures all generators in rounds.
fn compare_at_depth(
    generators: &[Generator<'_>],
    server: &MemcachedProcess,
    cores: CoreAssignment,
    config: &GeneratorComparisonConfig,
    mut progress: impl FnMut(usize, &str),
) -> Result<FinishedRounds<GeneratorMeasurement>, Error> {
    let seconds = f64::from(config.seconds) * (generators.len() * config.rounds) as f64;
    let mut rounds = Rounds::new(generators.len(), config.rounds)
        .repeat_above(STEAL_LIMIT, RepeatPolicy::Once)
        .time_limit(time_limit(seconds));
    while let Some(turn) = rounds.next_turn() {
        let generator = &generators[turn.contestant()];
        if !turn.is_repeat() {
            progress(turn.round(), generator.name);
        }
        let guard = ConditionsGuard::begin(cores)?;
        let measured = measure(generator, server, cores.client)?;
        rounds.finish_turn(turn, Some(measured), guard.end()?);
    }
    Ok(rounds.finish())
}

/// Stores mc-crusher's records, which it would not store itself in order.
fn store_crusher_records(server: SocketAddr) -> Result<(), Error> {
    let mut stream = TcpStream::connect(server)?;
    let mut replies = BufReader::new(stream.try_clone()?);
    let value = "x".repeat(VALUE_BYTES);
    let mut line = String::new();
    for record in 0..RECORDS {
        let request = format!("set {CRUSHER_PREFIX}{record} 0 0 {VALUE_BYTES}\r\n{value}\r\n");
        stream.write_all(request.as_bytes())?;
        line.clear();
        replies.read_line(&mut line)?;
        if line != "STORED\r\n" {
            return Err(Error::Reply(line));
        }
    }
    Ok(())
}

/// CPU time of this process's exited children, in seconds.
fn children_cpu() -> io::Result<f64> {
    let stat = Process::myself().and_then(|process| process.stat()).map_err(io::Error::other)?;
    Ok((stat.cutime + stat.cstime) as f64 / procfs::ticks_per_second() as f64)
}

/// A generator and its arguments for one turn.
struct Generator<'a> {
    name: &'static str,
    path: &'a Path,
    arguments: Vec<String>,
}

fn generators<'a>(
    config: &'a GeneratorComparisonConfig,
    depth: u16,
    server: SocketAddr,
    crusher_config: &Path,
) -> Vec<Generator<'a>> {
    let GeneratorComparisonConfig { connections, seconds, .. } = config;
    let split = |line: String| -> Vec<String> { line.split_whitespace().map(str::to_owned).collect() };
    let mutilate = config.mutilate.as_deref().map(|path| Generator {
        name: "mutilate -B",
        path,
        arguments: split(format!(
            "-s {server} --noload -K 30 -V {VALUE_BYTES} -r {RECORDS} -T 1 -c {connections} -d {depth} -t {seconds} -B"
        )),
    });
    let crusher = config.mc_crusher.as_deref().map(|path| Generator {
        name: CRUSHER_NAME,
        path,
        arguments: [
            split(format!("--ip {} --port {} --timeout {seconds} --conf", server.ip(), server.port())),
            vec![crusher_config.display().to_string()],
        ]
        .concat(),
    });
    let loadgen = Generator {
        name: "loadgen",
        path: &config.loadgen,
        arguments: split(format!(
            "-s {server} --noload -K 30 -V {VALUE_BYTES} -r {RECORDS} -c {connections} -d {depth} -t {seconds} -w 0 --quiet"
        )),
    };
    [Some(loadgen), mutilate, crusher].into_iter().flatten().collect()
}

/// One generator measured once.
#[derive(Debug, Clone, Copy, Serialize)]
#[non_exhaustive]
pub struct GeneratorMeasurement {
    /// Requests per second.
    pub qps: f64,
    /// CPU time of the generator per request, µs.
    pub cpu_us: f64,
}

fn measure(
    generator: &Generator<'_>,
    server: &MemcachedProcess,
    core: u32,
) -> Result<GeneratorMeasurement, Error> {
    let gets = || server.counters(&["cmd_get"]);
    let (before, cpu, begun) = (gets()?, children_cpu()?, Instant::now());
    let mut command = Command::new(generator.path);
    command.args(&generator.arguments).stdout(Stdio::null()).stderr(Stdio::null());
    let status = spawn_on_core(core, &mut command)?.wait()?;
    let (seconds, count) = (begun.elapsed().as_secs_f64(), gets()? - before);
    // The server counts, so loadgen may call its own measurement invalid (3). mc-crusher's exit status is whatever a
    // register holds.
    let ended = status.success() || status.code() == Some(3) || generator.name == CRUSHER_NAME;
    if count == 0 || !ended {
        let reason = format!("exited ({status}) after {count} requests");
        return Err(Error::program(generator.path, reason));
    }
    let cpu_us = (children_cpu()? - cpu) * 1e6 / count as f64;
    Ok(GeneratorMeasurement { qps: count as f64 / seconds, cpu_us })
}
