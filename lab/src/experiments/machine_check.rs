//! Whether a machine can show differences between policies at all, and what to change if not.

mod observation;

use std::fs;
use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use serde::Serialize;

use self::observation::{observe, resolution, wake_up_us};
use crate::Error;
use crate::engine::{CoreAssignment, LoadResult, Results, STEAL_LIMIT};
use crate::idle_cores::AwakeCores;
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
    pub cores: CoreAssignment,
    pub findings: Vec<Finding>,
    /// The least difference that the machine can show, as a share. `None` if it was not measured.
    pub resolution: Option<f64>,
    /// What the machine can show, in one sentence.
    pub verdict: String,
}

/// Checks the machine for about `duration`. `rounds` is the number of rounds of a full run, for
/// which the verdict is.
pub fn check_machine(duration: Duration, rounds: usize) -> Result<MachineCheck, Error> {
    let cores = CoreAssignment::choose()?;
    let mut findings = vec![usable_cores(policies::Cpus::allowed()?.len()), other_load(duration / 10)?];
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
    findings.push(kernel(&read("/proc/sys/kernel/osrelease")));
    findings.push(match Testbed::new(1) {
        Ok(_) => Finding::new("testbed", Level::Good, "can be created", ""),
        Err(error) => {
            let advice =
                "run as root: without the testbed lab runs on loopback, where no policy has an effect";
            Finding::new("testbed", Level::Bad, error.to_string(), advice)
        }
    });
    let verdict = verdict(&findings, shows, rounds);
    Ok(MachineCheck { cores, findings, resolution: shows, verdict })
}

/// A file's trimmed text; empty if it can't be read.
fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// The processor's vulnerabilities with their mitigations.
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

fn kernel(release: &str) -> Finding {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().ok());
    let (level, advice) = match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) if (major, minor) >= (6, 13) => (Level::Good, ""),
        (Some(_), Some(_)) => (Level::Bad, "kernel polling suspends interrupts from Linux 6.13 on"),
        _ => (Level::Info, ""),
    };
    Finding::new("kernel", level, release, advice)
}

/// The last sentence. It names a number only if one was measured.
fn verdict(findings: &[Finding], resolution: Option<f64>, rounds: usize) -> String {
    let bad: Vec<&str> = findings.iter().filter(|it| it.level == Level::Bad).map(|it| it.subject).collect();
    let first = match resolution {
        Some(resolution) => format!(
            "This machine can show differences of {:.1} % or more in {rounds} rounds: the 95 % interval of the ratio of two \
             identical contestants, which exchanged messages between the cores for 50 ms a turn, reached that far to each side.",
            resolution * 100.0
        ),
        None => "What differences this machine can show was not measured: there were too few undisturbed turns for it.".to_owned(),
    };
    if bad.is_empty() { first } else { format!("{first} But first change: {}.", bad.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_property_is_judged_and_the_advice_names_what_exists() {
        assert_eq!(clock_source("tsc", "tsc hpet").level, Level::Good);
        assert!(clock_source("hpet", "hpet kvm-clock acpi_pm").advice.contains("write kvm-clock to"));
        assert!(clock_source("acpi_pm", "acpi_pm").advice.contains("no faster one"));
        let kernels =
            ["6.13.0", "7.2.1-generic", "6.12.9-amd64", "5.15", "unknown"].map(|it| kernel(it).level);
        assert_eq!(kernels, [Level::Good, Level::Good, Level::Bad, Level::Bad, Level::Info]);
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
        let with = verdict(&[kernel("6.1.0")], Some(0.042), 7);
        assert!(
            with.contains("4.2 % or more in 7 rounds") && with.ends_with("But first change: kernel."),
            "{with}"
        );
    }
}
