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
    let output = folder.path().join("waiting.json");
    let run = Command::new(tests::own_program("lab"))
        .args(["waiting", "--quick", "--seconds", "6", "--format", "json"])
        .args(["--output", output.to_str().unwrap()])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{stderr}");
    let report: Value = serde_json::from_slice(&run.stdout).unwrap_or_else(|_| panic!("{stderr}"));
    let saved: Value = serde_json::from_slice(&std::fs::read(output).unwrap()).unwrap();
    assert_eq!(saved, report, "the file has what was printed");
    for field in ["machine", "cores", "cores_awake", "config", "notes", "rows", "measured"] {
        assert!(!report[field].is_null(), "no {field}");
    }
    assert_eq!(array(&report["verdict"]).len(), 4, "{}", report["verdict"]);
    let gaps = array(&report["config"]["gaps"]);
    assert_eq!(gaps.len(), 6);
    let runs = array(&report["measured"]["messages"]);
    assert_eq!(runs.len(), 3);
    for run in runs {
        // Every turn has every gap, whether it counts or not.
        let turns = array(&run[1]["classes"]).iter().flat_map(|class| array(&class["rounds"]));
        for turn in turns.flat_map(|round| array(&round["turns"])) {
            let costs = array(&turn["value"]);
            assert_eq!(costs.len(), gaps.len(), "{turn}");
            for cost in costs {
                assert!(number(&cost["messages"]) > 0.0 && number(&cost["round_trip_us"]) > 0.0, "{cost}");
                assert!(number(&cost["answering_cpu_us"]) > 0.0, "{cost}");
            }
        }
    }
    for row in array(&report["rows"]["messages"]) {
        assert_eq!((array(&row["round_trip_us"]).len(), array(&row["cpu_us"]).len()), (3, 3), "{row}");
        assert!([0.0, 1.0].contains(&number(&row["better"])), "{row}");
        for target in [&row["round_trip"], &row["cpu"]] {
            let has_interval = number(&target["ratio"]["confidence"]) >= 0.95;
            assert_eq!(target["outcome"] != "no-interval", has_interval, "{target}");
        }
    }
    for row in array(&report["rows"]["server"]) {
        let [block, spin, adaptive] = array(&row["cpu_share"]) else { panic!("{row}") };
        let share = |it: &Value| number(&it["median"]);
        assert!([block, spin, adaptive].into_iter().all(|it| share(it) > 0.0), "{row}");
    }
}
