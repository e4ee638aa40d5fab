//! A server that gets little CPU time.

use std::time::{Duration, Instant};

use serial_test::serial;
use tests::control_group::ControlGroup;
use tests::load::loadgen;
use tests::memcached::{Memcached, expect};

#[test]
#[ignore = "timing"]
#[serial]
fn with_a_fifth_of_a_core_values_are_right_and_afterwards_it_is_fast_again() {
    let group = ControlGroup::of_cpu_percent(20);
    let Some(group) = tests::require("a control group with a CPU quota (root)", group) else { return };
    let server = Memcached::start(&["-k"]);
    let address = server.address.to_string();
    group.add(server.child.id());
    let load = ["-s", &address, "-c", "32", "-d", "4", "-r", "2000", "-u", "0.3", "-V", "1000", "-w", "0"];
    let mut child = loadgen(&load);
    child.args(["--verify", "--churn", "0.2", "-t", "4", "--format", "json"]);
    let output = child.output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    println!(
        "{} requests, throttled in {} periods of 100 ms, {} wrong",
        report["requests"],
        group.throttled(),
        report["wrong"]
    );
    // On a busy machine it gets little more than its quota anyway.
    assert!(group.throttled() > 0, "the quota was not reached: {}", group.throttled());
    assert_eq!((&report["wrong"], &report["errors"]), (&0.into(), &0.into()), "{output:?}");
    assert!(report["requests"].as_u64().unwrap() > 100, "{output:?}");
    // Within two of the quota's periods there is time again.
    std::thread::sleep(Duration::from_millis(200));
    let mut stream = server.connect();
    let start = Instant::now();
    for _ in 0..10 {
        std::io::Write::write_all(&mut stream, b"set k 0 0 1\r\nx\r\nget k\r\n").unwrap();
        expect(&mut stream, b"STORED\r\nVALUE k 0 1\r\nx\r\nEND\r\n").unwrap();
    }
    assert!(start.elapsed() < Duration::from_secs(1), "{:?} for ten requests", start.elapsed());
}
