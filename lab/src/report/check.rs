//! The report on a check of the machine.

use policies::host::Machine;
use serde::Serialize;

use super::document::{Document, Section, Table};
use crate::experiments::machine_check::MachineCheck;

#[derive(Debug, Serialize)]
pub struct CheckReport {
    pub machine: Machine,
    #[serde(flatten)]
    pub check: MachineCheck,
}

impl CheckReport {
    pub fn new(check: MachineCheck) -> Self {
        Self { machine: Machine::read(), check }
    }

    pub fn document(&self) -> Document {
        let findings = &self.check.findings;
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
            findings: vec![self.check.verdict.clone()],
            sections: vec![Section {
                tables: vec![table],
                notes: advice.collect(),
                ..Section::new("properties", "What was found")
            }],
        }
    }
}
