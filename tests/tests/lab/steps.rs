//! The `lab steps` command.

use serde_json::Value;
use serial_test::serial;
use tests::isolated;

use super::reports::{array, lab, run};

#[test]
#[isolated(root)]
#[serial]
fn lab_steps_shows_each_server_after_each_step_of_each_load() {
    // An unoptimized server and fleet keep up with that.
    let arguments = ["steps", "--quick", "--rounds", "1", "--capacity", "2000"];
    let contenders = ["--contenders", "vanilla:epoll,kernel-polling:epoll,kernel-polling:epoll:50"];
    let (_folder, report) = lab(&[&arguments[..], &contenders].concat());
    let loads = array(&report["results"]["measurements"]).iter().filter_map(|load| load["name"].as_str());
    let expected = ["steps of 400ms, 200 to 1800/s", "bursts of 10ms, 1800/s", "bursts of 100ms, 1800/s"];
    assert_eq!(loads.collect::<Vec<_>>(), expected);
    let servers = ["vanilla, epoll", "kernel-polling, epoll", "kernel-polling, epoll, 50 µs"];
    // Empty where the machine disturbed the round.
    for load in array(&report["steps"]) {
        let steps: &[&str] = if load["rate"]["low"].as_f64() > Some(0.0) { &["up", "down"] } else { &["up"] };
        let expected: Vec<(&str, &str)> =
            steps.iter().flat_map(|&step| servers.map(|server| (step, server))).collect();
        let rows = array(&load["rows"]);
        let named: Vec<(&str, &str)> =
            rows.iter().map(|row| (row["step"].as_str().unwrap(), row["name"].as_str().unwrap())).collect();
        assert_eq!(named, expected);
        rows.iter().for_each(|row| check_row(load, row));
    }
}

fn check_row(load: &Value, row: &Value) {
    let turns = row["turns"].as_u64().unwrap();
    assert!(turns <= 1, "{row}");
    // An unoptimized fleet may send too late, so that no turn is valid.
    if turns == 0 {
        return;
    }
    // Only what stays for long enough can settle.
    let stays = load["rate"]["seconds"].as_f64() >= Some(0.4);
    assert_eq!(row["settled_p50"].is_object(), stays, "{row}");
    assert_eq!(row["settled_p99"].is_object(), stays, "{row}");
    if stays {
        let settled = &row["settled_p50"];
        let [earliest, at] = ["earliest", "at"].map(|name| settled[name].as_f64().unwrap());
        assert!(earliest <= at && at <= 300.0, "{row}");
        // One round is too few.
        assert!(settled["latest"].is_null(), "{row}");
    }
    let compared = row["name"] != "vanilla, epoll";
    assert!(array(&row["excess"]).len() <= if compared { 3 } else { 0 }, "{row}");
}

#[test]
#[isolated(root)]
fn rates_are_refused_where_they_have_no_effect() {
    let output = run(&["steps", "--rates", "500"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("--rates has no effect"), "{error}");
}
