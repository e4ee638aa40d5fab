//! Runs of the `lab` command, and what its JSON says.

use std::process::{Command, Output};

use serde_json::Value;

pub fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(tests::own_program("lab"));
    // A machine that runs tests is not quiet.
    let measures = !["paper", "instructions"].contains(&arguments[0]);
    command.args(arguments).args(measures.then_some("--anyway")).output().unwrap()
}

/// `lab` with these arguments, its report in a folder, and what it prints as JSON.
pub fn lab(arguments: &[&str]) -> (tempfile::TempDir, Value) {
    let folder = tempfile::tempdir().unwrap();
    let more = ["--format", "json", "--output", folder.path().to_str().unwrap()];
    let output = run(&[arguments, &more].concat());
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    (folder, report)
}
