//! The `lab model` command.

use serde_json::Value;
use serial_test::serial;

use super::reports::{array, number, saved};

/// Runs it, and checks what is true on any machine.
fn model(arguments: &[&str]) -> Value {
    let (folder, report) = saved(&[&["model", "--quick"], arguments].concat());
    assert!(std::fs::read_to_string(folder.path().join("report.html")).unwrap().contains("<svg"));
    for field in ["machine", "cores", "config", "verdict", "model", "results"] {
        assert!(!report[field].is_null(), "no {field}");
    }
    assert!(report["vulnerabilities"].is_array());
    assert!(number(&report["crossing"]["system_call"]["low"]) > 0.0, "{}", report["crossing"]);
    // A disturbed machine may have completed no round.
    let loads = || array(&report["results"]["loads"]).iter();
    let mut shares = Vec::new();
    for (load, row) in loads().flat_map(|load| array(&load["rows"]).iter().map(move |row| (load, row))) {
        let median = |name: &str| number(&row["figures"][name]["value"]["median"]);
        let [cpu, crossings, rest] = ["cpu-per-request", "crossings", "rest"].map(median);
        assert!(crossings > 0.0 && rest > 0.0 && crossings < cpu && rest < cpu, "{row}");
        let share = median("potential");
        assert!(share > 0.0 && share < 100.0, "{row}");
        match row["contender"].as_str().unwrap() {
            "exchange" => {
                assert!(median("calls") >= 2.0, "{row}");
                shares.push((load["class"].as_str(), share));
            }
            name => {
                assert!(median("waits") > 0.0, "{row}");
                let transfers = if name.ends_with("uring") { 0.0 } else { 2.0 };
                assert!((median("calls") - median("waits") - transfers).abs() < 0.01, "{row}");
            }
        }
    }
    // Neighbours may change places by noise; 64 B and 1 MiB are far apart.
    let of_first: Vec<f64> = shares.iter().filter(|it| it.0 == shares[0].0).map(|it| it.1).collect();
    assert!(of_first.len() < 7 || of_first[0] > of_first[6], "falls with the size: {of_first:?}");
    for prediction in array(&report["model"]["predictions"]) {
        let has_interval = number(&prediction["measured"]["confidence"]) >= 0.95;
        assert_eq!(prediction["agrees"].is_boolean(), has_interval, "{prediction}");
    }
    report
}

#[test]
#[serial]
fn lab_model_measures_crossings_and_servers() {
    if tests::drivers(["uring"]).is_empty() {
        return;
    }
    model(&["--seconds", "10"]);
}
