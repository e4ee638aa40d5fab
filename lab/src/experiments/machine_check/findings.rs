//! What each observation means, and what to change.

use std::fmt;

use serde::Serialize;

use super::observation::Observation;
use crate::engine::STEAL_LIMIT;

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Level {
    /// As it should be.
    Good,
    /// Neither good nor bad.
    Info,
    /// Results are noisier or say less.
    Warning,
    /// Results say nothing, or an experiment can't run.
    Bad,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Good => "good",
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Bad => "bad",
        })
    }
}

/// One property of the machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// The property.
    pub subject: String,
    /// How much it matters.
    pub level: Level,
    /// What was found.
    pub found: String,
    /// What to change; `None` if nothing.
    pub advice: Option<String>,
}

impl Finding {
    pub(super) fn new(subject: &str, level: Level, found: impl Into<String>, advice: &str) -> Self {
        let advice = (!advice.is_empty()).then(|| advice.to_owned());
        Self { subject: subject.to_owned(), level, found: found.into(), advice }
    }
}

/// A wake-up that takes longer shows in latencies below saturation, µs.
const SLOW_WAKE_UP_US: f64 = 10.0;

pub(super) fn usable_cores(count: usize) -> Finding {
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

pub(super) fn distance(observed: &Observation) -> Finding {
    let classes: Vec<String> = observed
        .classes
        .iter()
        .map(|seen| {
            let share = seen.share * 100.0;
            format!("{}: {:.0} to {:.0} ns, {share:.0} % of turns", seen.class, seen.low, seen.high)
        })
        .collect();
    let changing = observed.classes.len() > 1;
    if !changing {
        return Finding::new("core distance", Level::Good, classes.join("; "), "");
    }
    let every = observed.seconds / observed.changes.max(1) as f64;
    let found = format!("{}; changed {} times, every {every:.1} s", classes.join("; "), observed.changes);
    let advice = "the hypervisor moves the cores: pin virtual cores or use a dedicated host; lab keeps the classes apart, at the cost of repeated turns";
    Finding::new("core distance", Level::Warning, found, advice)
}

/// `asleep` and `awake` are wake-ups in µs as the machine is, and as experiments run; `None` without permission.
pub(super) fn wake_up(asleep: f64, awake: Option<f64>) -> Finding {
    let found = match awake {
        Some(awake) => format!("{asleep:.1} µs; {awake:.1} µs while idle cores poll, as in experiments"),
        None => format!("{asleep:.1} µs; idle cores can't be kept awake (/dev/cpu_dma_latency)"),
    };
    let in_experiments = awake.unwrap_or(asleep);
    if in_experiments <= SLOW_WAKE_UP_US {
        return Finding::new("wake-up of the server's core", Level::Good, found, "");
    }
    let advice = "each interrupt of an idle server costs that much latency, and on a virtual machine the sender's time, too: run as root, or boot with idle=poll, or use hardware";
    Finding::new("wake-up of the server's core", Level::Warning, found, advice)
}

pub(super) fn steal(observed: &Observation) -> Finding {
    let found = format!(
        "{:.1} % of a core, at most {:.0} ms in a row",
        observed.steal * 100.0,
        observed.longest_steal * 1e3
    );
    if observed.steal <= STEAL_LIMIT {
        return Finding::new("steal", Level::Good, found, "");
    }
    let advice = "other guests take this machine's time: use a dedicated host, or measure at a quieter time";
    Finding::new("steal", Level::Warning, found, advice)
}

pub(super) fn clock_source(current: &str, available: &str) -> Finding {
    let (level, advice) = match current {
        "tsc" | "kvm-clock" | "arch_sys_counter" => (Level::Good, String::new()),
        "hpet" | "acpi_pm" | "jiffies" | "refined-jiffies" => {
            let better =
                ["tsc", "kvm-clock"].into_iter().find(|it| available.split_whitespace().any(|a| a == *it));
            let how = better.map_or_else(
                || "no faster one is available here: use another machine".to_owned(),
                |better| {
                    format!(
                        "write {better} to /sys/devices/system/clocksource/clocksource0/current_clocksource"
                    )
                },
            );
            (Level::Bad, format!("reading this clock takes a microsecond or more; {how}"))
        }
        _ => (Level::Info, String::new()),
    };
    Finding::new("clock source", level, current, &advice)
}

pub(super) fn mitigations(vulnerabilities: &[(String, String)]) -> Finding {
    let active: Vec<&str> = vulnerabilities
        .iter()
        .filter(|(_, state)| state.starts_with("Mitigation:"))
        .map(|(name, _)| name.as_str())
        .collect();
    let found = if active.is_empty() { "none active".to_owned() } else { active.join(", ") };
    let advice = if active.is_empty() {
        ""
    } else {
        "some make system calls dearer; compare only machines with the same ones"
    };
    Finding::new("CPU mitigations", Level::Info, found, advice)
}

pub(super) fn governor(governor: Option<&str>) -> Finding {
    match governor {
        None => {
            Finding::new("frequency governor", Level::Info, "not visible, as in most virtual machines", "")
        }
        Some("performance") => Finding::new("frequency governor", Level::Good, "performance", ""),
        Some(other) => {
            let advice = "the clock follows the load: cpupower frequency-set -g performance";
            Finding::new("frequency governor", Level::Warning, other, advice)
        }
    }
}

pub(super) fn kernel(release: &str) -> Finding {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) if (major, minor) >= (6, 13) => {
            Finding::new("kernel", Level::Good, release, "")
        }
        (Some(_), Some(_)) => Finding::new(
            "kernel",
            Level::Bad,
            release,
            "kernel polling suspends interrupts from Linux 6.13 on",
        ),
        _ => Finding::new("kernel", Level::Info, format!("unknown release {release:?}"), ""),
    }
}

pub(super) fn congestion_control(current: &str, available: &str) -> Finding {
    let found = format!("{current} (available: {available})");
    Finding::new("congestion control", Level::Info, found, "compare only results with the same one")
}

/// The CPU time of the cores before the check began, and the processes that used most, with their shares of a core.
pub(super) fn other_load(busy: f64, top: &[(String, f64)]) -> Finding {
    let names: Vec<String> =
        top.iter().map(|(name, share)| format!("{name} {:.0} %", share * 100.0)).collect();
    let names = if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) };
    let found = format!("{:.0} % of a core{names}", busy * 100.0);
    match busy {
        quiet if quiet < 0.05 => Finding::new("other load", Level::Good, found, ""),
        some if some < 0.5 => {
            Finding::new("other load", Level::Warning, found, "stop other programs while you measure")
        }
        _ => Finding::new(
            "other load",
            Level::Bad,
            found,
            "stop other programs: they take the cores of server and load",
        ),
    }
}

/// The last sentence. It names a number only if one was measured.
pub(super) fn verdict(findings: &[Finding], observed: Option<&Observation>, rounds: usize) -> String {
    let bad: Vec<&str> =
        findings.iter().filter(|it| it.level == Level::Bad).map(|it| it.subject.as_str()).collect();
    let first = match observed.and_then(|observed| observed.resolution) {
        Some(resolution) => format!(
            "This machine can show differences of {:.1} % or more in {rounds} rounds: the 95 % interval of the ratio of two identical contestants, which exchanged messages between the cores for 50 ms a turn, reached that far to each side.",
            resolution * 100.0
        ),
        None => "What differences this machine can show was not measured: there were too few undisturbed turns for it.".to_owned(),
    };
    if bad.is_empty() { first } else { format!("{first} But first change: {}.", bad.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observation(classes: Vec<crate::experiments::machine_check::observation::SeenClass>) -> Observation {
        Observation {
            seconds: 30.0,
            classes,
            changes: 6,
            steal: 0.001,
            longest_steal: 0.01,
            resolution: None,
        }
    }

    #[test]
    fn slow_clocks_are_bad_and_the_advice_names_a_better_one_that_exists() {
        assert_eq!(clock_source("tsc", "tsc hpet").level, Level::Good);
        let slow = clock_source("hpet", "hpet kvm-clock acpi_pm");
        assert_eq!(slow.level, Level::Bad);
        assert!(slow.advice.unwrap().contains("write kvm-clock to"));
        assert!(clock_source("acpi_pm", "acpi_pm").advice.unwrap().contains("no faster one"));
    }

    #[test]
    fn kernels_before_6_13_cannot_suspend_interrupts() {
        assert_eq!(kernel("6.13.0").level, Level::Good);
        assert_eq!(kernel("7.2.1-generic").level, Level::Good);
        assert_eq!(kernel("6.12.9-amd64").level, Level::Bad);
        assert_eq!(kernel("5.15").level, Level::Bad);
        assert_eq!(kernel("unknown").level, Level::Info);
    }

    #[test]
    fn one_core_is_bad_two_lack_one_for_packing() {
        let levels = [1, 2, 3].map(|count| usable_cores(count).level);
        assert_eq!(levels, [Level::Bad, Level::Warning, Level::Good]);
    }

    #[test]
    fn only_active_mitigations_are_listed() {
        let state = |name: &str, state: &str| (name.to_owned(), state.to_owned());
        let found = mitigations(&[
            state("meltdown", "Not affected"),
            state("retbleed", "Mitigation: untrained return thunk; SMT enabled"),
            state("tsa", "Vulnerable"),
        ]);
        assert_eq!(found.found, "retbleed");
        assert_eq!(mitigations(&[]).found, "none active");
    }

    #[test]
    fn load_governor_and_steal_are_judged() {
        assert_eq!(other_load(0.01, &[]).level, Level::Good);
        let busy = other_load(1.2, &[("cargo".to_owned(), 1.1)]);
        assert_eq!((busy.level, busy.found.as_str()), (Level::Bad, "120 % of a core (cargo 110 %)"));
        assert_eq!(governor(Some("powersave")).level, Level::Warning);
        assert_eq!(governor(None).level, Level::Info);
        let stolen = Observation { steal: 0.2, ..observation(Vec::new()) };
        assert_eq!(steal(&stolen).level, Level::Warning);
    }

    #[test]
    fn the_verdict_has_a_number_only_if_one_was_measured() {
        let without = verdict(&[], Some(&observation(Vec::new())), 7);
        assert!(without.contains("was not measured"), "{without}");
        let with = Observation { resolution: Some(0.042), ..observation(Vec::new()) };
        let with = verdict(&[kernel("6.1.0")], Some(&with), 7);
        assert!(
            with.contains("4.2 % or more in 7 rounds") && with.ends_with("But first change: kernel."),
            "{with}"
        );
    }
}
