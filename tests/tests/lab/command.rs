//! The `lab` command, and what its JSON says.

use std::process::Command;

use serde_json::Value;
use serial_test::serial;
use tests::isolated;

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[test]
#[isolated(root)]
#[serial]
fn lab_compares_the_policies_that_it_was_asked_for_and_prints_every_load() {
    let output = Command::new(tests::own_program("lab"))
        .args(["compare", "--quick", "--rounds", "2", "--policies", "vanilla,kernel-polling"])
        .args(["--format", "json", "--gro-flush-timeout", "50"])
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    let result = &report["result"];
    let ran: Vec<&str> = array(&result["servers"]).iter().filter_map(|it| it["ran"].as_str()).collect();
    assert_eq!(ran, ["vanilla", "kernel-polling"]);
    // Two rounds are too few.
    let verdict = report["verdict"].as_str().unwrap();
    assert!(
        verdict.starts_with("Too few rounds") || verdict.starts_with("Nothing was measured"),
        "{verdict}"
    );
    let shares: Vec<&Value> = array(&result["loads"]).iter().map(|load| &load["share"]).collect();
    assert_eq!(shares, array(&report["config"]["shares"]).iter().collect::<Vec<_>>());
    assert!(!shares.is_empty());
    // Empty where the machine disturbed both rounds.
    let classes = array(&result["loads"]).iter().flat_map(|load| array(&load["classes"]));
    for row in classes.flat_map(|class| array(&class["rows"])) {
        let share = row["busy_poll_share"].as_f64().unwrap();
        match row["name"].as_str().unwrap() {
            "vanilla, epoll" => assert_eq!(share, 0.0, "{row}"),
            "kernel-polling, epoll" => assert!((0.0..=1.0).contains(&share), "{row}"),
            other => panic!("{other} was not asked for"),
        }
        // 0 where no turn was valid: an unoptimized fleet may send too late.
        assert!(row["p99_us"]["median"].as_f64().is_some(), "{row}");
    }
}
