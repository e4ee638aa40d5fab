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
    assert_eq!(kinds, ["open", "open", "open", "open", "closed"]);
    // Two rounds are too few.
    let verdict = report["verdict"].to_string();
    assert!(verdict.contains("No verdict"), "{verdict}");
    for row in array(&report["results"]["loads"]).iter().flat_map(|load| array(&load["rows"])) {
        let expected = ["vanilla, epoll", "vanilla, uring", "kernel-polling, epoll, grace 50 µs"];
        assert!(expected.iter().any(|name| row["contender"] == *name), "{row}");
        // An unoptimized fleet may send too late: then the figure is not there.
        let share = &row["figures"]["busy-poll-share"]["value"]["median"];
        assert!(share.is_null() || (0.0..=100.0).contains(&share.as_f64().unwrap()), "{row}");
    }
    let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.contains("vanilla, uring") && !page.contains("{{") && !page.contains("src="), "{page}");
    assert!(folder.path().join("results.json").exists());
}

#[test]
#[isolated(root)]
#[serial]
fn with_two_workers_rates_are_for_one_worker() {
    // A rate that an unoptimized fleet can keep.
    let asked = ["--quick", "--workers", "2", "--contenders", "vanilla:epoll", "--rounds", "1"];
    let (_folder, report) = lab(&[&asked[..], &["--rates", "500"]].concat());
    assert_eq!(array(&report["cores"]["servers"]).len(), 2, "{}", report["cores"]);
    let open = array(&report["results"]["measurements"]).iter().filter(|load| load["kind"] == "open");
    let turns: Vec<&Value> = open.flat_map(|load| array(&load["turns"])).collect();
    assert!(!turns.is_empty());
    for turn in turns {
        let detail = &turn["detail"]["fleet"];
        let (requests, seconds) = (detail["requests"].as_f64().unwrap(), detail["seconds"].as_f64().unwrap());
        assert!((600.0..1400.0).contains(&(requests / seconds)), "{turn}");
        let throughput = turn["figures"]["throughput"].as_f64().unwrap();
        assert!((300.0..700.0).contains(&throughput), "{turn}");
    }
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
            "lull, kernel-polling, uring",
            "lull, kernel-polling, epoll"
        ])
    );
}

#[test]
#[isolated(root)]
#[serial]
fn on_a_machine_with_other_programs_lab_names_them_and_ends() {
    if tests::program("yes").is_none() {
        return;
    }
    // The cores that it would use.
    let busy = |core: u32| {
        let yes = Command::new("yes").stdout(std::process::Stdio::null()).spawn().unwrap();
        policies::Cpus::one(core).pin(Some(rustix::process::Pid::from_child(&yes))).unwrap();
        tests::KillOnDrop::from(yes)
    };
    let _busy: Vec<_> = policies::Cpus::allowed().unwrap().iter().take(2).map(busy).collect();
    let begun = std::time::Instant::now();
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(tests::own_program("lab"));
    let output = command.arg("--output").arg(folder.path()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    println!("after {:?}: {error}", begun.elapsed());
    assert_eq!(output.status.code(), Some(3), "{error}");
    for expected in ["this machine can't carry an experiment now: PID ", "% of a core)", "--anyway"] {
        assert!(error.contains(expected), "no {expected:?} in {error}");
    }
}

#[test]
fn without_root_lab_says_what_needs_it() {
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
    assert!(error.contains("`lab compare` needs root"), "{error}");
}
