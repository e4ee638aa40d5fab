//! A document as Markdown for a terminal, and as one HTML page.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;

use comfy_table::presets;
use serde::Serialize;

use super::document::{Document, Section, Table};
use super::tables::styled_table;

/// The page, in which `{{title}}`, `{{lead}}`, `{{conditions}}`, `{{overview}}` and `{{exhibits}}`
/// stand for what follows.
const PAGE: &str = include_str!("page.html");

impl Document {
    /// As Markdown for a terminal, without plots and what is too long for it.
    pub fn text(&self) -> String {
        let mut text = format!("# {}\n\n", self.title);
        for finding in &self.findings {
            let _ = write!(text, "{finding}\n\n");
        }
        list(&mut text, &self.conditions);
        for section in self.sections.iter().filter(|it| !it.only_in_page) {
            let _ = write!(text, "\n## {}\n", heading(section));
            if !section.glance.is_empty() {
                let _ = write!(text, "\n**{}**\n", section.glance);
            }
            for Table { title, header, rows, names } in &section.tables {
                if !title.is_empty() {
                    let _ = write!(text, "\n{title}:\n");
                }
                // A bar would end the cell.
                let rows = rows.iter().map(|row| row.iter().map(|cell| cell.replace('|', "\\|")).collect());
                let _ = write!(text, "\n{}\n", styled_table(presets::ASCII_MARKDOWN, header, rows, *names));
            }
            if !section.notes.is_empty() {
                text.push('\n');
                list(&mut text, &section.notes);
            }
        }
        text
    }

    /// Writes `report.html` into a folder, which is a whole report to send to somebody, and
    /// `results.json` with the `json` that is in there, too.
    pub fn write(&self, folder: &Path, json: &impl Serialize) -> io::Result<()> {
        // One line: indented, a run of five minutes has several times as many bytes.
        let json = serde_json::to_string(json)?;
        // Nothing in there may look like the end of the element.
        let page = html(self).replace("{{results}}", &json.replace('<', "\\u003c"));
        fs::write(folder.join("report.html"), page)?;
        fs::write(folder.join("results.json"), json)
    }
}

fn heading(section: &Section) -> String {
    let Section { name, caption, .. } = section;
    if caption.is_empty() { name.clone() } else { format!("{name}: {caption}") }
}

fn list(text: &mut String, items: &[String]) {
    for item in items {
        let _ = writeln!(text, "- {item}");
    }
}

fn html(document: &Document) -> String {
    let overview = document.sections.iter().filter(|it| !it.glance.is_empty()).map(|section| {
        let class = if section.missing.is_none() { "" } else { " class=\"missing\"" };
        let (id, name, glance) = (&section.id, escape(&section.name), escape(&section.glance));
        format!("<tr{class}><td><a href=\"#{id}\">{name}</a></td><td>{glance}</td></tr>\n")
    });
    PAGE.replace("{{title}}", &escape(&document.title))
        .replace("{{lead}}", &elements("p", &document.findings))
        .replace("{{conditions}}", &elements("li", &document.conditions))
        .replace("{{overview}}", &overview.collect::<String>())
        .replace("{{exhibits}}", &document.sections.iter().map(html_section).collect::<String>())
}

fn html_section(section: &Section) -> String {
    let mut text = format!("<section id=\"{}\">\n{}", section.id, element("h2", &heading(section)));
    if !section.glance.is_empty() {
        let class = if section.missing.is_none() { "glance" } else { "reason" };
        text += &element(&format!("p class=\"{class}\""), &section.glance);
    }
    text += &elements("blockquote", &section.statements);
    for plot in &section.plots {
        let _ = writeln!(text, "<figure>\n{}\n{}</figure>", plot.svg, element("figcaption", &plot.title));
    }
    for Table { title, header, rows, .. } in &section.tables {
        let rows: String = rows.iter().map(|row| format!("<tr>{}</tr>\n", elements("td", row))).collect();
        let (caption, header) = (element("caption", title), elements("th", header));
        let _ =
            writeln!(text, "<div class=\"wide\"><table>\n{caption}<tr>{header}</tr>\n{rows}</table></div>");
    }
    if !section.notes.is_empty() {
        let notes = elements("li", &section.notes);
        let _ = writeln!(text, "<details open><summary>Notes</summary><ul>\n{notes}</ul></details>");
    }
    text + "</section>\n"
}

fn elements(tag: &str, texts: &[String]) -> String {
    texts.iter().map(|text| element(tag, text)).collect()
}

/// `tag` may have attributes.
fn element(tag: &str, text: &str) -> String {
    let name = tag.split(' ').next().unwrap_or(tag);
    format!("<{tag}>{}</{name}>\n", escape(text))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
