//! On which core the server's packets are received, and by the worker of which queue they are served.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lab::testbed::{CLIENT_INTERFACE, INTERRUPT_THREAD_PRIORITY, SERVER_INTERFACE, Testbed, poll_by_threads};
use policies::counters::{Delta, Snapshot};
use policies::{Cpus, Policy, host};
use runtime::Running;
use tests::testbed::{enter, server_builder, server_runtime};
use tests::{require, testbed_test};

use super::echo::{echo_with, hammer};

/// Other tests may send for as long as a minute.
const PATIENCE: Duration = Duration::from_secs(120);

#[testbed_test(drivers = "epoll, uring")]
fn the_server_receives_on_its_workers_core_and_under_packing_on_the_packing_core() {
    let others = Cpus::online().unwrap().iter().find(|core| *core != 0);
    let Some(client_core) = require("two cores", others) else { return };
    let testbed = Arc::new(enter(1));
    for policy in Policy::ALL.into_iter().filter(|policy| !policy.has_polling_threads()) {
        let begun = Instant::now();
        let (server, client, delta) = loop {
            let (server, client, delta) = turn(&testbed, policy, client_core);
            // The counters by CPU are those of the machine: a turn with other traffic is repeated,
            // also if it is only as much as one of the limits below lets pass.
            let all: u64 = delta.received_by_cpu.iter().sum();
            if all as f64 <= 1.04 * (server + client) as f64 {
                break (server, client, delta);
            }
            assert!(begun.elapsed() < PATIENCE, "{policy}: other traffic in every turn, the last: {delta:?}");
        };
        let received = |core: u32| delta.received_by_cpu[core as usize];
        assert!(server > 100, "{policy}: only {server} packets");
        let (on_worker, elsewhere) = (received(0) as f64, received(client_core) as f64);
        // What the busy time of the worker's core leaves out.
        let mut threads = delta.napi_threads.iter();
        let busy_elsewhere = threads.any(|thread| thread.core != Some(0) && !thread.cpu_time.is_zero());
        assert_eq!(busy_elsewhere, policy == Policy::Packing, "{delta:?}");
        if policy == Policy::Packing {
            assert!(elsewhere >= 0.9 * (server + client) as f64, "{policy}: {delta:?}");
            assert!(on_worker <= 0.1 * server as f64, "{policy}: {delta:?}");
        } else {
            assert!(on_worker >= 0.9 * server as f64, "{policy}: {delta:?}");
            // Not the client's packets instead.
            assert!(elsewhere <= 1.1 * client as f64, "{policy}: {delta:?}");
        }
    }
}

/// One load under a policy: the packets to the server and to the client, and the server's counters.
fn turn(testbed: &Arc<Testbed>, policy: Policy, client_core: u32) -> (u64, u64, Delta) {
    // Without a thread for the client's queue the server's core would also receive what the server
    // sends.
    poll_by_threads(&testbed.client, CLIENT_INTERFACE, &[client_core], INTERRUPT_THREAD_PRIORITY).unwrap();
    let builder = server_builder(policy, 1).packing_cores(Cpus::one(client_core));
    let (client, delta, _) =
        echo_with(testbed, builder.build().unwrap(), std::future::ready(()), move |address| {
            let interface = host::interface(CLIENT_INTERFACE).unwrap();
            let before = Snapshot::take(&interface).unwrap();
            hammer(address, 16, Duration::from_millis(400));
            let after = Snapshot::take(&interface).unwrap();
            after.since(&before).rx_packets.total()
        });
    println!("{policy}: {client} packets to the client; {delta:?}");
    (delta.rx_packets.total(), client, delta)
}

#[testbed_test(drivers = "epoll, uring")]
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

#[testbed_test(drivers = "epoll, uring")]
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
