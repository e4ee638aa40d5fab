//! The `lab waiting` command.

use serial_test::serial;

use super::reports::{array, number, saved};

#[test]
#[serial]
fn lab_waiting_measures_every_pair_at_every_gap() {
    let (_folder, report) = saved(&["waiting", "--quick", "--seconds", "6"]);
    for field in ["machine", "cores", "cores_awake", "config", "targets", "results"] {
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
    for target in array(&report["targets"]) {
        let has_interval = number(&target["ratio"]["confidence"]) >= 0.95;
        assert!(has_interval || target["outcome"] == "undecided", "{target}");
    }
}
