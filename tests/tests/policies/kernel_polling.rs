//! Kernel polling on the testbed: alignment, and the grace time.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lab::testbed::{CLIENT_INTERFACE, SERVER_INTERFACE, Testbed};
use policies::netlink::netdev::Netdev;
use policies::{Policy, host};
use runtime::Running;
use serial_test::serial;
use tests::isolated;
use tests::testbed::{enter, server_runtime};

use super::echo::{echo_with, hammer};

#[test]
#[isolated(root, drivers = "epoll, hybrid")]
#[serial]
fn kernel_polling_gets_most_packets_by_busy_polling_and_vanilla_none() {
    // Saturation by the real server and load, as `lab` runs them; medians of three rounds.
    let output = Command::new(tests::own_program("lab"))
        .args(["--quick", "--rounds", "3", "--format", "json", "--gro-flush-timeout", "50"])
        .output()
        .unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    let share = |policy: &str| {
        let rows = report["rows"].as_array().unwrap();
        let row = rows.iter().find(|row| row["asked"] == policy).unwrap();
        assert_eq!(row["ran"], policy, "{row}");
        row["busy_poll_share"].as_f64().unwrap()
    };
    // Where other programs take the worker's core for longer than the grace time, the kernel thread polls instead.
    assert!(share("kernel-polling") > 0.5, "kernel polling's share: {}", share("kernel-polling"));
    assert_eq!(share("vanilla"), 0.0, "vanilla's share");
}

#[test]
#[isolated(root, drivers = "epoll, hybrid")]
#[serial]
fn with_two_queues_every_connection_is_served_by_the_worker_of_its_napi() {
    let testbed = Arc::new(enter(2));
    let runtime = server_runtime(Policy::KernelPolling, 2);
    assert_eq!(runtime.reports().first().map(|report| report.running), Some(Running::KernelPolling));
    let (count, _, alignment) = echo_with(&testbed, runtime, std::future::ready(()), |address| {
        hammer(address, 32, Duration::from_millis(300))
    });
    assert!(count > 0);
    assert_eq!(alignment.accepted, 32, "{alignment:?}");
    assert_eq!(alignment.aligned, 32, "{alignment:?}");
    assert_eq!(alignment.misaligned, 0, "{alignment:?}");
}

#[test]
#[isolated(root, drivers = "epoll, hybrid")]
#[serial]
fn the_testbed_is_gone_when_it_is_dropped() {
    let testbed = Testbed::new(2).unwrap();
    let queues = testbed.client.run(|| Ok(host::interface(CLIENT_INTERFACE).unwrap().queues.len())).unwrap();
    assert_eq!(queues, 2);
    drop(testbed);
    let here = host::interfaces().unwrap();
    assert!(
        here.iter().all(|interface| interface.name != SERVER_INTERFACE && interface.name != CLIENT_INTERFACE)
    );
}

#[test]
#[isolated(root, drivers = "epoll, hybrid")]
#[serial]
fn the_grace_time_is_tuned_under_load_within_its_bounds() {
    let testbed = Arc::new(enter(1));
    let mut netdev = Netdev::open().unwrap();
    let id = host::interface(SERVER_INTERFACE).unwrap().napi_ids()[0];
    // Returns `None` when the testbed, and the NAPI with it, is gone.
    let mut grace = move || netdev.napi(id).ok()?.gro_flush_timeout.map(|nanos| nanos / 1000);
    let runtime = server_runtime(Policy::KernelPolling, 1);
    // Without a load the grace time stays.
    for _ in 0..20 {
        assert_eq!(grace(), Some(50));
        std::thread::sleep(Duration::from_millis(100));
    }
    let seen = Arc::new(Mutex::new(BTreeMap::<u64, u64>::new()));
    let watch = Arc::clone(&seen);
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let watching = std::thread::spawn(move || {
        while stopped.recv_timeout(Duration::from_millis(1)) == Err(RecvTimeoutError::Timeout) {
            if let Some(time) = grace() {
                *watch.lock().unwrap().entry(time).or_default() += 1;
            }
        }
    });
    let (count, ..) = echo_with(&testbed, runtime, std::future::ready(()), |address| {
        hammer(address, 32, Duration::from_secs(3))
    });
    drop(stop);
    watching.join().unwrap();
    assert!(count > 1000, "only {count} requests");
    let seen = seen.lock().unwrap();
    // 0 is the value from before the policy.
    let tried: Vec<u64> = seen.keys().copied().filter(|time| *time != 0).collect();
    assert_eq!(tried, [50, 100, 200, 400], "{seen:?}");
}
