//! A run that is kept under a name, and a later one beside it: two states of the code, or two
//! kernels, on one machine.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use loadgen::medians::{Interval, median};
use policies::host::Machine;
use serde::{Deserialize, Serialize};

use super::comparison::Comparison;
use crate::Error;
use crate::experiment::Experiment;
use crate::report::tables::{NONE, plain_table, ratio_text};
use crate::rounds::{ANSWERED, DISTANCE_GAP, Figure, LoadKind, LoadResult, Turn, p99_of_runs, ratio_of_runs};
use crate::testbed::Receiver;

/// The figures whose ratios to those of the kept run are printed.
const FIGURES: [Figure; 4] = [Figure::Throughput, Figure::CpuPerRequest, Figure::P50, Figure::P99];

/// What a later run needs of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    cpu: String,
    kernel: String,
    idle_cores: String,
    /// Connections and lengths of turns, in words.
    setup: String,
    loads: Vec<KeptLoad>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct KeptLoad {
    name: String,
    kind: LoadKind,
    at: f64,
    receiver: Option<Receiver>,
    distance: Option<(f64, f64)>,
    /// By contender, with its name.
    kept: Vec<(String, Kept)>,
}

/// The valid turns of a contender.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Kept {
    figures: BTreeMap<Figure, Vec<f64>>,
    /// Latencies of each, as ends of buckets in ns with the number of requests.
    latencies: Vec<Vec<(u64, u64)>>,
}

impl Kept {
    fn of<'a>(turns: impl Iterator<Item = &'a Turn>) -> Self {
        let turns: Vec<&Turn> = turns.collect();
        let values = |figure| turns.iter().filter_map(|turn| turn.figures.get(&figure).copied()).collect();
        // The last one says whether the server was overloaded.
        let figures = FIGURES.into_iter().chain([Figure::Answered]);
        let has_values = |(_, values): &(Figure, Vec<f64>)| !values.is_empty();
        Self {
            figures: figures.map(|figure| (figure, values(figure))).filter(has_values).collect(),
            latencies: turns.iter().map(|turn| turn.latencies.clone()).collect(),
        }
    }

    fn buckets(&self) -> Vec<&[(u64, u64)]> {
        self.latencies.iter().map(Vec::as_slice).collect()
    }

    /// Whether it answered too little of an open loop in time: then latencies are those of a queue.
    fn is_overloaded(&self) -> bool {
        self.figures.get(&Figure::Answered).is_some_and(|values| median(values) < ANSWERED)
    }

    fn ratio(&self, before: &Self, figure: Figure) -> Option<Interval> {
        let is_latency = matches!(figure, Figure::P50 | Figure::P99);
        if is_latency && (self.is_overloaded() || before.is_overloaded()) {
            return None;
        }
        let (now, then) = (self.figures.get(&figure)?, before.figures.get(&figure)?);
        let has_latencies = |kept: &Self| kept.latencies.iter().all(|latencies| !latencies.is_empty());
        if figure == Figure::P99 && has_latencies(self) && has_latencies(before) {
            return Some(p99_of_runs(&self.buckets(), &before.buckets()));
        }
        Some(ratio_of_runs(now, then))
    }
}

impl Baseline {
    pub fn of(run: &Comparison) -> Self {
        let results = &run.outcome.results;
        let names = run.experiment.contenders.iter().map(|contender| contender.name());
        let names: Vec<String> = names.collect();
        let load = |load: &LoadResult| {
            let rounds: Vec<_> = results.rounds(load).collect();
            let kept = names.iter().enumerate().map(|(index, name)| {
                (name.clone(), Kept::of(rounds.iter().filter_map(|round| round[index])))
            });
            let &LoadResult { ref name, kind, at, receiver, distance, .. } = load;
            KeptLoad { name: name.clone(), kind, at, receiver, distance, kept: kept.collect() }
        };
        let Machine { cpu, kernel, .. } = run.machine.clone();
        let Experiment { connections, settle, warm_up, duration, .. } = run.experiment;
        let bed = match &run.card {
            Some(card) => format!("{} with {} queues", card.server.interface, card.server.queues),
            None => format!("workers: {}", run.cores.servers.len()),
        };
        let setup = format!(
            "{bed}, {connections} connections, turns of {duration} s after {:.2} s of load",
            settle + warm_up
        );
        let (idle_cores, loads) = (run.idle_line(), results.by_load().map(load).collect());
        Self { cpu, kernel, idle_cores, setup, loads }
    }

    /// The rates of its open loops.
    pub fn rates(&self) -> Vec<u32> {
        let open = self.loads.iter().filter(|load| load.kind == LoadKind::Open);
        let mut rates: Vec<u32> = open.map(|load| load.at as u32).collect();
        rates.dedup();
        rates
    }

    /// # Errors
    /// If it has nothing that a later run could be compared with: a good one of that name stays.
    pub fn save(&self, folder: &Path, name: &str) -> Result<(), Error> {
        let path = path(folder, name)?;
        let has_figures = |load: &KeptLoad| load.kept.iter().any(|(_, kept)| !kept.figures.is_empty());
        if !self.loads.iter().any(has_figures) {
            return Err(format!("--save {name}: not saved: no load has a complete valid round").into());
        }
        let saved = fs::create_dir_all(path.parent().unwrap_or(folder))
            .and_then(|()| fs::write(&path, serde_json::to_vec(self)?));
        saved.map_err(|error| format!("--save {name}: {}: {error}", path.display()).into())
    }

    /// # Errors
    /// If there is none of that name, or it is of another machine.
    pub fn read(folder: &Path, name: &str) -> Result<Self, Error> {
        let path = path(folder, name)?;
        let failed = |error: &dyn std::fmt::Display| {
            let names = saved_names(folder);
            let known = if names.is_empty() { "none is".to_owned() } else { names.join(", ") };
            format!(
                "--against {name}: {}: {error} (saved there: {known}; `--save NAME` saves one)",
                path.display()
            )
        };
        let text = fs::read(&path).map_err(|error| failed(&error))?;
        let baseline: Self = serde_json::from_slice(&text).map_err(|error| failed(&error))?;
        let cpu = Machine::read().cpu;
        if baseline.cpu != cpu {
            let was = &baseline.cpu;
            return Err(
                format!("--against {name}: it is of another machine ({was}), and this is {cpu}").into()
            );
        }
        Ok(baseline)
    }

    /// A run over this one, for the screen.
    pub fn beside(&self, name: &str, run: &Comparison) -> Vec<String> {
        self.beside_saved(name, &Self::of(run))
    }

    fn beside_saved(&self, name: &str, now: &Self) -> Vec<String> {
        let mut lines = vec![format!("Over {name}, rounds of both resampled:")];
        for (what, was, is) in [
            ("Kernel", &self.kernel, &now.kernel),
            ("Idle cores", &self.idle_cores, &now.idle_cores),
            ("Setup", &self.setup, &now.setup),
        ] {
            if was != is {
                lines.push(format!("{what} then: {was}"));
            }
        }
        let mut rows = Vec::new();
        for load in &now.loads {
            let is_same = |then: &&KeptLoad| {
                // Not by the name, which tells the receiver only if there are several.
                (then.kind, then.receiver, then.at) == (load.kind, load.receiver, load.at)
            };
            let Some(then) = self.loads.iter().find(is_same) else { continue };
            if !is_same_distance(load.distance, then.distance) {
                lines.push(format!("{}: not compared, the cores were at another distance.", load.name));
                continue;
            }
            for (index, (contender, kept)) in load.kept.iter().enumerate() {
                // Some experiments have several of a name.
                let at = then.kept.get(index).filter(|(name, _)| name == contender);
                let Some((_, before)) = at.or_else(|| then.kept.iter().find(|(name, _)| name == contender))
                else {
                    continue;
                };
                let ratio = |figure| kept.ratio(before, figure);
                let cells = FIGURES
                    .map(|figure| ratio(figure).map_or_else(|| NONE.to_owned(), |ratio| ratio_text(&ratio)));
                rows.push(
                    [load.name.clone(), contender.clone()].into_iter().chain(cells).collect::<Vec<_>>(),
                );
            }
        }
        if rows.is_empty() {
            lines.push("No load is the same as then.".to_owned());
            return lines;
        }
        let is_there = |column: usize| column < 2 || rows.iter().any(|row| row[column] != NONE);
        let columns: Vec<usize> = (0..2 + FIGURES.len()).filter(|&column| is_there(column)).collect();
        let titles = ["load", "server"].into_iter().chain(FIGURES.map(Figure::title));
        let header: Vec<String> = titles.map(str::to_owned).collect();
        let chosen =
            |row: &Vec<String>| columns.iter().map(|&column| row[column].clone()).collect::<Vec<_>>();
        let table = plain_table(&chosen(&header), rows.iter().map(chosen));
        lines.extend(table.lines().map(|line| line.trim_end().to_owned()));
        lines
    }
}

fn is_same_distance(now: Option<(f64, f64)>, then: Option<(f64, f64)>) -> bool {
    let middle = |(low, high): (f64, f64)| (low * high).sqrt();
    let Some((now, then)) = now.map(middle).zip(then.map(middle)) else { return true };
    now.max(then) / now.min(then) < DISTANCE_GAP
}

/// Where a run is kept.
///
/// # Errors
/// If the name is none for a file.
pub fn path(folder: &Path, name: &str) -> Result<PathBuf, Error> {
    let is_allowed = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
    if name.is_empty() || name.starts_with('.') || !name.chars().all(is_allowed) {
        return Err(format!("{name:?} is no name for a run: letters, digits, '-', '_' and '.'").into());
    }
    Ok(folder.join("saved").join(format!("{name}.json")))
}

fn saved_names(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder.join("saved")).into_iter().flatten().flatten();
    let names = files.filter_map(|file| Some(file.file_name().to_str()?.strip_suffix(".json")?.to_owned()));
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(cpu: f64) -> Kept {
        let turns: Vec<Turn> = (0..12)
            .map(|round| {
                let mut turn = Turn::new([(Figure::CpuPerRequest, cpu + f64::from(round % 3) / 10.0)]);
                turn.set(Figure::P99, 100.0);
                turn.latencies = vec![(cpu as u64 * 1000, 100)];
                turn
            })
            .collect();
        Kept::of(turns.iter())
    }

    fn baseline(cpu: f64) -> Baseline {
        let load = KeptLoad {
            name: "41000/s, fifo".to_owned(),
            kind: LoadKind::Open,
            at: 41e3,
            receiver: Some(Receiver::Fifo),
            distance: Some((100.0, 110.0)),
            kept: vec![("polling".to_owned(), kept(cpu))],
        };
        let Machine { cpu, kernel, .. } = Machine::read();
        Baseline { cpu, kernel, idle_cores: "sleep".to_owned(), setup: String::new(), loads: vec![load] }
    }

    #[test]
    fn a_saved_run_is_read_again_and_a_later_one_is_a_ratio_of_it() {
        let folder = tempfile::tempdir().unwrap();
        baseline(10.0).save(folder.path(), "before").unwrap();
        let before = Baseline::read(folder.path(), "before").unwrap();
        assert_eq!(before, baseline(10.0));
        let now = Baseline { kernel: "7.0".to_owned(), ..baseline(20.0) };
        let lines = before.beside_saved("before", &now);
        let text = lines.join("\n");
        assert!(text.contains("Kernel then: "), "{text}");
        let row = lines.last().unwrap();
        assert!(row.contains("41000/s, fifo") && row.contains("1.99 [1.97, 2.01]"), "{text}");
        // The latencies are pooled: those of the turns say nothing.
        assert!(row.trim_end().ends_with("2.00 [2.00, 2.00]"), "{text}");
        let mut far = now.clone();
        far.loads[0].distance = Some((400.0, 500.0));
        assert!(before.beside_saved("before", &far).join(" ").contains("at another distance"));
        far.loads[0].at = 50e3;
        assert_eq!(before.beside_saved("before", &far).last().unwrap(), "No load is the same as then.");
    }

    #[test]
    fn a_load_is_the_same_by_its_rate_and_receiver() {
        let with = |name: &str, kind, receiver| {
            let mut run = baseline(10.0);
            (run.loads[0].name, run.loads[0].kind, run.loads[0].receiver) = (name.to_owned(), kind, receiver);
            run
        };
        let is_same = |one: &Baseline, other: &Baseline| one.beside_saved("it", other).len() > 2;
        let (open, fifo) = (LoadKind::Open, Some(Receiver::Fifo));
        // With one receiver its name is left out.
        assert!(is_same(&with("41000/s, fifo", open, fifo), &with("41000/s", open, fifo)));
        assert!(!is_same(&with("41000/s", open, fifo), &with("41000/s", open, Some(Receiver::Rps))));
        assert!(!is_same(&with("41000/s", open, fifo), &with("41000/s", LoadKind::Closed, fifo)));
    }

    #[test]
    fn latencies_of_an_overloaded_server_are_not_compared() {
        let mut overloaded = baseline(20.0);
        overloaded.loads[0].kept[0].1.figures.insert(Figure::Answered, vec![90.0; 12]);
        let text = baseline(10.0).beside_saved("before", &overloaded).join("\n");
        assert!(text.contains("1.99 [1.97, 2.01]") && !text.contains("2.00 [2.00"), "{text}");
    }

    #[test]
    fn a_run_without_a_round_replaces_no_good_one() {
        let folder = tempfile::tempdir().unwrap();
        baseline(10.0).save(folder.path(), "good").unwrap();
        let nothing = Baseline { loads: Vec::new(), ..baseline(20.0) };
        let error = nothing.save(folder.path(), "good").unwrap_err().to_string();
        assert!(error.contains("no load has a complete valid round"), "{error}");
        assert_eq!(Baseline::read(folder.path(), "good").unwrap(), baseline(10.0));
    }

    #[test]
    fn what_was_not_saved_or_is_of_another_machine_is_an_error_that_says_so() {
        let folder = tempfile::tempdir().unwrap();
        baseline(10.0).save(folder.path(), "one").unwrap();
        let error = Baseline::read(folder.path(), "two").unwrap_err().to_string();
        assert!(error.starts_with("--against two: ") && error.contains("saved there: one;"), "{error}");
        for name in ["", "../one", ".one", "a b"] {
            let error = Baseline::read(folder.path(), name).unwrap_err().to_string();
            assert!(error.contains("is no name for a run"), "{error}");
        }
        Baseline { cpu: "Z80".to_owned(), ..baseline(10.0) }.save(folder.path(), "old").unwrap();
        let error = Baseline::read(folder.path(), "old").unwrap_err().to_string();
        assert!(error.contains("another machine (Z80)"), "{error}");
    }
}
