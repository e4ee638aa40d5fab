//! Whether the machine can carry an experiment now: ten seconds before anything else.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::Error;
use crate::cores::{CoreAssignment, joined, run_on};
use crate::rounds::{Classes, Conditions, MOST_PAUSED, observed};

/// How long the machine is looked at.
const TIME: Duration = Duration::from_secs(10);
/// As long as a short turn.
const PIECE: Duration = Duration::from_millis(200);
/// What others may take of a core that computes. From 2 % on a turn is left out, but few are: where small
/// programs took 3 % of a core that computes, runs lost 5 to 25 % of their turns, and their answers were
/// right (`docs/benchmarks/method.md`).
const MOST_TAKEN: f64 = 0.05;
/// A program that takes less of a core than this is not named.
const LEAST_NAMED: f64 = 0.01;

/// The machine can't carry an experiment now. It says why, and what to do.
#[derive(Debug)]
pub struct NotQuiet(String);

impl fmt::Display for NotQuiet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "this machine can't carry an experiment now: {}, or measure all the same with --anyway",
            self.0
        )
    }
}

impl std::error::Error for NotQuiet {}

/// What others took of the cores of server and client in a piece of time.
#[derive(Debug, Clone, Copy)]
struct Piece {
    /// Of the core of which they took most, as a share of its time, with what the hypervisor took.
    taken: f64,
    conditions: Conditions,
}

/// Looks at the machine for ten seconds.
///
/// # Errors
/// [`NotQuiet`] if in more than half of the time others used the cores, or the distance of the cores
/// changed.
pub fn check(cores: &CoreAssignment) -> Result<(), Error> {
    if cores.used().len() < 2 {
        return Ok(());
    }
    let (begun, before, throttled, mut pieces) = (Instant::now(), programs()?, throttled(), Vec::new());
    while begun.elapsed() < TIME {
        let (taken, conditions) = observed(cores, || taken_of(&cores.used()))?;
        pieces.push(Piece { taken, conditions });
    }
    let programs = busiest(&before, &programs()?, begun.elapsed());
    let throttled = self::throttled().saturating_sub(throttled).as_secs_f64() / begun.elapsed().as_secs_f64();
    match limited(throttled).or_else(|| judge(&pieces, &programs)) {
        Some(reason) => Err(NotQuiet(reason).into()),
        None => Ok(()),
    }
}

/// For how long the limits of this process's control groups (`cpu.max`, for example of
/// `docker --cpus`) have kept threads from running, in all; 0 without cgroup v2.
fn throttled() -> Duration {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    throttled_in(Path::new("/sys/fs/cgroup"), path)
}

/// By `cpu.stat` of a group and of those that it is in (`Documentation/admin-guide/cgroup-v2.rst`).
fn throttled_in(root: &Path, path: &str) -> Duration {
    let of = |folder: &Path| {
        let text = fs::read_to_string(folder.join("cpu.stat")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("throttled_usec ")?.parse::<u64>().ok())
    };
    let group = root.join(path);
    Duration::from_micros(group.ancestors().take_while(|it| it.starts_with(root)).filter_map(of).sum())
}

/// Why a process that is throttled for this share of the time can't measure.
fn limited(throttled: f64) -> Option<String> {
    (throttled > MOST_PAUSED).then(|| {
        "a limit of its control group (cpu.max) keeps it from using the cores all the time; start the container \
         with more --cpus than it has cores to measure with"
            .to_owned()
    })
}

/// Computes on all cores, and returns the largest share of the time that a thread did not have.
fn taken_of(cores: &[u32]) -> Result<f64, Error> {
    let computing = |core| {
        run_on(core, || {
            let cpu = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default();
            let (begun, before) = (Instant::now(), cpu());
            while begun.elapsed() < PIECE {
                std::hint::spin_loop();
            }
            Ok(1.0 - (cpu() - before).as_secs_f64() / begun.elapsed().as_secs_f64())
        })
    };
    thread::scope(|scope| {
        let threads: Vec<_> = cores.iter().map(|&core| scope.spawn(move || computing(core))).collect();
        threads.into_iter().try_fold(0.0, |most, thread| Ok(joined::<f64, Error>(thread)?.max(most)))
    })
}

/// Why the machine can't carry an experiment, and what to do; `None` if it can. `programs`: the
/// other ones, the busiest first.
fn judge(pieces: &[Piece], programs: &[Program]) -> Option<String> {
    let count = |is: &dyn Fn(&Piece) -> bool| pieces.iter().filter(|piece| is(piece)).count();
    let share = |count: usize| count as f64 / pieces.len().max(1) as f64;
    let mean = |of: fn(&Piece) -> f64| pieces.iter().map(of).sum::<f64>() / pieces.len().max(1) as f64;
    if share(count(&|piece| piece.taken > MOST_TAKEN)) > 0.5 {
        let (taken, steal) =
            (mean(|piece| piece.taken) * 100.0, mean(|piece| piece.conditions.steal) * 100.0);
        return Some(match programs {
            _ if steal > taken / 2.0 => format!(
                "its hypervisor took {steal:.0} % of a core; measure at a quieter time or on a dedicated host"
            ),
            [] => format!(
                "something took {taken:.0} % of a core, and no program that ran throughout did; wait for its end"
            ),
            programs => {
                let named: Vec<String> = programs.iter().take(3).map(Program::to_string).collect();
                format!("{} took the cores' time; stop it or wait for its end", named.join(", "))
            }
        });
    }
    let classes = Classes::of(pieces.iter().map(|piece| piece.conditions.distance), pieces.len()).turns;
    let changed = classes.iter().filter(|class| class.is_none()).count();
    (share(changed) > 0.5).then(|| {
        "its hypervisor moves the cores nearer and farther several times a second; pin its virtual cores, or \
         measure at a quieter time"
            .to_owned()
    })
}

/// Another program, and the share of a core that it took.
#[derive(Debug, PartialEq)]
struct Program {
    pid: i32,
    name: String,
    share: f64,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PID {} `{}` ({:.0} % of a core)", self.pid, self.name, self.share * 100.0)
    }
}

/// A process at a moment.
#[derive(Debug, Clone)]
struct Process {
    name: String,
    parent: i32,
    /// Its CPU time, and that of its children that have ended: of a build no compiler lives for long.
    ticks: i64,
}

/// All processes but this one.
fn programs() -> io::Result<BTreeMap<i32, Process>> {
    let processes = procfs::process::all_processes().map_err(io::Error::other)?;
    // One that has ended meanwhile has no status.
    let stats = processes.filter_map(|process| process.ok()?.stat().ok());
    let others = stats.filter(|stat| u32::try_from(stat.pid) != Ok(std::process::id()));
    Ok(others
        .map(|stat| {
            let own = i64::try_from(stat.utime + stat.stime).unwrap_or(i64::MAX);
            let ticks = own.saturating_add(stat.cutime + stat.cstime);
            (stat.pid, Process { name: stat.comm, parent: stat.ppid, ticks })
        })
        .collect())
}

fn busiest(before: &BTreeMap<i32, Process>, after: &BTreeMap<i32, Process>, time: Duration) -> Vec<Program> {
    let seconds = time.as_secs_f64() * procfs::ticks_per_second() as f64;
    let mut programs: Vec<Program> = after
        .iter()
        .map(|(&pid, process)| {
            // What a child took that has ended since, it took before, too.
            let ended = before.iter().filter(|(child, it)| it.parent == pid && !after.contains_key(child));
            let of_children: i64 = ended.map(|(_, child)| child.ticks).sum();
            let own = before.get(&pid).map_or(0, |process| process.ticks);
            let share = (process.ticks - own - of_children) as f64 / seconds;
            Program { pid, name: process.name.clone(), share }
        })
        .filter(|program| program.share > LEAST_NAMED)
        .collect();
    programs.sort_by(|one, other| other.share.total_cmp(&one.share));
    programs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(taken: f64, steal: f64, distances: &[(f64, f64)]) -> Vec<Piece> {
        let piece = |&distance| Piece { taken, conditions: Conditions::new(steal, Some(distance)) };
        distances.iter().cycle().take(40).map(piece).collect()
    }

    const STILL: [(f64, f64); 1] = [(100.0, 105.0)];

    #[test]
    fn a_quiet_machine_and_one_with_short_disturbances_can_carry_an_experiment() {
        let mut some = pieces(0.001, 0.0, &STILL);
        some[..15].iter_mut().for_each(|piece| piece.taken = 0.5);
        assert_eq!(judge(&some, &[]), None);
        assert_eq!(judge(&pieces(0.04, 0.0, &STILL), &[]), None);
        assert!(judge(&pieces(0.06, 0.0, &STILL), &[]).is_some());
    }

    #[test]
    fn what_takes_the_time_is_named_with_what_to_do() {
        let program = Program { pid: 123, name: "rustc".to_owned(), share: 0.97 };
        let busy = judge(&pieces(0.5, 0.0, &STILL), &[program]).unwrap();
        assert_eq!(
            busy,
            "PID 123 `rustc` (97 % of a core) took the cores' time; stop it or wait for its end"
        );
        let unknown = judge(&pieces(0.3, 0.0, &STILL), &[]).unwrap();
        assert!(unknown.starts_with("something took 30 % of a core"), "{unknown}");
        let stolen = judge(&pieces(0.1, 0.09, &STILL), &[]).unwrap();
        assert!(stolen.starts_with("its hypervisor took 9 % of a core"), "{stolen}");
        let moved = judge(&pieces(0.0, 0.0, &[(100.0, 500.0), (500.0, 100.0)]), &[]).unwrap();
        assert!(moved.starts_with("its hypervisor moves the cores"), "{moved}");
    }

    #[test]
    fn a_limit_of_the_container_is_named_instead_of_programs() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("a/b");
        fs::create_dir_all(&group).unwrap();
        let write = |folder: &Path, micros: u32| {
            fs::write(folder.join("cpu.stat"), format!("usage_usec 9\nthrottled_usec {micros}\n")).unwrap();
        };
        write(&group, 20);
        write(root.path(), 3);
        assert_eq!(throttled_in(root.path(), "a/b"), Duration::from_micros(23));
        assert_eq!(throttled_in(root.path(), "nowhere"), Duration::from_micros(3));
        assert_eq!(limited(0.001), None);
        assert!(limited(0.5).unwrap().contains("cpu.max"));
    }

    #[test]
    fn programs_are_listed_by_what_they_took_in_the_time() {
        let ticks = procfs::ticks_per_second() as i64;
        let of = |list: &[(i32, &str, i64)]| -> BTreeMap<_, _> {
            let process = |&(pid, name, ticks): &(i32, &str, i64)| {
                (pid, Process { name: name.to_owned(), parent: pid - 1, ticks })
            };
            list.iter().map(process).collect()
        };
        // A child that had taken a minute has ended.
        let before = of(&[(1, "init", 50), (2, "cargo", 7 * ticks), (3, "rustc", 60 * ticks)]);
        let after = of(&[(1, "init", 50), (2, "cargo", 72 * ticks), (4, "rustc", ticks)]);
        let found = busiest(&before, &after, Duration::from_secs(10));
        let program = |pid, name: &str, share| Program { pid, name: name.to_owned(), share };
        assert_eq!(found, [program(2, "cargo", 0.5), program(4, "rustc", 0.1)]);
    }
}
