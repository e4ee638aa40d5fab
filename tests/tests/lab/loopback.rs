//! The `lab model` and `lab waiting` commands, which need no testbed.

use serial_test::serial;

use super::reports::{array, number, saved};

#[test]
#[serial]
fn lab_model_measures_crossings_and_servers() {
    if tests::drivers(["uring"]).is_empty() {
        return;
    }
    let (_folder, report) = saved(&["model", "--quick", "--seconds", "5"]);
    for field in ["machine", "cores", "config", "verdict", "predictions", "results"] {
        assert!(!report[field].is_null(), "no {field}");
    }
    assert!(report["vulnerabilities"].is_array());
    assert!(number(&report["crossing"]["system_call"]["low"]) > 0.0, "{}", report["crossing"]);
    // A disturbed machine may have completed no round.
    for row in array(&report["results"]["loads"]).iter().flat_map(|load| array(&load["rows"])) {
        let median = |name: &str| number(&row["figures"][name]["value"]["median"]);
        let [cpu, crossings, rest] = ["cpu-per-request", "crossings", "rest"].map(median);
        assert!(crossings > 0.0 && rest > 0.0 && crossings < cpu && rest < cpu, "{row}");
        let share = median("potential");
        assert!(share > 0.0 && share < 100.0, "{row}");
        assert!(median("waits") > 0.0, "{row}");
        let transfers = if row["contender"].as_str().unwrap().ends_with("uring") { 0.0 } else { 2.0 };
        assert!((median("calls") - median("waits") - transfers).abs() < 0.01, "{row}");
    }
    for prediction in array(&report["predictions"]) {
        let has_interval = number(&prediction["measured"]["confidence"]) >= 0.95;
        assert_eq!(prediction["agrees"].is_boolean(), has_interval, "{prediction}");
    }
}

#[test]
#[serial]
fn lab_waiting_measures_every_pair_at_every_gap() {
    let (_folder, report) = saved(&["waiting", "--quick", "--seconds", "5"]);
    for field in ["machine", "cores", "cores_awake", "config", "results"] {
        assert!(!report[field].is_null(), "no {field}");
    }
    assert_eq!(array(&report["verdict"]).len(), 2, "{}", report["verdict"]);
    let gaps = array(&report["config"]["gaps"]);
    assert_eq!(gaps.len(), 6);
    let loads = array(&report["results"]["measurements"]);
    assert_eq!(loads.len(), 3 * gaps.len());
    for load in loads {
        assert_eq!(load["contenders"], serde_json::json!(["block", "spin", "adaptive"]));
        // Every turn that is valid has them, whether it counts or not.
        for turn in array(&load["turns"]).iter().filter(|turn| turn["invalid"].is_null()) {
            for figure in ["round-trip", "cpu-per-request"] {
                assert!(number(&turn["figures"][figure]) > 0.0, "{turn}");
            }
        }
    }
}
