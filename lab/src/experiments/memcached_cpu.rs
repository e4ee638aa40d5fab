//! CPU time per request of this project's memcached server and of memcached, one worker thread each.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use loadgen::interleaved_rounds::{DistanceClass, RepeatPolicy, Rounds, figures, ratios};
use loadgen::medians::{MedianRange, median, median_range};
use serde::Serialize;

use super::core_assignment::CoreAssignment;
use super::memcached_process::{MemcachedProcess, spawn_on_core};
use super::turn_conditions::{ConditionsGuard, MeasuredRounds, time_limit};
use crate::Error;

/// Steal, as a share of one core, above which a turn is repeated.
const STEAL_LIMIT: f64 = 0.05;

/// What is compared, and how.
#[derive(Debug, Clone, Serialize)]
pub struct MemcachedCpuConfig {
    /// Path of this project's server.
    pub ours: PathBuf,
    /// Path of the memcached to compare with.
    pub theirs: PathBuf,
    /// Path of this project's loadgen.
    pub loadgen: PathBuf,
    /// The number of rounds.
    pub rounds: usize,
    /// Seconds of a turn.
    pub seconds: f64,
}

/// A load that all servers are measured under.
#[derive(Debug, Clone, Copy, Serialize)]
#[non_exhaustive]
pub struct MemcachedLoad {
    /// The name in the table.
    pub name: &'static str,
    /// loadgen's arguments.
    pub arguments: &'static [&'static str],
}

impl MemcachedLoad {
    /// All loads, in the order of the table.
    pub const ALL: [Self; 4] = [
        Self { name: "get, depth 1", arguments: &["-c", "16", "-d", "1"] },
        Self { name: "get, depth 16", arguments: &["-c", "16", "-d", "16"] },
        Self { name: "ETC mix", arguments: &["-c", "16", "-d", "1", "--etc", "-u", "0.033", "-r", "20000"] },
        Self { name: "multiget of 24", arguments: &["-c", "8", "-d", "1", "--multiget", "24"] },
    ];
}

/// One server under one load.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct MemcachedCpuRow {
    /// The load's name.
    pub load: &'static str,
    /// The class of distance between the cores in which it was measured.
    pub class: DistanceClass,
    /// The server's name.
    pub server: &'static str,
    /// CPU time of the server per request, µs.
    pub cpu_us: MedianRange,
    /// Requests a second, median.
    pub qps: f64,
    /// CPU time of the server over elapsed time, median.
    pub core_busy: f64,
    /// CPU time per request over memcached's in the same round.
    pub ratio_to_memcached: MedianRange,
}

/// A server with its name in the table.
#[derive(Debug)]
struct Contestant {
    name: &'static str,
    process: MemcachedProcess,
}

/// The servers, running. Dropping it kills them.
#[derive(Debug)]
pub struct MemcachedCpuComparison {
    config: MemcachedCpuConfig,
    cores: CoreAssignment,
    contestants: Vec<Contestant>,
}

/// One server measured once.
#[derive(Debug, Clone, Copy, Serialize)]
#[non_exhaustive]
pub struct MemcachedCpuMeasurement {
    /// CPU time of the server per request, µs.
    pub cpu_us: f64,
    /// Requests per second.
    pub qps: f64,
    /// CPU time of the server over elapsed time.
    pub core_busy: f64,
}

/// All servers under one load.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct MemcachedCpuResults {
    /// A row for each server, by class of distance; the class with most rounds first.
    pub rows: Vec<MemcachedCpuRow>,
    /// Every turn.
    pub run: MeasuredRounds<MemcachedCpuMeasurement>,
}

impl MemcachedCpuComparison {
    /// Starts this project's server on two drivers, and memcached.
    ///
    /// # Errors
    /// If a server can't be started.
    pub fn start(config: MemcachedCpuConfig, cores: CoreAssignment) -> Result<Self, Error> {
        let ours = |driver| ["-u", "root", "--driver", driver, "-t", "1", "-m", "256"];
        let theirs = ["-u", "root", "-l", "127.0.0.1", "-t", "1", "-m", "256"];
        let start = |name, program: &Path, arguments: &[&str]| {
            MemcachedProcess::start(program, arguments, cores.server)
                .map(|process| Contestant { name, process })
        };
        let contestants = vec![
            start("lull, uring", &config.ours, &ours("uring"))?,
            start("lull, epoll", &config.ours, &ours("epoll"))?,
            start("memcached", &config.theirs, &theirs)?,
        ];
        Ok(Self { config, cores, contestants })
    }

    /// What the programs print with `-V`, by name.
    ///
    /// # Errors
    /// If a program can't be run.
    pub fn versions(&self) -> Result<[(&'static str, String); 2], Error> {
        let version = |program: &Path| {
            let output = Command::new(program).arg("-V").output();
            let output = output.map_err(|error| Error::program(program, error))?;
            if !output.status.success() {
                let error = std::io::Error::other(format!("-V failed: {}", output.status));
                return Err(Error::program(program, error));
            }
            Ok::<_, Error>(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        Ok([("lull", version(&self.config.ours)?), ("memcached", version(&self.config.theirs)?)])
    }

    /// Measures all servers under a load.
    ///
    /// # Errors
    /// If loadgen fails, or if a server exits.
    pub fn measure(&self, load: &MemcachedLoad) -> Result<MemcachedCpuResults, Error> {
        for contestant in &self.contestants {
            self.run_loadgen(contestant, load, &["--loadonly"])?;
        }
        let seconds = self.config.seconds * (self.contestants.len() * self.config.rounds) as f64;
        let mut rounds = Rounds::new(self.contestants.len(), self.config.rounds)
            .repeat_above(STEAL_LIMIT, RepeatPolicy::Always)
            .time_limit(time_limit(seconds));
        while let Some(turn) = rounds.next_turn() {
            let contestant = &self.contestants[turn.contestant()];
            let guard = ConditionsGuard::begin(self.cores)?;
            let measurement = self.measure_once(contestant, load)?;
            rounds.finish_turn(turn, Some(measurement), guard.end()?);
        }
        let names = self.contestants.iter().map(|contestant| contestant.name.to_owned()).collect();
        let run =
            MeasuredRounds { load: load.name.to_owned(), contestants: names, finished: rounds.finish() };
        let memcached = self.contestants.len() - 1;
        let mut rows = Vec::new();
        for in_class in run.finished.classes.iter().filter(|class| !class.rounds.is_empty()) {
            let rounds = &in_class.rounds;
            rows.extend(self.contestants.iter().enumerate().map(|(index, contestant)| MemcachedCpuRow {
                load: load.name,
                class: in_class.class,
                server: contestant.name,
                cpu_us: median_range(&figures(rounds, index, |it| it.cpu_us)),
                qps: median(&figures(rounds, index, |it| it.qps)),
                core_busy: median(&figures(rounds, index, |it| it.core_busy)),
                ratio_to_memcached: median_range(&ratios(rounds, index, memcached, |it| it.cpu_us)),
            }));
        }
        Ok(MemcachedCpuResults { rows, run })
    }

    /// Measures one server.
    fn measure_once(
        &self,
        contestant: &Contestant,
        load: &MemcachedLoad,
    ) -> Result<MemcachedCpuMeasurement, Error> {
        let server = &contestant.process;
        let requests = || server.counters(&["cmd_get", "cmd_set"]);
        let (before, cpu, begun) = (requests()?, server.cpu_seconds()?, Instant::now());
        let seconds = self.config.seconds.to_string();
        self.run_loadgen(contestant, load, &["--noload", "-t", &seconds, "-w", "0.3"])?;
        let count = (requests()? - before) as f64;
        if count == 0.0 {
            return Err(Error::program(
                &self.config.loadgen,
                format!("sent no request to {}", contestant.name),
            ));
        }
        let cpu = server.cpu_seconds()? - cpu;
        let elapsed = begun.elapsed().as_secs_f64();
        Ok(MemcachedCpuMeasurement {
            cpu_us: cpu * 1e6 / count,
            qps: count / elapsed,
            core_busy: cpu / elapsed,
        })
    }

    fn run_loadgen(
        &self,
        contestant: &Contestant,
        load: &MemcachedLoad,
        arguments: &[&str],
    ) -> Result<(), Error> {
        let mut command = Command::new(&self.config.loadgen);
        command.args(["-s", &contestant.process.address().to_string()]).args(load.arguments).args(arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let status = spawn_on_core(self.cores.client, &mut command)?.wait()?;
        if status.success() {
            return Ok(());
        }
        let reason = format!("exited ({status}) with load {:?} on {}", load.name, contestant.name);
        Err(Error::program(&self.config.loadgen, reason))
    }
}
