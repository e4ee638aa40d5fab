//! The tables and figures of the paper that this project follows, on this machine.
//!
//! - [`EXHIBITS`]: the paper's tables and figures, with their numbers.
//! - [`Part`]: what is measured at a time.
//! - [`PaperPlan`]: the experiments of all parts.

mod config;
mod parts;
mod programs;
mod published;

use std::io;

use serde::{Deserialize, Serialize};

pub use config::PaperConfig;
use parts::PartPlan;
pub use parts::PartResult;
pub use programs::Programs;
use programs::WebRoot;
pub use published::{CITATION, EXHIBITS, Exhibit, Needs, PublishedRow, SETUP};

use crate::Error;
use crate::engine::CoreAssignment;
use crate::testbed::Testbed;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// The four policies on Lull's memcached: Table 5 and Figure 5.
    Policies,
    /// nginx as it runs and attached to: Table 2.
    Web,
    /// Lull's memcached with 1 to 10,000 connections: Figure 9.
    Connections,
}

impl Part {
    pub const ALL: [Self; 3] = [Self::Policies, Self::Web, Self::Connections];
}

/// The parts that were measured, or why not.
pub type Parts = Vec<(Part, Result<PartResult, String>)>;

/// What is measured. Dropping it removes the files of web servers.
pub struct PaperPlan {
    pub programs: Programs,
    cores: CoreAssignment,
    parts: Vec<(Part, Result<PartPlan, String>)>,
    _web_root: WebRoot,
}

impl PaperPlan {
    /// On this machine, of which a part may lack a program, or all the permission.
    pub fn new(config: &PaperConfig, cores: CoreAssignment) -> io::Result<Self> {
        let (programs, web_root) = (Programs::find(), WebRoot::create(&config.file_sizes)?);
        let prevented = prevented(cores);
        let plan = |part| match &prevented {
            Some(reason) => (part, Err(reason.clone())),
            None => (part, parts::plan(part, config, cores, &programs, &web_root)),
        };
        let parts = Part::ALL.into_iter().map(plan).collect();
        Ok(Self { programs, cores, parts, _web_root: web_root })
    }

    /// About how many turns it takes: fewer where time runs out, and more where turns are repeated.
    pub fn steps(&self) -> usize {
        self.parts.iter().flat_map(|(_, plan)| plan).map(PartPlan::steps).sum()
    }

    /// Measures all parts. Calls `progress` before each turn. A part that fails is missing, and the
    /// others are measured.
    pub fn measure(self, progress: &mut dyn FnMut(&str)) -> Parts {
        let cores = self.cores;
        let mut measure = |part: Part, plan: PartPlan| {
            let result = plan.measure(cores, &mut |step| progress(&format!("{part:?}: {step}")));
            match result.map_err(|error: Error| format!("failed: {error}"))? {
                result if result.has_figures() => Ok(result),
                result => Err(format!("no turn was valid: {}", result.notes.join("; "))),
            }
        };
        let parts = self.parts.into_iter();
        parts.map(|(part, plan)| (part, plan.and_then(|plan| measure(part, plan)))).collect()
    }
}

/// Why no part can be measured, if none can.
fn prevented(cores: CoreAssignment) -> Option<String> {
    if cores.server == cores.client {
        return Some("needs two cores: one for the server, and one for the load".to_owned());
    }
    let reason = Testbed::new(1).err()?;
    let needs =
        if reason.kind() == io::ErrorKind::PermissionDenied { "needs root" } else { "needs a testbed" };
    Some(format!("{needs} ({reason}): policies are settings of a queue, and loopback has none"))
}
