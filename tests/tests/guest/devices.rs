//! Each emulated device: its recording, and every policy on it.

use std::path::PathBuf;

use serde_json::Value;
use serial_test::serial;

use super::boot_shape;
use super::machine::{Machine, Nic, Shape};

const NICS: [Nic; 4] = [Nic::Virtio, Nic::E1000e, Nic::Igb, Nic::Vmxnet3];

/// With four CPUs, so that devices have four queues.
fn boot() -> Option<Machine> {
    boot_shape(&Shape { nics: NICS.to_vec(), numa_nodes: 1, cpus_per_node: 4 })
}

/// Set in the environment, it is the folder into which the recordings are written.
const FOLDER: &str = "LULL_RECORDINGS";

/// The steps of a plan without what a recording can't know.
fn steps(plan: &Value) -> Vec<Value> {
    let mut steps = plan["steps"].as_array().unwrap().clone();
    steps.iter_mut().for_each(|step| step["forbidden"] = Value::Null);
    steps
}

#[test]
#[serial]
fn a_plan_for_a_recording_is_that_for_the_device() {
    let Some(mut guest) = boot() else { return };
    for (nic, interface) in NICS.into_iter().zip(guest.interfaces.clone()) {
        let recording = guest.run(&format!("policies record {interface} | tee /tmp/recording.json"));
        assert!(!recording.contains("10.9.") && !recording.contains("52:54"), "addresses: {recording}");
        if let Some(folder) = std::env::var_os(FOLDER) {
            std::fs::write(PathBuf::from(folder).join(format!("{nic:?}.json")), &recording).unwrap();
        }
        println!("{}", guest.ask("policies explain --from /tmp/recording.json").text);
        for policy in super::POLICIES {
            let flags = format!("--policy {policy} --workers all --peak-packet-rate 100000");
            let live = guest.json(&format!("policies --format json plan {interface} {flags}"));
            let recorded =
                guest.json(&format!("policies --format json plan --from /tmp/recording.json {flags}"));
            assert_eq!(steps(&recorded), steps(&live), "{nic:?}, {policy}");
            assert_eq!(recorded["notes"], live["notes"], "{nic:?}, {policy}");
        }
        // A queue's interrupt is found on every device.
        let shown = guest.json(&format!("policies --format json show {interface}"));
        for queue in shown["queues"].as_array().unwrap() {
            assert!(queue["irq"].is_u64() && queue["napi"].is_object(), "{nic:?}: {queue}");
        }
    }
    guest.run("head -c 900 /tmp/recording.json >/tmp/cut.json");
    let answer = guest.ask("policies explain --from /tmp/cut.json");
    assert!(answer.status == 1 && answer.text.contains("/tmp/cut.json is not a recording"), "{answer:?}");
}
