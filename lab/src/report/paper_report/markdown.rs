//! The report as Markdown.

use std::fmt::Write;

use super::PaperReport;
use super::exhibit_report::{ExhibitReport, Status};
use super::tables::ReportTable;

pub(super) fn markdown(report: &PaperReport) -> String {
    let mut text = format!("# The paper on this machine\n\n{}\n\n", report.paper);
    for sentence in report.conditions() {
        let _ = writeln!(text, "- {sentence}");
    }
    text.push_str("\n| | In one sentence |\n|---|---|\n");
    for exhibit in &report.exhibits {
        let _ = writeln!(text, "| {} | {} |", exhibit.name, cell(&exhibit.glance));
    }
    for exhibit in &report.exhibits {
        section(&mut text, exhibit);
    }
    text
}

fn section(text: &mut String, exhibit: &ExhibitReport) {
    let _ = write!(text, "\n## {}: {}\n\n", exhibit.name, exhibit.caption);
    let _ = writeln!(text, "{}.", exhibit.place);
    match &exhibit.status {
        Status::NotMeasured(reason) => {
            let _ = write!(text, "\n**Not measured here: {reason}.**\n");
        }
        Status::Measured => {
            let _ = write!(text, "\n**{}**\n", exhibit.glance);
        }
    }
    for statement in &exhibit.statements {
        let _ = write!(text, "\n> {statement}\n");
    }
    for ReportTable { title, header, rows } in &exhibit.tables {
        let _ = write!(text, "\n{title}\n\n| {} |\n|{}\n", header.join(" | "), "---|".repeat(header.len()));
        for row in rows {
            let cells: Vec<String> = row.iter().map(|it| cell(it)).collect();
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
    }
    for plot in &exhibit.plots {
        let _ = write!(text, "\n![{}]({}.svg)\n", plot.title, plot.name);
    }
    list(text, "Differs from the paper", &exhibit.differs);
    list(text, "Notes", &exhibit.notes);
}

fn list(text: &mut String, title: &str, items: &[String]) {
    if items.is_empty() {
        return;
    }
    let _ = write!(text, "\n{title}:\n\n");
    for item in items {
        let _ = writeln!(text, "- {item}");
    }
}

/// A cell: a bar would end it.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
