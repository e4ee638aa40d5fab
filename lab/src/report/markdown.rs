//! The report as Markdown, whose tables are legible on a terminal, too.

use std::fmt::Write;

use comfy_table::presets;

use super::document::{Document, Section, Table};
use super::table::styled_table;

/// `on_terminal`: without plots, and without what is too long.
pub(super) fn markdown(document: &Document, on_terminal: bool) -> String {
    let mut text = format!("# {}\n\n", document.title);
    for finding in &document.findings {
        let _ = write!(text, "{finding}\n\n");
    }
    list(&mut text, &document.conditions);
    let with_glance = document.sections.iter().filter(|it| !it.glance.is_empty() && !on_terminal);
    let overview: Vec<_> = with_glance.map(|it| vec![it.name.clone(), it.glance.clone()]).collect();
    if !overview.is_empty() {
        table(&mut text, &Table { names: 2, ..Table::new("", &["", "In one sentence"], overview) });
    }
    for it in document.sections.iter().filter(|it| !(on_terminal && it.only_in_page)) {
        section(&mut text, it, on_terminal);
    }
    text
}

fn section(text: &mut String, section: &Section, on_terminal: bool) {
    let _ = write!(text, "\n## {}\n", section.heading());
    match &section.missing {
        Some(reason) => drop(write!(text, "\n**Not measured here: {reason}.**\n")),
        None if section.glance.is_empty() => {}
        None => drop(write!(text, "\n**{}**\n", section.glance)),
    }
    for statement in &section.statements {
        let _ = write!(text, "\n> {statement}\n");
    }
    section.tables.iter().for_each(|it| table(text, it));
    for plot in section.plots.iter().filter(|_| !on_terminal) {
        let _ = write!(text, "\n![{}]({}.svg)\n", plot.title, plot.name);
    }
    if !section.notes.is_empty() {
        text.push('\n');
        list(text, &section.notes);
    }
}

fn table(text: &mut String, Table { title, header, rows, names }: &Table) {
    if !title.is_empty() {
        let _ = write!(text, "\n{title}:\n");
    }
    // A bar would end the cell.
    let rows = rows.iter().map(|row| row.iter().map(|cell| cell.replace('|', "\\|")).collect());
    let left: Vec<usize> = (0..*names).collect();
    let _ = write!(text, "\n{}\n", styled_table(presets::ASCII_MARKDOWN, header, rows, &left));
}

fn list(text: &mut String, items: &[String]) {
    for item in items {
        let _ = writeln!(text, "- {item}");
    }
}
