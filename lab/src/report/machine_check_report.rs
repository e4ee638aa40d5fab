//! The report on a check of the machine.

use policies::host::Machine;
use serde::Serialize;

use super::table::plain_table;
use crate::experiments::machine_check::MachineCheck;

/// The report on a check of the machine.
#[derive(Debug, Serialize)]
pub struct MachineCheckReport {
    /// The machine.
    pub machine: Machine,
    /// What was found.
    #[serde(flatten)]
    pub check: MachineCheck,
}

impl MachineCheckReport {
    /// The report as text.
    pub fn text(&self) -> String {
        let Machine { cpu, cores, kernel, .. } = &self.machine;
        let findings = &self.check.findings;
        let rows = findings
            .iter()
            .map(|finding| vec![finding.subject.clone(), finding.level.to_string(), finding.found.clone()]);
        let table = plain_table(["property", "", "found"], rows, &[0, 1, 2]);
        let mut text = format!("{cpu}, {cores} cores, Linux {kernel}\n\n{table}\n\n");
        for finding in findings {
            if let Some(advice) = &finding.advice {
                text.push_str(&format!("{}: {advice}\n", finding.subject));
            }
        }
        text.push_str(&format!("\n{}\n", self.check.verdict));
        text
    }
}
