//! The report as one HTML page, with its plots in it.

use std::fmt::Write;

use super::document::{Document, Section, Table};

/// The page, in which `{{title}}`, `{{lead}}`, `{{conditions}}`, `{{overview}}` and `{{exhibits}}`
/// stand for what follows.
const PAGE: &str = include_str!("page.html");

pub(super) fn html(document: &Document) -> String {
    let overview = document.sections.iter().filter(|it| !it.glance.is_empty()).map(overview);
    PAGE.replace("{{title}}", &escape(&document.title))
        .replace("{{lead}}", &elements("p", &document.findings))
        .replace("{{conditions}}", &elements("li", &document.conditions))
        .replace("{{overview}}", &overview.collect::<String>())
        .replace("{{exhibits}}", &document.sections.iter().map(section).collect::<String>())
}

fn overview(section: &Section) -> String {
    let class = if section.missing.is_none() { "" } else { " class=\"missing\"" };
    let (id, name, glance) = (&section.id, escape(&section.name), escape(&section.glance));
    format!("<tr{class}><td><a href=\"#{id}\">{name}</a></td><td>{glance}</td></tr>\n")
}

fn section(section: &Section) -> String {
    let mut text = format!("<section id=\"{}\">\n{}", section.id, element("h2", &section.heading()));
    text += &match &section.missing {
        Some(reason) => element("p class=\"reason\"", &format!("Not measured here: {reason}.")),
        None if section.glance.is_empty() => String::new(),
        None => element("p class=\"glance\"", &section.glance),
    };
    text += &elements("blockquote", &section.statements);
    for plot in &section.plots {
        // An XML declaration has no place in a page.
        let svg = plot.svg.find("<svg").map_or(&*plot.svg, |begin| &plot.svg[begin..]);
        let _ = writeln!(text, "<figure>\n{svg}\n{}</figure>", element("figcaption", &plot.title));
    }
    text.extend(section.tables.iter().map(table));
    if !section.notes.is_empty() {
        let notes = elements("li", &section.notes);
        let _ = writeln!(text, "<details open><summary>Notes</summary><ul>\n{notes}</ul></details>");
    }
    text + "</section>\n"
}

fn table(Table { title, header, rows, .. }: &Table) -> String {
    let rows: String = rows.iter().map(|row| format!("<tr>{}</tr>\n", elements("td", row))).collect();
    let (caption, header) = (element("caption", title), elements("th", header));
    format!("<div class=\"wide\"><table>\n{caption}<tr>{header}</tr>\n{rows}</table></div>\n")
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
