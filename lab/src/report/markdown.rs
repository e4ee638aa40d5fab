//! The report as Markdown.

use std::fmt::Write;

use super::document::{Document, Section, Table};

pub(super) fn markdown(document: &Document) -> String {
    let mut text = format!("# {}\n\n", document.title);
    for finding in &document.findings {
        let _ = write!(text, "{finding}\n\n");
    }
    for sentence in &document.conditions {
        let _ = writeln!(text, "- {sentence}");
    }
    let mut with_glance = document.sections.iter().filter(|it| !it.glance.is_empty()).peekable();
    if with_glance.peek().is_some() {
        text.push_str("\n| | In one sentence |\n|---|---|\n");
    }
    for section in with_glance {
        let _ = writeln!(text, "| {} | {} |", section.name, cell(&section.glance));
    }
    for it in &document.sections {
        section(&mut text, it);
    }
    text
}

fn section(text: &mut String, exhibit: &Section) {
    let _ = write!(text, "\n## {}\n\n", exhibit.heading());
    if !exhibit.place.is_empty() {
        let _ = writeln!(text, "{}.", exhibit.place);
    }
    match &exhibit.missing {
        Some(reason) => {
            let _ = write!(text, "\n**Not measured here: {reason}.**\n");
        }
        None if exhibit.glance.is_empty() => {}
        None => {
            let _ = write!(text, "\n**{}**\n", exhibit.glance);
        }
    }
    for statement in &exhibit.statements {
        let _ = write!(text, "\n> {statement}\n");
    }
    for Table { title, header, rows, .. } in &exhibit.tables {
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
