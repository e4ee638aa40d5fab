//! Runs of the `lab` command, and what its JSON says.

use std::process::{Command, Output};

use serde_json::Value;

pub fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

pub fn run(arguments: &[&str]) -> Output {
    Command::new(tests::own_program("lab")).args(arguments).output().unwrap()
}

/// `lab` with these arguments, its report in a folder, and what it prints as JSON.
pub fn lab(arguments: &[&str]) -> (tempfile::TempDir, Value) {
    let (folder, _, report) = printed(arguments);
    (folder, report)
}

/// As [`lab`], for a run that must succeed, and save what it prints.
pub fn saved(arguments: &[&str]) -> (tempfile::TempDir, Value) {
    let (folder, output, report) = printed(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let saved: Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("results.json")).unwrap()).unwrap();
    assert_eq!(saved, report, "the file has what was printed");
    (folder, report)
}

fn printed(arguments: &[&str]) -> (tempfile::TempDir, Output, Value) {
    let folder = tempfile::tempdir().unwrap();
    let more = ["--format", "json", "--output", folder.path().to_str().unwrap()];
    let output = run(&[arguments, &more].concat());
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    (folder, output, report)
}
