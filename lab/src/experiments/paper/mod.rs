//! The tables and figures of the paper that this project follows, on this machine.
//!
//! - [`EXHIBITS`]: the paper's tables and figures, with their numbers.
//! - [`Part`]: what is measured at a time, and saved.
//! - [`measure`]: measures all parts that are not saved yet.

mod config;
mod fleet_parts;
mod part;
mod part_result;
mod programs;
mod published;
mod requirements;
mod saved_parts;
mod web_servers;

use std::path::Path;

use ::policies::host::Machine;
use serde::Serialize;
use serde_json::json;

pub use config::PaperConfig;
pub use part::Part;
pub use part_result::PartResult;
pub use programs::{Program, Programs};
pub use published::{CITATION, EXHIBITS, Exhibit, Needs, PublishedRow, SETUP};
pub use saved_parts::SavedParts;

use crate::Error;
use crate::engine::CoreAssignment;
use crate::experiment::Experiment;

/// What became of a part.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PartOutcome {
    /// It was measured.
    Measured {
        /// Whether an earlier run measured it.
        saved: bool,
        /// The figures of all loads.
        result: PartResult,
    },
    /// It was not measured, for this reason.
    Missing(String),
}

/// All parts.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct PaperResult {
    /// The parts in their order.
    pub parts: Vec<(Part, PartOutcome)>,
    /// Programs of other projects.
    pub programs: Programs,
    /// NUMA nodes with cores.
    pub numa_nodes: usize,
}

impl PaperResult {
    /// Parts that were never measured, on a machine without other programs.
    #[cfg(test)]
    pub(crate) fn for_tests(parts: Vec<(Part, PartOutcome)>) -> Self {
        Self { parts, programs: Programs::default(), numa_nodes: 1 }
    }

    /// A part's outcome.
    pub fn outcome(&self, part: Part) -> Option<&PartOutcome> {
        self.parts.iter().find(|(other, _)| *other == part).map(|(_, outcome)| outcome)
    }
}

/// What happens while parts are measured.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum PaperProgress<'a> {
    /// A turn begins.
    Turn(&'a str),
    /// A part is over.
    Finished(Part, &'a PartOutcome),
}

/// The experiment of a part. `None` for one that is not an experiment under a fleet, or lacks a program.
fn fleet_part(
    part: Part,
    config: &PaperConfig,
    cores: CoreAssignment,
    programs: &Programs,
) -> Option<fleet_parts::FleetPart> {
    match part {
        Part::Policies => Some(fleet_parts::policies(config, cores)),
        Part::Attached => {
            let memcached = programs.memcached.as_ref()?;
            Some(fleet_parts::attached(config, cores, &memcached.path))
        }
        Part::Web | Part::Connections => None,
    }
}

/// About how many turns a part takes: fewer where time runs out, and more where turns are repeated.
pub fn steps(config: &PaperConfig, cores: CoreAssignment, programs: &Programs, part: Part) -> usize {
    let steps = |experiment: &Experiment| experiment.steps();
    match part {
        Part::Web if programs.nginx.is_none() => 0,
        Part::Web => web_contenders(config, programs) * config.file_sizes.len() * config.rounds,
        Part::Connections => {
            config.connection_counts.len() * steps(&fleet_parts::connections(config, 1).experiment)
        }
        part => fleet_part(part, config, cores, programs).map_or(0, |part| steps(&part.experiment)),
    }
}

/// The number of contenders of Table 2.
fn web_contenders(config: &PaperConfig, programs: &Programs) -> usize {
    1 + config.attached_budgets.len() + if programs.web.is_some() { 2 } else { 0 }
}

/// Measures what `folder` has no results of for this machine and configuration. `cores_awake` says whether idle cores poll
/// instead of sleeping. A part that fails is reported as missing, and the others are measured.
///
/// # Errors
/// If `folder` can't be created.
pub fn measure(
    config: &PaperConfig,
    cores: CoreAssignment,
    cores_awake: bool,
    folder: &Path,
    mut progress: impl FnMut(PaperProgress<'_>),
) -> Result<PaperResult, Error> {
    let programs = Programs::find();
    let measured_with = json!({
        "lab": env!("CARGO_PKG_VERSION"),
        // Lull's servers are a part of this program.
        "build": std::env::current_exe().ok().and_then(|program| programs::build(&program)),
        "machine": Machine::read(),
        "cores": cores,
        "cores_awake": cores_awake,
        "config": config,
        "programs": programs,
    });
    let saved = SavedParts::open(folder, measured_with)?;
    let prevented = requirements::prevented(cores);
    let mut parts = Vec::new();
    for part in Part::ALL {
        let outcome = match (saved.load(part), &prevented) {
            (Some(result), _) => PartOutcome::Measured { saved: true, result },
            (None, Some(reason)) => PartOutcome::Missing(reason.clone()),
            (None, None) => {
                let mut turn = |step: &str| progress(PaperProgress::Turn(step));
                match measure_part(part, config, cores, &programs, &mut turn) {
                    // Not saved, so that the next run tries again.
                    Ok(Ok(result)) if !result.has_figures() => {
                        PartOutcome::Missing(format!("no turn was valid: {}", result.notes.join("; ")))
                    }
                    Ok(Ok(result)) => saved_now(&saved, part, result),
                    Ok(Err(missing)) => PartOutcome::Missing(missing),
                    Err(error) => PartOutcome::Missing(format!("failed: {error}")),
                }
            }
        };
        progress(PaperProgress::Finished(part, &outcome));
        parts.push((part, outcome));
    }
    Ok(PaperResult { parts, programs, numa_nodes: requirements::numa_nodes() })
}

/// Saves what was just measured. A failure is a note of the part: the report still has its figures.
fn saved_now(saved: &SavedParts, part: Part, mut result: PartResult) -> PartOutcome {
    let not_saved = saved.save(part, &result).err();
    let not_saved = not_saved.map(|error| format!("not saved, so the next run measures it again: {error}"));
    let failure = result.failure.as_ref().map(|why| format!("incomplete: {why}"));
    result.notes.extend(failure.into_iter().chain(not_saved));
    PartOutcome::Measured { saved: false, result }
}

/// Measures a part. The inner error names a program that is not installed.
fn measure_part(
    part: Part,
    config: &PaperConfig,
    cores: CoreAssignment,
    programs: &Programs,
    progress: &mut dyn FnMut(&str),
) -> Result<Result<PartResult, String>, Error> {
    let missing = |name: &str| Ok(Err(format!("{name} is not installed (Debian: apt-get install {name})")));
    if let Some(part) = fleet_part(part, config, cores, programs) {
        return Ok(Ok(part.measure(cores, progress)?.0));
    }
    match (part, &programs.nginx) {
        (Part::Connections, _) => fleet_parts::measure_connections(config, cores, progress).map(Ok),
        (Part::Web, Some(nginx)) => {
            fleet_parts::measure_web(config, cores, programs, nginx, progress).map(Ok)
        }
        (Part::Web, None) => missing("nginx"),
        _ => missing("memcached"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each part with its contenders, its loads, the seconds of a turn by its own arithmetic, and the part of the time that the
    /// search for the capacity leaves.
    fn parts(config: &PaperConfig) -> [(Part, usize, usize, f64, f64); 4] {
        let program = |name: &str| Some(Program { path: name.into(), version: "1".to_owned(), build: None });
        let programs =
            Programs { memcached: program("memcached"), nginx: program("nginx"), web: program("web") };
        let fleet = config.warm_up + config.turn + 0.03;
        let cores = CoreAssignment { server: 0, client: 1, packing: 1 };
        let web = (web_contenders(config, &programs), config.file_sizes.len());
        let shape = |part| {
            let experiment = fleet_part(part, config, cores, &programs).unwrap().experiment;
            (experiment.contenders.len(), experiment.loads.len())
        };
        let (policies, attached) = (shape(Part::Policies), shape(Part::Attached));
        [
            (Part::Policies, policies.0, policies.1, fleet, 0.65),
            (Part::Attached, attached.0, attached.1, config.settle + fleet, 0.65),
            (Part::Web, web.0, web.1, config.settle + fleet, 1.0),
            (Part::Connections, 2, config.connection_counts.len(), fleet, 1.0),
        ]
    }

    #[test]
    fn each_load_of_each_part_has_time_for_more_rounds_than_an_interval_needs() {
        for (quick, most_minutes) in [(false, 16.0), (true, 4.25)] {
            let config = PaperConfig::new(quick);
            let mut total = 0.0;
            for (part, contenders, loads, turn, share) in parts(&config) {
                let limit = config.limit(part, contenders, loads).as_secs_f64();
                let rounds = limit * share / (contenders * loads) as f64 / turn;
                assert!(rounds >= 7.0, "{part}, quick {quick}: {rounds:.1} rounds in {limit:.0} s");
                total += limit;
            }
            assert!(config.rounds >= 7 && total / 60.0 <= most_minutes, "quick {quick}: {total:.0} s");
        }
    }

    #[test]
    fn a_part_that_can_not_be_saved_is_measured_with_a_note() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lab-paper");
        let saved = SavedParts::open(&path, json!("a")).unwrap();
        std::fs::remove_dir(&path).unwrap();
        let PartOutcome::Measured { saved: false, result } =
            saved_now(&saved, Part::Web, PartResult::empty())
        else {
            panic!("it was measured");
        };
        assert!(result.notes.len() == 1 && result.notes[0].starts_with("not saved"), "{:?}", result.notes);
    }
}
