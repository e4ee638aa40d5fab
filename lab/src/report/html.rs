//! The report as one HTML page, with its plots in it.

use std::fmt::Write;

use super::document::{Document, Section, Table};

/// The page, in which `{{title}}`, `{{lead}}`, `{{conditions}}`, `{{overview}}` and `{{exhibits}}` stand for what follows.
const PAGE: &str = include_str!("page.html");

pub(super) fn html(document: &Document) -> String {
    let conditions: String =
        document.conditions.iter().map(|it| format!("<li>{}</li>\n", escape(it))).collect();
    let findings: String = document.findings.iter().map(|it| format!("<p>{}</p>\n", escape(it))).collect();
    let overview: String =
        document.sections.iter().filter(|it| !it.glance.is_empty()).map(overview).collect();
    let sections: String = document.sections.iter().map(section).collect();
    PAGE.replace("{{title}}", &escape(&document.title))
        .replace("{{lead}}", &findings)
        .replace("{{conditions}}", &conditions)
        .replace("{{overview}}", &overview)
        .replace("{{exhibits}}", &sections)
}

fn overview(section: &Section) -> String {
    format!(
        "<tr{}><td><a href=\"#{}\">{}</a></td><td>{}</td></tr>\n",
        if section.missing.is_none() { "" } else { " class=\"missing\"" },
        section.id,
        escape(&section.name),
        escape(&section.glance)
    )
}

fn section(exhibit: &Section) -> String {
    let mut text = format!(
        "<section id=\"{}\">\n<h2>{}</h2>\n<p class=\"place\">{}</p>\n",
        exhibit.id,
        escape(&exhibit.heading()),
        escape(&exhibit.place)
    );
    let _ = match &exhibit.missing {
        Some(reason) => writeln!(text, "<p class=\"reason\">Not measured here: {}.</p>", escape(reason)),
        None if exhibit.glance.is_empty() => Ok(()),
        None => writeln!(text, "<p class=\"glance\">{}</p>", escape(&exhibit.glance)),
    };
    for statement in &exhibit.statements {
        let _ = writeln!(text, "<blockquote>{}</blockquote>", escape(statement));
    }
    for plot in &exhibit.plots {
        let _ = writeln!(
            text,
            "<figure>\n{}\n<figcaption>{}</figcaption></figure>",
            inline(&plot.svg),
            escape(&plot.title)
        );
    }
    exhibit.tables.iter().for_each(|it| table(&mut text, it));
    list(&mut text, "Differs from the paper", &exhibit.differs, " open");
    list(&mut text, "Notes", &exhibit.notes, "");
    text.push_str("</section>\n");
    text
}

fn table(text: &mut String, Table { title, header, rows, .. }: &Table) {
    let cells = |tag: &str, cells: &[String]| -> String {
        cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect()
    };
    let _ = writeln!(
        text,
        "<div class=\"wide\"><table>\n<caption>{}</caption>\n<tr>{}</tr>",
        escape(title),
        cells("th", header)
    );
    for row in rows {
        let _ = writeln!(text, "<tr>{}</tr>", cells("td", row));
    }
    text.push_str("</table></div>\n");
}

fn list(text: &mut String, title: &str, items: &[String], open: &str) {
    if items.is_empty() {
        return;
    }
    let _ = writeln!(text, "<details{open}><summary>{title}</summary><ul>");
    for item in items {
        let _ = writeln!(text, "<li>{}</li>", escape(item));
    }
    text.push_str("</ul></details>\n");
}

/// An image that is as wide as the page, at most.
fn inline(svg: &str) -> &str {
    // An XML declaration has no place in a page.
    svg.find("<svg").map_or(svg, |begin| &svg[begin..])
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
