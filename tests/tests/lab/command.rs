//! The `lab` command, and what its JSON says.

use std::process::Command;

use serde_json::Value;
use serial_test::serial;
use tests::isolated;

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[test]
#[ignore = "long"]
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
            "kernel-polling, epoll, grace 50 µs" => assert!((0.0..=1.0).contains(&share), "{row}"),
            other => panic!("{other} was not asked for"),
        }
        // 0 where no turn was valid: an unoptimized fleet may send too late.
        assert!(row["p99_us"]["median"].as_f64().is_some(), "{row}");
    }
}

#[test]
#[serial]
fn lab_compares_an_application_on_lull_with_the_same_on_tokio() {
    compare_application("axum");
}

#[test]
#[ignore = "long"]
#[serial]
fn lab_compares_each_application_on_lull_with_the_same_on_tokio() {
    for service in ["grpc", "websocket", "proxy"] {
        compare_application(service);
    }
}

fn compare_application(service: &str) {
    // One of the contestants.
    if tests::drivers(["uring"]).is_empty() || tests::descriptors(4000).is_none() {
        return;
    }
    let output = Command::new(tests::own_program("lab"))
        .args(["peers", "--service", service, "--loopback", "--quick", "--rounds", "1", "--format", "json"])
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    let rows = array(&report["rows"]);
    let names: Vec<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    // Empty where the machine disturbed the only round.
    assert!(names.is_empty() || names == ["lull uring", "lull epoll", "tokio"], "{names:?}");
    for row in rows {
        assert!(row["qps"].as_f64() > Some(0.0) && row["cpu_us_per_request"].as_f64() > Some(0.0), "{row}");
        // A connection with an HTTP session is more than a socket, on any runtime.
        assert!(row["bytes_per_idle_connection"].as_f64() > Some(1000.0), "{row}");
    }
    assert_eq!(
        array(&report["runs"])[0]["contestants"],
        serde_json::json!(["lull uring", "lull epoll", "tokio"])
    );
}

#[test]
fn services_that_the_fleet_can_not_ask_for_are_refused_without_loopback() {
    let output = Command::new(tests::own_program("lab"))
        .args(["peers", "--service", "grpc", "--quick"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("can't ask for grpc: add --loopback"), "{error}");
}

#[test]
#[isolated(root)]
#[serial]
fn explain_shows_what_lab_has_measured_last_of_each_latency_budget() {
    let state = tempfile::tempdir().unwrap();
    let run = |program: &str, arguments: &[&str]| {
        let output = Command::new(tests::own_program(program))
            .args(arguments)
            .env("XDG_STATE_HOME", state.path())
            .output()
            .unwrap();
        // Nothing can poll loopback.
        let expected = if program == "policies" { 3 } else { 0 };
        assert_eq!(output.status.code(), Some(expected), "{output:?}");
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let policies = ["--policies", "vanilla,kernel-polling", "--latency-budget", "0,20"];
    let load = ["compare", "--quick", "--rounds", "2", "--rates", "500", "--format", "json"];
    let (report, stderr) = run("lab", &[&load[..], &policies[..]].concat());
    let report: Value = serde_json::from_str(&report).unwrap();
    let kept = std::fs::read(state.path().join("lull/lab-last.json"));
    assert!(!stderr.contains("won't show this result"), "{stderr}");
    // The machine may have disturbed both rounds of a server.
    let loads = array(&report["result"]["loads"]);
    let rows =
        loads.iter().flat_map(|load| array(&load["classes"])).take(1).flat_map(|class| array(&class["rows"]));
    let measured = rows
        .filter(|row| row["cpu_ratio"]["count"].as_u64() > Some(0))
        .filter_map(|row| row["name"].as_str());
    let measured: Vec<&str> = measured.filter(|name| name.starts_with("kernel-polling")).collect();
    assert_eq!(kept.is_ok(), !measured.is_empty(), "{measured:?}");
    let Ok(kept) = kept else { return };
    let kept: Value = serde_json::from_slice(&kept).unwrap();
    assert_eq!(kept["report"], report, "the whole report is kept");
    let (text, _) = run("policies", &["explain", "lo"]);
    assert!(text.contains("measured less than a minute ago by lab"), "{text}");
    for name in measured {
        let budget = if name.contains("budget 20") { " 20 µs " } else { " 0 µs " };
        let row = text.lines().find(|line| line.starts_with(" 500/s ") && line.contains(budget));
        assert!(row.is_some_and(|row| row.contains("too few rounds")), "{name}: {text}");
    }
}

#[test]
fn explain_says_which_file_is_not_labs_and_goes_on() {
    let state = tempfile::tempdir().unwrap();
    std::fs::create_dir(state.path().join("lull")).unwrap();
    let path = state.path().join("lull/lab-last.json");
    for content in ["", "[]", r#"{"format": "lull-lab-result", "version": 2}"#] {
        std::fs::write(&path, content).unwrap();
        let explain = |format: &str| {
            let mut command = Command::new(tests::own_program("policies"));
            let output =
                command.args(["--format", format, "explain", "lo"]).env("XDG_STATE_HOME", state.path());
            let output = output.output().unwrap();
            assert!(output.status.code() == Some(3) && output.stderr.is_empty(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let expected = format!("{} is not a result of this version of lab", path.display());
        let text = explain("table");
        assert!(text.contains("has no NAPI") && text.contains(&expected), "{content}: {text}");
        let json: Value = serde_json::from_str(&explain("json")).unwrap();
        assert!(json["latency_budget"]["error"].as_str().unwrap().starts_with(&expected), "{json}");
    }
}
