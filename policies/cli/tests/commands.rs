//! The command by itself: its version, and plans and explanations of recorded interfaces.
//! Recordings of emulated devices were taken in the guest (`LULL_RECORDINGS` of
//! `tests/tests/guest/devices.rs`); the others are made from the drivers' sources, as they say.
//!
//! Cargo builds the commands of a package that has integration tests, so `cargo test --workspace`
//! builds this one for the tests that cross crates, too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Set in the environment, the outputs become the expected ones.
const UPDATE: &str = "LULL_UPDATE_EXPECTED";

fn policies(arguments: &str, file: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_policies"));
    command.args(arguments.split(' ')).arg("--from").arg(file);
    command.output().unwrap()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings")
}

const COMMANDS: [&str; 4] = [
    "explain",
    "plan --policy kernel-polling --workers all",
    "plan --policy vanilla --worker-cores 0-1",
    "plan --policy kernel-thread --worker-cores 0",
];

#[test]
fn every_recording_is_explained_and_planned_as_expected() {
    let files = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let mut recordings: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|extension| extension == "json")).collect();
    recordings.sort();
    assert!(recordings.len() >= 10, "{recordings:?}");
    let mut differing = Vec::new();
    for recording in recordings {
        let mut text = String::new();
        for command in COMMANDS {
            let output = policies(command, &recording);
            assert!(output.stderr.is_empty(), "{output:?}");
            text.push_str(&format!("$ policies {command}\n{}", String::from_utf8(output.stdout).unwrap()));
            text.push_str(&format!("exit code {}\n\n", output.status.code().unwrap()));
        }
        // Trailing blanks of table cells say nothing.
        let text: String = text.lines().map(|line| format!("{}\n", line.trim_end())).collect();
        let expected = recording.with_extension("txt");
        if std::env::var_os(UPDATE).is_some() {
            fs::write(&expected, &text).unwrap();
        }
        if fs::read_to_string(&expected).unwrap_or_default() != text {
            differing.push(format!("{}:\n{text}", expected.display()));
        }
    }
    assert!(differing.is_empty(), "set {UPDATE}=1 to accept:\n{}", differing.join("\n"));
}

#[test]
fn what_prevents_a_policy_has_an_exit_code_of_its_own() {
    let bond = fs::read_to_string(folder().join("igb.json")).unwrap();
    let mut bond: serde_json::Value = serde_json::from_str(&bond).unwrap();
    for list in ["reported_rx", "reported_tx", "napis", "interrupts"] {
        bond["interface"][list] = serde_json::json!([]);
    }
    bond["interface"]["lower"] = serde_json::json!(["eth1", "eth2"]);
    (bond["interface"]["driver"], bond["interface"]["device"]) = ("bonding".into(), serde_json::Value::Null);
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), bond.to_string()).unwrap();
    for command in ["explain", "plan --policy kernel-polling --workers 1"] {
        let output = policies(command, file.path());
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(3), "{text}");
        assert!(text.contains("receives by eth1, eth2"), "{text}");
    }
    let vanilla = policies("plan --policy vanilla --workers 1", file.path());
    assert_eq!(vanilla.status.code(), Some(0), "nothing prevents vanilla");
}

#[test]
fn the_queues_that_no_worker_polls_keep_their_interrupts() {
    let plan = |recording: &str, flags: &str| {
        let output = policies(&format!("plan {flags}"), &folder().join(recording));
        String::from_utf8(output.stdout).unwrap()
    };
    let queues_set = |plan: &str| -> Vec<bool> {
        (0..4).map(|queue| plan.lines().any(|line| line.starts_with(&format!(" rx-{queue} ")))).collect()
    };
    let two = plan("igb.json", "--policy kernel-polling --worker-cores 0-1");
    assert_eq!(queues_set(&two), [true, true, false, false], "{two}");
    assert!(!two.contains(" combined channels"), "{two}");
    assert!(two.contains("2 of 4 queues: the others") && two.contains("--channels 2 leaves"), "{two}");
    let asked = plan("igb.json", "--policy kernel-polling --worker-cores 0-1 --channels 2");
    assert!(
        asked.lines().any(|line| line.starts_with(" combined channels") && line.contains(" 2 ")),
        "{asked}"
    );
    let all = plan("igb.json", "--policy vanilla --worker-cores 0-1");
    assert_eq!(queues_set(&all), [true; 4], "{all}");
}

#[test]
fn cores_that_the_machine_does_not_have_are_refused() {
    for flags in ["--worker-cores 0,99", "--packing-cores 99"] {
        let output = policies(&format!("plan --policy packing {flags}"), &folder().join("igb.json"));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains("there is no core 99: cores "), "{error}");
    }
}

/// As of virtio on MMIO.
#[test]
fn an_interrupt_that_queues_share_is_placed_once() {
    let whole = fs::read_to_string(folder().join("virtio_net.json")).unwrap();
    let mut recording: serde_json::Value = serde_json::from_str(&whole).unwrap();
    let mut shared = recording["interface"]["interrupts"][1].clone();
    shared["actions"] = serde_json::json!([recording["interface"]["device"]]);
    recording["interface"]["interrupts"] = serde_json::json!([shared]);
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), recording.to_string()).unwrap();
    let output = policies("plan --policy vanilla --worker-cores 1-2", file.path());
    let plan = String::from_utf8(output.stdout).unwrap();
    let placed: Vec<&str> = plan.lines().filter(|line| line.contains(" affinity ")).collect();
    assert!(placed.len() == 1 && placed[0].starts_with(" rx-0 irq"), "{plan}");
    assert!(plan.contains("4 receive queues share one interrupt"), "{plan}");
}

/// A queue whose interrupt is not known gets nothing in its place.
#[test]
fn no_thread_is_started_for_a_queue_of_a_device() {
    for file in fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()) {
        if file.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        for policy in ["vanilla", "packing", "suppression", "kernel-polling"] {
            let output = policies(&format!("plan --policy {policy} --worker-cores 0-1"), &file);
            let plan = String::from_utf8(output.stdout).unwrap();
            assert!(!plan.contains("threaded") && !plan.contains("napi thread"), "{policy}: {plan}");
        }
    }
}

#[test]
fn a_wrong_or_cut_recording_is_an_error_that_says_what_is_wrong() {
    let whole = fs::read_to_string(folder().join("igb.json")).unwrap();
    let without_napi = whole.replacen("\"id\": ", "\"id\": 9", 1);
    let version = whole.replace("\"version\": 1", "\"version\": 9");
    let cases = [
        (&whole[..whole.len() / 2], "EOF while parsing"),
        ("{}", "missing field `format`"),
        ("not json", "expected ident"),
        ("{\"format\": \"lull-lab-result\", \"version\": 1}", "its format is \"lull-lab-result\""),
        (&version, "it has version 9, not 1"),
        (&without_napi, "which it has not"),
        (&whole.replace("\"allowed\": \"0-3\"", "\"allowed\": \"\""), "it has no core"),
        (&whole.replace("\"lower\"", "\"lowest\""), "unknown field `lowest`"),
    ];
    let file = tempfile::NamedTempFile::new().unwrap();
    for (content, reason) in cases {
        fs::write(file.path(), content).unwrap();
        for command in ["explain", "plan --policy vanilla"] {
            let output = policies(command, file.path());
            let error = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(1), "{error}");
            assert!(error.contains(reason) && error.contains("policies record"), "{reason}: {error}");
        }
    }
    let missing = policies("explain", Path::new("/nonexistent/recording.json"));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("cannot read /nonexistent/recording.json"));
}

#[test]
fn the_command_prints_its_version() {
    let output = Command::new(env!("CARGO_BIN_EXE_policies")).arg("--version").output().unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        concat!("policies ", env!("CARGO_PKG_VERSION"), "\n")
    );
}
