//! Kernel polling on the testbed: what busy polling receives, and alignment.

use std::sync::Arc;
use std::time::Duration;

use lab::testbed::{CLIENT_INTERFACE, SERVER_INTERFACE, Testbed};
use policies::{Policy, host};
use runtime::Running;
use serial_test::serial;
use tests::isolated;
use tests::testbed::{enter, server_builder, server_runtime};

use super::echo::{echo_after_work, echo_with, hammer};

#[test]
#[ignore = "timing"]
#[isolated(root, drivers = "epoll")]
#[serial]
fn a_saturated_server_gets_most_packets_by_busy_polling_and_under_vanilla_none() {
    // Longer than a client needs for a request in an unoptimized build: the server is the bottleneck, and requests wait
    // for it.
    const WORK: Duration = Duration::from_micros(200);
    let testbed = Arc::new(enter(1));
    let share = |policy| {
        // A fixed grace time is in effect at every load, whatever it costs.
        let runtime = server_builder(policy, 1).grace_time("50".parse().unwrap()).build().unwrap();
        let client = |address| hammer(address, 32, Duration::from_secs(1));
        let (count, delta, _) = echo_after_work(&testbed, runtime, WORK, std::future::ready(()), client);
        assert!(count > 500, "only {count} requests");
        delta.busy_poll_share()
    };
    let (vanilla, polling) = (share(Policy::Vanilla), share(Policy::KernelPolling));
    println!("busy-poll share: vanilla {vanilla:.2}, kernel polling {polling:.2}");
    assert_eq!(vanilla, 0.0);
    // Where other programs take the worker's core for longer than the grace time, the kernel thread polls instead.
    assert!(polling > 0.5, "kernel polling's share: {polling}");
}

#[test]
#[isolated(root, drivers = "epoll, uring")]
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
#[isolated(root, drivers = "epoll, uring")]
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
