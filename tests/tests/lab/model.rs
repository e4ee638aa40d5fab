//! The `lab model` command.

use serde_json::Value;
use serial_test::serial;

use super::reports::{array, number, saved};

/// Runs it, and checks what is true on any machine.
fn model(arguments: &[&str]) -> Value {
    let (folder, report) = saved(&[&["model", "--quick"], arguments].concat());
    assert!(std::fs::read_to_string(folder.path().join("potential.svg")).unwrap().starts_with("<svg"));
    for field in ["machine", "cores", "config", "verdict", "model", "results"] {
        assert!(!report[field].is_null(), "no {field}");
    }
    let figures = &report["model"];
    assert!(report["vulnerabilities"].is_array());
    assert!(number(&report["crossing"]["system_call"]["low"]) > 0.0, "{}", report["crossing"]);
    // A disturbed machine may have completed no round.
    let rows =
        || array(&figures["path"]["rows"]).iter().filter(|row| number(&row["potential"]["count"]) > 0.0);
    for row in rows() {
        assert!(number(&row["server_us"]["low"]) > 0.0 && number(&row["server_calls"]) >= 2.0, "{row}");
    }
    let shares: Vec<f64> = rows().map(|row| number(&row["potential"]["median"])).collect();
    assert!(shares.iter().all(|share| (0.0..1.0).contains(share)), "{shares:?}");
    // Neighbours may change places by noise; 64 B and 1 MiB are far apart.
    assert!(shares.is_empty() || shares[0] > shares[shares.len() - 1], "falls with the size: {shares:?}");
    for server in array(&figures["servers"]) {
        assert!(number(&server["waits"]) > 0.0, "{server}");
        let [cpu, crossings, rest] =
            ["cpu_us", "crossings_us", "rest_us"].map(|name| number(&server[name]["median"]));
        assert!(crossings > 0.0 && rest > 0.0 && crossings < cpu && rest < cpu, "{server}");
        let potential = number(&server["potential"]["median"]);
        assert!(potential > 0.0 && potential < 1.0, "{server}");
        let transfers = if server["name"].as_str().unwrap().ends_with("uring") { 0.0 } else { 2.0 };
        assert_eq!(number(&server["transfers"]), transfers, "{server}");
    }
    for prediction in array(&figures["predictions"]) {
        let has_interval = ["predicted_gain", "measured_gain"]
            .iter()
            .all(|gain| number(&prediction[gain]["confidence"]) >= 0.95);
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
