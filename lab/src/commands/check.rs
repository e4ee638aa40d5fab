//! Whether a machine can show differences between policies at all, and what to change if not.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use loadgen::medians::{Interval, median, median_interval};
use policies::Cpus;
use policies::host::Machine;
use serde::Serialize;

use crate::Error;
use crate::cores::{AwakeCores, CoreAssignment, joined};
use crate::report::{Document, Section, Table};
use crate::rounds::{Figure, LoadKind, LoadPlan, LoadResult, Results, Runner, STEAL_LIMIT, Turn};
use crate::testbed::Testbed;

/// A wake-up that takes longer shows in latencies below saturation, µs.
const SLOW_WAKE_UP_US: f64 = 10.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    Good,
    Info,
    /// Results are noisier or say less.
    Warning,
    /// Results say nothing, or an experiment can't run.
    Bad,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    pub subject: &'static str,
    pub level: Level,
    pub found: String,
    /// What to change; empty if nothing.
    pub advice: String,
}

impl Finding {
    fn new(subject: &'static str, level: Level, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { subject, level, found: found.into(), advice: advice.into() }
    }
}

#[derive(Debug, Serialize)]
pub struct MachineCheck {
    pub machine: Machine,
    pub cores: CoreAssignment,
    pub findings: Vec<Finding>,
    /// The least difference that the machine can show, as a share. `None` if it was not measured.
    pub resolution: Option<f64>,
    pub verdict: String,
}

/// Checks the machine for about `duration`. `rounds` is the number of rounds of a full run, for
/// which the verdict is.
pub fn check_machine(duration: Duration, rounds: usize) -> Result<MachineCheck, Error> {
    let cores = CoreAssignment::choose()?;
    let mut findings = vec![usable_cores(Cpus::allowed()?.len()), other_load(duration / 10)?];
    let mut shows = None;
    if cores.server != cores.client {
        let asleep = wake_up_us(cores.client, cores.server)?;
        // As experiments run.
        let awake = AwakeCores::request().and_then(|_awake| wake_up_us(cores.client, cores.server)).ok();
        findings.push(wake_up(asleep, awake));
        let observed = observe(cores, duration.mul_f64(0.9))?;
        findings.extend([distance(&observed), steal(&observed)]);
        shows = resolution(&observed, rounds);
    }
    let clock = |file: &str| read(Path::new("/sys/devices/system/clocksource/clocksource0").join(file));
    findings.push(clock_source(&clock("current_clocksource"), &clock("available_clocksource")));
    findings.push(match Testbed::new(1) {
        Ok(_) => Finding::new("testbed", Level::Good, "can be created", ""),
        Err(error) => {
            let advice =
                "run as root: without the testbed lab runs on loopback, where no policy has an effect";
            Finding::new("testbed", Level::Bad, error.to_string(), advice)
        }
    });
    let verdict = verdict(&findings, shows, rounds);
    Ok(MachineCheck { machine: Machine::read(), cores, findings, resolution: shows, verdict })
}

impl MachineCheck {
    pub fn document(&self) -> Document {
        let findings = &self.findings;
        let rows = findings.iter().map(|finding| {
            vec![
                finding.subject.to_owned(),
                format!("{:?}", finding.level).to_lowercase(),
                finding.found.clone(),
            ]
        });
        let table = Table { names: 3, ..Table::new("", &["property", "", "found"], rows.collect()) };
        let advice = findings
            .iter()
            .filter(|it| !it.advice.is_empty())
            .map(|it| format!("{}: {}", it.subject, it.advice));
        Document {
            title: "Can this machine show anything?".to_owned(),
            conditions: vec![self.machine.to_string()],
            findings: vec![self.verdict.clone()],
            sections: vec![Section {
                tables: vec![table],
                notes: advice.collect(),
                ..Section::new("properties", "What was found")
            }],
        }
    }
}

/// A file's trimmed text; empty if it can't be read.
fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

pub(super) fn vulnerabilities() -> Vec<(String, String)> {
    let entries = fs::read_dir("/sys/devices/system/cpu/vulnerabilities").into_iter().flatten().flatten();
    let state = |entry: fs::DirEntry| Some((entry.file_name().into_string().ok()?, read(entry.path())));
    let mut states: Vec<(String, String)> = entries.filter_map(state).collect();
    states.sort_unstable();
    states
}

fn usable_cores(count: usize) -> Finding {
    let (level, advice) = match count {
        0 | 1 => (Level::Bad, "server and load need a core each: allow this process a second core"),
        2 => (
            Level::Warning,
            "packing needs a third core for its network work; with two it shares the client's",
        ),
        _ => (Level::Good, ""),
    };
    Finding::new("usable cores", level, count.to_string(), advice)
}

/// The CPU time of all cores while this process sleeps.
fn other_load(duration: Duration) -> io::Result<Finding> {
    let busy_seconds = || -> io::Result<f64> {
        let total = procfs::CurrentSI::current().map(|stat: procfs::KernelStats| stat.total);
        let total = total.map_err(io::Error::other)?;
        let interrupts = total.irq.unwrap_or(0) + total.softirq.unwrap_or(0);
        let ticks = total.user + total.nice + total.system + interrupts;
        Ok(ticks as f64 / procfs::ticks_per_second() as f64)
    };
    let before = busy_seconds()?;
    thread::sleep(duration);
    Ok(judge_load((busy_seconds()? - before) / duration.as_secs_f64().max(0.01)))
}

fn judge_load(busy: f64) -> Finding {
    let (level, advice) = match busy {
        quiet if quiet < 0.05 => (Level::Good, ""),
        some if some < 0.5 => (Level::Warning, "stop other programs while you measure (`top` names them)"),
        _ => (Level::Bad, "stop other programs: they take the cores of server and load (`top` names them)"),
    };
    Finding::new("other load", level, format!("{:.0} % of a core", busy * 100.0), advice)
}

/// `asleep` and `awake` are wake-ups in µs as the machine is, and as experiments run; `None`
/// without permission.
fn wake_up(asleep: f64, awake: Option<f64>) -> Finding {
    let found = match awake {
        Some(awake) => format!("{asleep:.1} µs; {awake:.1} µs while idle cores poll, as in experiments"),
        None => format!("{asleep:.1} µs; idle cores can't be kept awake (/dev/cpu_dma_latency)"),
    };
    let (level, advice) = if awake.unwrap_or(asleep) <= SLOW_WAKE_UP_US {
        (Level::Good, "")
    } else {
        let advice = "each interrupt of an idle server costs that much latency, and on a virtual machine the sender's time, too: \
                      run as root, or boot with idle=poll, or use hardware";
        (Level::Warning, advice)
    };
    Finding::new("wake-up of the server's core", level, found, advice)
}

fn distance(observed: &Results) -> Finding {
    let all = observed.loads.iter().map(|load| load.rounds).sum::<usize>().max(1) as f64;
    let class = |load: &LoadResult| {
        let ((low, high), share) = (load.distance?, load.rounds as f64 / all * 100.0);
        Some(format!("{}: {low:.0} to {high:.0} ns, {share:.0} % of turns", load.class))
    };
    let classes: Vec<String> = observed.loads.iter().filter_map(class).collect();
    let (level, advice) = match classes.len() {
        0 | 1 => (Level::Good, ""),
        _ => (
            Level::Warning,
            "the hypervisor moves the cores: pin virtual cores or use a dedicated host; lab keeps the classes apart, at the \
             cost of repeated turns",
        ),
    };
    Finding::new("core distance", level, classes.join("; "), advice)
}

fn steal(observed: &Results) -> Finding {
    let turns = || observed.measurements.iter().flat_map(|measured| &measured.turns);
    let steal = turns().map(|turn| turn.conditions.steal).sum::<f64>() / turns().count().max(1) as f64;
    let (level, advice) = if steal <= STEAL_LIMIT {
        (Level::Good, "")
    } else {
        (
            Level::Warning,
            "other guests take this machine's time: use a dedicated host, or measure at a quieter time",
        )
    };
    Finding::new("steal", level, format!("{:.1} % of a core", steal * 100.0), advice)
}

fn clock_source(current: &str, available: &str) -> Finding {
    let (level, advice) = match current {
        "tsc" | "kvm-clock" | "arch_sys_counter" => (Level::Good, String::new()),
        "hpet" | "acpi_pm" | "jiffies" | "refined-jiffies" => {
            let available: Vec<&str> = available.split_whitespace().collect();
            let better = ["tsc", "kvm-clock"].into_iter().find(|clock| available.contains(clock));
            let how = better.map_or_else(
                || "no faster one is available here: use another machine".to_owned(),
                |it| {
                    format!("write {it} to /sys/devices/system/clocksource/clocksource0/current_clocksource")
                },
            );
            (Level::Bad, format!("reading this clock takes a microsecond or more; {how}"))
        }
        _ => (Level::Info, String::new()),
    };
    Finding::new("clock source", level, current, advice)
}

/// The last sentence. It names a number only if one was measured.
fn verdict(findings: &[Finding], resolution: Option<f64>, rounds: usize) -> String {
    let bad: Vec<&str> = findings.iter().filter(|it| it.level == Level::Bad).map(|it| it.subject).collect();
    let first = match resolution {
        Some(resolution) => format!(
            "This machine can show differences of {:.1} % or more in {rounds} rounds: the 95 % interval of the ratio of two \
             identical contenders, which exchanged messages between the cores for 50 ms a turn, reached that far to each side.",
            resolution * 100.0
        ),
        None => "What differences this machine can show was not measured: there were too few undisturbed turns for it.".to_owned(),
    };
    if bad.is_empty() { first } else { format!("{first} But first change: {}.", bad.join(", ")) }
}

const PIECE: Duration = Duration::from_millis(50);
/// Groups of rounds that a resolution needs, so that it isn't the luck of one.
const MIN_GROUPS: usize = 3;

/// Runs pieces of work for `duration`, two identical contenders in turns.
fn observe(cores: CoreAssignment, duration: Duration) -> Result<Results, Error> {
    /// More rounds than there is time for: the time ends it.
    const MANY: usize = 10_000;
    let mut silent = |_: &str| {};
    let mut runner = Runner::new(cores, &mut silent);
    let plan = LoadPlan::new("messages", LoadKind::Closed, 0.0, MANY, duration);
    runner.measure(plan, &["one", "the same again"].map(str::to_owned), |_| {
        let trips = round_trips(cores.server, cores.client, Duration::ZERO)?;
        Ok(Turn::new([(Figure::Throughput, trips.len() as f64 / PIECE.as_secs_f64())]))
    })?;
    Ok(runner.finish(&[0]))
}

/// The half-width of the 95 % interval of the ratio of two identical contenders in a full run, for
/// example 0.05: the median over groups of as many rounds as a full run has. `None` if there were
/// fewer than three groups.
fn resolution(results: &Results, rounds: usize) -> Option<f64> {
    let ratio = |round: &Vec<Option<&Turn>>| {
        Some(round[1]?.get(Figure::Throughput) / round[0]?.get(Figure::Throughput))
    };
    // At the distance at which there are most.
    let all: Vec<_> = results.loads.first().into_iter().flat_map(|load| results.rounds(load)).collect();
    half_width(&all.iter().filter_map(ratio).collect::<Vec<_>>(), rounds)
}

/// The median half-width of the intervals that groups of `rounds` ratios have.
fn half_width(ratios: &[f64], rounds: usize) -> Option<f64> {
    let mut widths: Vec<f64> = ratios
        .chunks_exact(rounds.max(1))
        .map(median_interval)
        .filter(Interval::reaches_target)
        .map(|interval| (interval.high - interval.low) / 2.0)
        .collect();
    widths.sort_by(f64::total_cmp);
    (widths.len() >= MIN_GROUPS).then(|| widths[widths.len() / 2])
}

/// The time from waking a thread on `sleeper`, which has idled, until it runs, in µs: half of the
/// median round trip of a message.
fn wake_up_us(waker: u32, sleeper: u32) -> io::Result<f64> {
    const IDLE: Duration = Duration::from_micros(300);
    Ok(median(&round_trips(waker, sleeper, IDLE)?) * 1e6 / 2.0)
}

/// Messages between two threads on these cores, each of which sleeps until the other's arrives:
/// seconds of each round trip, of as many as fit into a piece. The first one spins for `idle`
/// before each.
fn round_trips(core_a: u32, core_b: u32, idle: Duration) -> io::Result<Vec<f64>> {
    let (mut near, mut far) = UnixStream::pair()?;
    // Ends either thread if the other failed.
    near.set_read_timeout(Some(Duration::from_secs(2)))?;
    thread::scope(|scope| {
        let echo = scope.spawn(move || {
            Cpus::one(core_b).pin(None)?;
            let mut byte = [0];
            while far.read(&mut byte)? == 1 {
                far.write_all(&byte)?;
            }
            Ok::<_, io::Error>(())
        });
        let measuring = scope.spawn(move || {
            Cpus::one(core_a).pin(None)?;
            let (mut byte, mut trips, begun) = ([0], Vec::new(), Instant::now());
            while begun.elapsed() < PIECE {
                let sent = Instant::now();
                while sent.elapsed() < idle {
                    std::hint::spin_loop();
                }
                let sent = Instant::now();
                near.write_all(&byte)?;
                near.read_exact(&mut byte)?;
                trips.push(sent.elapsed().as_secs_f64());
            }
            Ok(trips)
        });
        let trips = joined(measuring);
        joined(echo)?;
        trips
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_property_is_judged_and_the_advice_names_what_exists() {
        assert_eq!(clock_source("tsc", "tsc hpet").level, Level::Good);
        assert!(clock_source("hpet", "hpet kvm-clock acpi_pm").advice.contains("write kvm-clock to"));
        assert!(clock_source("acpi_pm", "acpi_pm").advice.contains("no faster one"));
        assert_eq!(clock_source("unknown", "").level, Level::Info);
        let cores = [1, 2, 3].map(|count| usable_cores(count).level);
        assert_eq!(cores, [Level::Bad, Level::Warning, Level::Good]);
        let loads = [1.2, 0.2, 0.01].map(|busy| judge_load(busy).level);
        assert_eq!(loads, cores);
        assert_eq!(
            [wake_up(50.0, Some(3.0)), wake_up(50.0, None)].map(|it| it.level),
            [Level::Good, Level::Warning]
        );
    }

    #[test]
    fn the_verdict_has_a_number_only_if_one_was_measured() {
        let without = verdict(&[], None, 7);
        assert!(without.contains("was not measured"), "{without}");
        let with = verdict(&[usable_cores(1)], Some(0.042), 7);
        assert!(
            with.contains("4.2 % or more in 7 rounds") && with.ends_with("But first change: usable cores."),
            "{with}"
        );
    }

    #[test]
    fn a_resolution_is_the_half_width_of_intervals_of_identical_contenders() {
        let ratios: Vec<f64> = (0..21).map(|index| if index % 7 == 0 { 0.9 } else { 1.1 }).collect();
        let found = half_width(&ratios, 7).unwrap();
        assert!((found - 0.1).abs() < 1e-9, "{found}");
        assert_eq!(half_width(&ratios[..20], 7), None, "two groups are too few");
        assert_eq!(half_width(&ratios, 5), None, "five rounds have no interval");
    }
}
