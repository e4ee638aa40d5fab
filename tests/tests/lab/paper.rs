//! The `lab paper` command.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use serial_test::serial;
use tests::isolated;

use super::reports::array;

/// Every table and figure with measurements; figures 1 to 4 are drawings.
const EXHIBITS: [&str; 10] = [
    "Table 1", "Table 2", "Table 3", "Table 4", "Table 5", "Figure 5", "Figure 6", "Figure 7", "Figure 8",
    "Figure 9",
];
/// Numbers of the paper, one of each table.
const PUBLISHED: [&str; 5] = ["106468", "647441", "2108154", "601494", "947021"];

/// `lab paper`, much shortened, as a command with a prefix.
fn paper(prefix: &[&str], folder: &Path) -> Output {
    let lab = tests::own_program("lab");
    let lab = lab.to_str().unwrap();
    let folder = folder.to_str().unwrap();
    let short = [lab, "paper", "--quick", "--turn-time", "50", "--rounds", "1", "--output", folder];
    let arguments = [prefix, &short].concat();
    Command::new(arguments[0]).args(&arguments[1..]).output().unwrap()
}

/// Checks that all files have every table and figure with the paper's numbers, and returns the
/// results.
fn has_every_exhibit(output: &Output, folder: &Path) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let summary = String::from_utf8_lossy(&output.stdout).into_owned();
    let html = read("report.html");
    let results: Value = serde_json::from_str(&read("results.json")).unwrap();
    let names: Vec<&str> =
        array(&results["exhibits"]).iter().filter_map(|exhibit| exhibit["name"].as_str()).collect();
    for name in EXHIBITS {
        assert!(names.contains(&name), "no {name} in {names:?}");
        assert!(html.contains(&format!("{name}: ")), "no {name} in {html}");
        assert!(summary.contains(&format!("{name}: ")), "no {name} in {summary}");
    }
    for number in PUBLISHED {
        for text in [&html, &results.to_string()] {
            assert!(text.contains(number), "no {number} in {text}");
        }
    }
    assert!(!html.contains("src=") && !html.contains("{{"), "the page needs no other file");
    let plots = array(&results["exhibits"]).iter().flat_map(|exhibit| array(&exhibit["plots"])).count();
    assert_eq!(html.matches("<figure>\n<svg").count(), plots, "{html}");
    results
}

/// The parts, with the reason of those that were not measured.
fn parts(results: &Value) -> Vec<(String, Option<String>)> {
    let part =
        |part: &Value| (part[0].as_str().unwrap().to_owned(), part[1]["Err"].as_str().map(str::to_owned));
    array(&results["parts"]).iter().map(part).collect()
}

#[test]
#[ignore = "long"]
#[isolated(root)]
#[serial]
fn lab_paper_reports_every_table_and_figure() {
    let folder = tempfile::tempdir().unwrap();
    let first = has_every_exhibit(&paper(&[], folder.path()), folder.path());
    let measured = parts(&first);
    let names: Vec<&str> = measured.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["policies", "web", "connections"]);
    for (name, reason) in &measured {
        let Some(reason) = reason else { continue };
        let expected = ["is not installed", "no turn was valid"];
        assert!(expected.iter().any(|it| reason.contains(it)), "{name}: {reason}");
    }
    for load in array(&first["parts"][0][1]["Ok"]["loads"]) {
        let systems: Vec<&str> =
            array(&load["rows"]).iter().filter_map(|row| row["contender"].as_str()).collect();
        let expected = [
            "vanilla, epoll",
            "packing, epoll",
            "suppression, epoll",
            "kernel-polling, epoll",
            "kernel-polling, epoll, 100 µs",
        ];
        assert_eq!(systems, expected, "{load}");
    }
}

#[test]
#[serial]
fn without_root_lab_paper_names_what_is_missing_beside_the_papers_numbers() {
    if tests::program("setpriv").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // Without capabilities root can do here what anybody can.
    let prefix: &[&str] = if rustix::process::geteuid().is_root() {
        &["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    } else {
        &[]
    };
    let output = paper(prefix, folder.path());
    let results = has_every_exhibit(&output, folder.path());
    for (name, reason) in parts(&results) {
        assert!(reason.as_ref().is_some_and(|reason| reason.starts_with("needs root")), "{name}: {reason:?}");
    }
    let html = fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert_eq!(html.matches("<tr class=\"missing\">").count(), EXHIBITS.len(), "{html}");
}

#[test]
fn a_folder_that_can_not_be_written_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let output = paper(&[], &file.join("below"));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && errors.contains("--output") && errors.contains("below"), "{errors}");
}
