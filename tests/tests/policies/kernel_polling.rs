//! Alignment under kernel polling on the testbed, and its end.

use std::sync::Arc;
use std::time::Duration;

use lab::testbed::{CLIENT_INTERFACE, SERVER_INTERFACE, Testbed};
use policies::{Policy, host};
use runtime::Running;
use serial_test::serial;
use tests::isolated;
use tests::testbed::{enter, server_runtime};

use super::echo::{echo_with, hammer};

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
