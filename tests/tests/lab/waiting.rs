//! The `lab waiting` command.

use std::process::Command;

use serde_json::Value;
use serial_test::serial;

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
#[serial]
fn lab_waiting_measures_every_pair_at_every_gap_and_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let run = Command::new(tests::own_program("lab"))
        .args(["waiting", "--quick", "--seconds", "6", "--format", "json"])
        .args(["--output", folder.path().to_str().unwrap()])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{stderr}");
    let report: Value = serde_json::from_slice(&run.stdout).unwrap_or_else(|_| panic!("{stderr}"));
    let saved: Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("results.json")).unwrap()).unwrap();
    assert_eq!(saved, report, "the file has what was printed");
    for field in ["machine", "cores", "cores_awake", "config", "targets", "results"] {
        assert!(!report[field].is_null(), "no {field}");
    }
    assert_eq!(array(&report["verdict"]).len(), 4, "{}", report["verdict"]);
    let gaps = array(&report["config"]["gaps"]);
    assert_eq!(gaps.len(), 6);
    let loads = array(&report["results"]["measurements"]);
    assert_eq!(loads.len(), 3 * gaps.len() + 1);
    for load in loads {
        assert_eq!(load["contenders"], serde_json::json!(["block", "spin", "adaptive"]));
        let figures: &[&str] = if load["name"] == "memcached" {
            &["p99", "cpu-share"]
        } else {
            &["round-trip", "cpu-per-request"]
        };
        // Every turn that is valid has them, whether it counts or not.
        for turn in array(&load["turns"]).iter().filter(|turn| turn["invalid"].is_null()) {
            for figure in figures {
                assert!(number(&turn["figures"][figure]) > 0.0, "{turn}");
            }
        }
    }
    for target in array(&report["targets"]) {
        let has_interval = number(&target["ratio"]["confidence"]) >= 0.95;
        assert!(has_interval || target["outcome"] == "undecided", "{target}");
    }
}
