//! The pages: README, the book under `docs/`, CONTRIBUTING and the others. Every relative link
//! leads to a file and a heading that exist, every page of the book is in its summary, and the
//! README stays short.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

#[test]
fn every_relative_link_leads_to_a_file_and_a_heading() {
    let root = root();
    let pages = markdown_files(&root);
    assert!(pages.len() > 5, "only {} pages below {}", pages.len(), root.display());
    let contents: BTreeMap<PathBuf, Page> =
        pages.iter().map(|path| (path.clone(), Page::read(path))).collect();
    let mut broken = Vec::new();
    let mut checked = 0;
    for (path, page) in &contents {
        for link in &page.links {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            checked += 1;
            if let Some(fault) = fault_of(path, link, &contents) {
                let name = path.strip_prefix(&root).unwrap_or(path);
                broken.push(format!("{}: ({link}) {fault}", name.display()));
            }
        }
    }
    assert!(checked > 20, "only {checked} relative links were found");
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

/// Set in the environment, tables are written into their pages.
const UPDATE: &str = "LULL_UPDATE_EXPECTED";

/// Compares the table that begins with `head`, or writes it if that is asked for.
fn check_table(page: &str, head: &str, table: &str) {
    let path = root().join(page);
    let page = std::fs::read_to_string(&path).unwrap();
    let start = page.find(head).unwrap();
    let end = page[start..].find("\n\n").map_or(page.len(), |end| start + end + 1);
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, format!("{}{table}{}", &page[..start], &page[end..])).unwrap();
    } else {
        assert_eq!(&page[start..end], table, "set {UPDATE}=1 to write it");
    }
}

/// The programs that were ported from tokio: the file on Lull, and what it shows.
const PORTS: [(&str, &str); 8] = [
    ("adapters/examples/axum_hello.rs", "axum with tower-http's layers"),
    ("adapters/examples/chat.rs", "a chat with all of tokio's channels"),
    ("adapters/examples/postgres_api.rs", "tokio-postgres with a pool"),
    ("adapters/examples/reqwest_pages.rs", "reqwest"),
    ("adapters/examples/grpc_chat.rs", "tonic with TLS"),
    ("adapters/examples/redis_counter.rs", "redis"),
    ("adapters/examples/mini_redis.rs", "a small Redis"),
    ("net/examples/metrics.rs", "the runtime's metrics for Prometheus"),
];

/// What `tests/crates-matrix` has written, and what it will be asked to.
#[test]
fn the_table_of_crates_has_the_versions_of_the_lock_file_and_every_crate_that_is_tested() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).unwrap();
    let (page, lock, manifest) =
        (read("docs/which-crates-work.md"), read("Cargo.lock"), read("adapters/Cargo.toml"));
    let table = page.split("| Crate | Version |").nth(1).unwrap().split("\n\n").next().unwrap();
    let mut listed = BTreeSet::new();
    for row in table.lines().skip(2) {
        let columns: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, version, what, outcomes @ ..] = &*columns else { panic!("{row}") };
        let package = format!("name = \"{name}\"\nversion = \"{version}\"\n");
        assert!(
            lock.contains(&package),
            "run tests/crates-matrix {name}: Cargo.lock has no {name} {version}"
        );
        let is_good = |outcome: &&str| !outcome.is_empty() && !outcome.contains("failed");
        assert!(outcomes.iter().all(is_good), "run tests/crates-matrix {name}, or mend {what}: {row}");
        listed.insert(*name);
    }
    // Helpers of tests, what a listed crate brings along, and what is on the page for itself.
    const OTHERS: &str = "bytes futures-core futures-io futures-rustls h2 http http-body-util memmap2 net \
        pin-project-lite prost rand rcgen runtime rustix send_wrapper serde slab tempfile \
        tests-requirements thiserror tonic-prost tower-layer tower-service tracing";
    let others: BTreeSet<&str> = OTHERS.split(' ').collect();
    let dependencies = manifest.lines().filter(|line| line.contains("workspace = true"));
    let names = dependencies.filter_map(|line| line.split([' ', '.', '=']).next());
    let missing: BTreeSet<&str> = names
        .filter(|name| !others.contains(name) && !listed.contains(name))
        .filter(|name| lock.contains(&format!("name = \"{name}\"\n")))
        .collect();
    assert!(missing.is_empty(), "give them a row in docs/which-crates-work.md: {missing:?}");
}

#[test]
fn the_page_says_how_many_lines_a_port_changes() {
    let mut table = "| Program | Lines on tokio | Changed on Lull |\n|---|---|---|\n".to_owned();
    for (path, what) in PORTS {
        let read = |path: &str| std::fs::read_to_string(root().join(path)).unwrap();
        let patch = patch_of(path);
        let (program, change) = (read(path), Change::of(&read(&patch)));
        // Without what says how it is run.
        let lines = program.lines().filter(|line| !line.starts_with("//!")).count();
        let (on_tokio, changed) = (lines + change.removed - change.added, change.changed);
        table += &format!("| [{what}](../{path}) | {on_tokio} | [{changed}](../{patch}) |\n");
    }
    check_table("docs/from-tokio.md", "| Program |", &table);
}

#[test]
fn the_program_on_tokio_is_made_of_each_example_by_its_patch() {
    for (path, _) in PORTS {
        let mut undo = std::process::Command::new("git");
        undo.args(["apply", "--check", "--reverse", &patch_of(path)]).current_dir(root());
        let undone = undo.output().expect("git must be installed");
        let said = String::from_utf8_lossy(&undone.stderr);
        assert!(undone.status.success(), "change the patch with its example: {said}");
    }
}

/// The patch that made an example of tokio's program.
fn patch_of(path: &str) -> String {
    let name = Path::new(path).file_stem().unwrap().to_str().unwrap();
    format!("adapters/examples/from-tokio/{name}.patch")
}

/// How many lines a patch removes and adds.
#[derive(Debug, Default, PartialEq)]
struct Change {
    removed: usize,
    added: usize,
    /// Of each run of differing lines the larger side counts.
    changed: usize,
}

impl Change {
    fn of(patch: &str) -> Self {
        let (mut change, mut run) = (Self::default(), (0, 0));
        // The first two lines name the files.
        for line in patch.lines().skip(2).chain([""]) {
            match line.as_bytes().first() {
                Some(b'-') => run.0 += 1,
                Some(b'+') => run.1 += 1,
                _ => {
                    change.removed += run.0;
                    change.added += run.1;
                    change.changed += usize::max(run.0, run.1);
                    run = (0, 0);
                }
            }
        }
        change
    }
}

#[test]
fn changed_lines_are_those_of_the_larger_side() {
    let patch = "--- a/x\n+++ b/x\n@@ -1,4 +1,5 @@\n a\n-b\n+x\n+y\n c\n-d\n@@ -9 +9 @@\n-e\n+z\n";
    assert_eq!(Change::of(patch), Change { removed: 3, added: 3, changed: 4 });
}

#[test]
fn every_page_of_the_book_is_in_its_summary() {
    let docs = root().join("docs");
    let listed: BTreeSet<PathBuf> = Page::read(&docs.join("SUMMARY.md"))
        .links
        .iter()
        .map(|link| docs.join(link).canonicalize().unwrap_or_else(|_| docs.join(link)))
        .collect();
    let unlisted: Vec<PathBuf> = markdown_files(&docs)
        .into_iter()
        .filter(|path| !path.ends_with("SUMMARY.md") && !listed.contains(path))
        .collect();
    assert!(unlisted.is_empty(), "not in docs/SUMMARY.md: {unlisted:?}");
}

#[test]
fn every_file_that_a_page_of_the_book_includes_exists() {
    let mut missing = Vec::new();
    for page in markdown_files(&root().join("docs")) {
        let text = std::fs::read_to_string(&page).unwrap();
        for include in text.split("{{#").skip(1).filter_map(|rest| rest.split("}}").next()) {
            let Some((_, file)) = include.split_once(' ') else { continue };
            let file = file.split(':').next().unwrap_or(file).trim();
            if !page.parent().unwrap().join(file).is_file() {
                missing.push(format!("{}: {file}", page.display()));
            }
        }
    }
    assert!(missing.is_empty(), "included but not there:\n{}", missing.join("\n"));
}

#[test]
fn the_readme_has_at_most_110_lines() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let lines = readme.lines().count();
    assert!(lines <= 110, "README.md has {lines} lines: what goes deeper belongs into the book");
}

/// A Markdown file's links and the anchors of its headings.
struct Page {
    links: Vec<String>,
    anchors: BTreeSet<String>,
}

impl Page {
    fn read(path: &Path) -> Self {
        let text =
            std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut page = Self { links: Vec::new(), anchors: BTreeSet::new() };
        let mut heading: Option<String> = None;
        for event in Parser::new_ext(&text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.into_string());
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let anchor = anchor(&heading.take().unwrap_or_default());
                    // The second heading of a name gets a number, as GitHub and mdBook give it.
                    let repeated = (1..).map(|number| format!("{anchor}-{number}"));
                    let free = std::iter::once(anchor.clone())
                        .chain(repeated)
                        .find(|name| !page.anchors.contains(name));
                    page.anchors.extend(free);
                }
                Event::Text(text) | Event::Code(text) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    }
                }
                _ => {}
            }
        }
        page
    }
}

/// The anchor that GitHub and mdBook give a heading.
fn anchor(heading: &str) -> String {
    heading
        .to_lowercase()
        .chars()
        .filter_map(|char| match char {
            ' ' => Some('-'),
            '-' | '_' => Some(char),
            _ => char.is_alphanumeric().then_some(char),
        })
        .collect()
}

/// Why a relative link of a page leads nowhere; `None` where it leads somewhere.
fn fault_of(page: &Path, link: &str, pages: &BTreeMap<PathBuf, Page>) -> Option<String> {
    let (file, heading) = link.split_once('#').map_or((link, None), |(file, heading)| (file, Some(heading)));
    let target = if file.is_empty() { page.to_owned() } else { page.parent()?.join(file) };
    let Ok(target) = target.canonicalize() else { return Some("there is no such file".to_owned()) };
    let heading = heading?;
    match pages.get(&target) {
        Some(page) if page.anchors.contains(heading) => None,
        Some(_) => Some("the page has no such heading".to_owned()),
        None => Some("only Markdown pages have headings to link to".to_owned()),
    }
}

/// The Markdown files below a folder, but for what builds and other projects have put there.
fn markdown_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in
            std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path.canonicalize().unwrap());
            }
        }
    }
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}
