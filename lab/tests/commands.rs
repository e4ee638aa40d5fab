//! `lab simulate` and `lab check`. Cargo builds the commands of a package that has integration tests, so
//! `cargo test --workspace` builds them for the tests that cross crates, too.

#![forbid(unsafe_code)]

use std::io::Write;
use std::process::{Command, Output};

fn simulate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lab")).arg("simulate").args(arguments).output().unwrap()
}

/// A file with these lines.
fn gaps(text: &str) -> tempfile::TempPath {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.into_temp_path()
}

#[test]
fn a_file_of_gaps_is_simulated_for_each_rule_and_budget() {
    let path = gaps(&"30000\n".repeat(5_000));
    let output = simulate(&["--gaps", path.to_str().unwrap(), "--budget", "0,30", "--format", "json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let simulation: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rules: Vec<&str> =
        simulation["rows"].as_array().unwrap().iter().map(|row| row["candidate"].as_str().unwrap()).collect();
    assert_eq!(rules[0], "plain");
    assert!(rules.contains(&"law, budget 0 µs") && rules.contains(&"law, budget 30 µs"), "{rules:?}");
    assert_eq!(simulation["rows"][0]["cpu_to_plain"], 1.0);
}

#[test]
fn wrong_input_is_an_error_that_says_what_to_write() {
    let bad = gaps("1000\nabc\n");
    let bad = bad.to_str().unwrap();
    for (arguments, expected) in [
        (
            ["--gaps", bad],
            "line 2: \"abc\" is not a gap; write the time between two arrivals in whole nanoseconds",
        ),
        (["--gaps", "/nonexistent"], "--gaps /nonexistent: No such file"),
        (["--budget", "2000"], "whole microseconds from 0 to 1000"),
        (["--costs", "real"], "[possible values: bare, virtual]"),
    ] {
        let output = simulate(&arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(expected), "{arguments:?}: {error}");
    }
}

#[test]
fn a_short_check_says_what_it_found_as_json() {
    let output = Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["check", "--seconds", "2", "--format", "json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let subjects: Vec<&str> =
        report["findings"].as_array().unwrap().iter().map(|it| it["subject"].as_str().unwrap()).collect();
    for subject in ["usable cores", "other load", "clock source", "kernel", "testbed"] {
        assert!(subjects.contains(&subject), "{subject} is missing: {subjects:?}");
    }
    let two_cores = std::thread::available_parallelism().unwrap().get() > 1;
    assert_eq!(subjects.contains(&"core distance"), two_cores, "{subjects:?}");
    // A check of two seconds has too few turns for an interval, so the verdict has no number.
    assert!(report["verdict"].as_str().unwrap().contains("was not measured"), "{report}");
}
