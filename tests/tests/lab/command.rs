//! The `lab` command, and what its JSON says.

use std::process::Command;

use serde_json::Value;
use serial_test::serial;
use tests::isolated;

use super::reports::{array, lab};

#[test]
#[ignore = "long"]
#[isolated(root)]
#[serial]
fn lab_compares_the_contenders_that_it_was_asked_for_under_every_load() {
    let contenders = "vanilla:epoll,vanilla:uring,kernel-polling:epoll";
    let asked =
        ["compare", "--quick", "--rounds", "2", "--gro-flush-timeout", "50", "--contenders", contenders];
    let (folder, report) = lab(&asked);
    let ran: Vec<&str> = array(&report["servers"]).iter().filter_map(|it| it["ran"].as_str()).collect();
    assert_eq!(ran, ["vanilla", "vanilla", "kernel-polling"]);
    assert_eq!(report["experiment"]["references"], serde_json::json!([0, 1]));
    let kinds: Vec<&Value> =
        array(&report["results"]["measurements"]).iter().map(|load| &load["kind"]).collect();
    // A disturbed machine may prevent the search for the capacity. Then there is no load at a share
    // of it.
    assert!(kinds == ["capacity", "open", "closed"] || kinds == ["capacity", "closed"], "{kinds:?}");
    // Two rounds are too few. Empty where the machine disturbed both.
    let verdict = report["verdict"].to_string();
    assert!(["too few rounds", "Nothing was measured"].iter().any(|it| verdict.contains(it)), "{verdict}");
    for row in array(&report["results"]["loads"]).iter().flat_map(|load| array(&load["rows"])) {
        let expected = ["vanilla, epoll", "vanilla, uring", "kernel-polling, epoll, grace 50 µs"];
        assert!(expected.iter().any(|name| row["contender"] == *name), "{row}");
        // An unoptimized fleet may send too late: then the figure is not there.
        let share = &row["figures"]["busy-poll-share"]["value"]["median"];
        assert!(share.is_null() || (0.0..=100.0).contains(&share.as_f64().unwrap()), "{row}");
    }
    let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.contains("vanilla, uring") && !page.contains("{{") && !page.contains("src="), "{page}");
    assert!(folder.path().join("report.md").exists() && folder.path().join("results.json").exists());
    let diff = Command::new(tests::own_program("lab")).arg("diff").args([folder.path(); 2]).output().unwrap();
    let text = String::from_utf8_lossy(&diff.stdout).into_owned();
    assert!(diff.status.success() && text.contains(" 0 are worse"), "{diff:?}");
}

#[test]
#[isolated(root)]
#[serial]
fn the_first_screen_has_forty_lines_of_a_hundred_columns_and_names_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(tests::own_program("lab"))
        .args(["--quick", "--rounds", "1", "--rates", "500,600"])
        .args(["--output", folder.path().to_str().unwrap()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() <= 40 && lines.iter().all(|line| line.chars().count() <= 100), "{text}");
    let page = folder.path().join("report.html");
    assert_eq!(lines.last(), Some(&&*format!("Plots and every number: {}", page.display())));
    assert!(page.exists());
    // The machine may have disturbed the only round.
    let verdict = lines[..10].join(" ");
    assert!(["kernel-polling, auto", "Nothing was measured"].iter().any(|it| verdict.contains(it)), "{text}");
    assert!(text.contains("Left out of "), "{text}");
}

#[test]
#[isolated(root, drivers = "uring")]
#[serial]
fn lab_compares_an_application_on_lull_with_the_same_on_tokio() {
    // A rate that an unoptimized fleet can keep.
    let asked = ["peers", "--service", "axum", "--quick", "--rounds", "1", "--rates", "500"];
    let (_folder, report) = lab(&asked);
    // Empty where the machine disturbed the only round.
    for row in array(&report["results"]["loads"]).iter().flat_map(|load| array(&load["rows"])) {
        let figure = |name: &str| row["figures"][name]["value"]["median"].as_f64();
        let is_measured = figure("throughput") > Some(0.0) && figure("cpu-per-request") > Some(0.0);
        assert!(row["turns"] == 0 || is_measured, "{row}");
    }
    assert_eq!(
        array(&report["results"]["measurements"])[0]["contenders"],
        serde_json::json!([
            "tokio",
            "lull, vanilla, uring",
            "lull, vanilla, epoll",
            "lull, packing, uring",
            "lull, suppression, epoll",
            "lull, kernel-polling, epoll",
            "lull, kernel-polling, uring"
        ])
    );
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
            .current_dir(state.path())
            .output()
            .unwrap();
        // Nothing can poll loopback.
        let expected = if program == "policies" { 3 } else { 0 };
        assert_eq!(output.status.code(), Some(expected), "{output:?}");
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let contenders = "vanilla:epoll,kernel-polling:epoll:0,kernel-polling:epoll:20";
    let load = ["compare", "--rounds", "2", "--rates", "500", "--format", "json"];
    let (report, stderr) = run("lab", &[&load[..], &["--contenders", contenders]].concat());
    let report: Value = serde_json::from_str(&report).unwrap();
    let kept = std::fs::read(state.path().join("lull/lab-last.json"));
    assert!(!stderr.contains("won't show this result"), "{stderr}");
    // The machine may have disturbed both rounds of a server.
    let rows = array(&report["results"]["loads"]).iter().take(1).flat_map(|load| array(&load["rows"]));
    let measured = rows.filter(|row| row["figures"]["cpu-per-request"]["ratio"].is_object());
    let measured: Vec<&str> = measured.filter_map(|row| row["contender"].as_str()).collect();
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
fn without_root_lab_says_what_needs_it_and_what_does_not() {
    if tests::program("setpriv").is_none() {
        return;
    }
    let lab = tests::own_program("lab");
    // Without capabilities root can do here what anybody can.
    let mut command = if rustix::process::geteuid().is_root() {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-all", "--inh-caps=-all"]).arg(lab);
        command
    } else {
        Command::new(lab)
    };
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    for expected in ["`lab compare` needs root", "`lab model` and `lab waiting`"] {
        assert!(error.contains(expected), "no {expected:?} in {error}");
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
