//! `lab check`. Cargo builds the commands of a package that has integration tests, so
//! `cargo test --workspace` builds them for the tests that cross crates, too.

#![forbid(unsafe_code)]

use std::process::Command;

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
    for subject in ["usable cores", "other load", "clock source", "testbed"] {
        assert!(subjects.contains(&subject), "{subject} is missing: {subjects:?}");
    }
    let two_cores = std::thread::available_parallelism().unwrap().get() > 1;
    assert_eq!(subjects.contains(&"core distance"), two_cores, "{subjects:?}");
    // A check of two seconds has too few turns for an interval, so the verdict has no number.
    assert!(report["verdict"].as_str().unwrap().contains("was not measured"), "{report}");
}
