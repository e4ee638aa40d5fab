//! Every request of a fleet is answered, and nothing is lost on the way.

use lab::fleet::{FleetLoad, FleetMeasurement, FleetPacing};
use policies::Policy;
use serial_test::serial;
use tests::isolated;

use super::server::{connect, serve};

/// A run's measurement, and the segments that the server's kernel sent again meanwhile.
type Run = (FleetMeasurement, u64);

/// Loads a server in an open and in a closed loop with the same fleet.
fn open_and_closed(policy: Policy, connections: usize) -> [Run; 2] {
    // About 2,000 requests per second in the closed loop, too.
    let think_us = connections as f64 * 500.0;
    serve(policy, connections, move |testbed, address| {
        let mut fleet = connect(address, connections).unwrap();
        // An unoptimized server accepts more slowly than the fleet connects. Where its queue
        // overflowed, the kernel sends the second segment of the handshake again after 1 s.
        let settle = FleetLoad { pacing: FleetPacing::Open { rate: 2000.0 }, warm_up: 0.0, duration: 2.0 };
        fleet.run(&settle).unwrap();
        let runs = [FleetPacing::Open { rate: 2000.0 }, FleetPacing::Closed { think_us }].map(|pacing| {
            let before = testbed.server_retransmissions().unwrap();
            // The closed loop's connections begin within the warm-up.
            let load = FleetLoad { pacing, warm_up: 2.0, duration: 1.0 };
            let measurement = fleet.run(&load).unwrap();
            (measurement, testbed.server_retransmissions().unwrap() - before)
        });
        fleet.close().unwrap();
        runs
    })
}

fn assert_answered((run, server_retransmitted): &Run) {
    assert!(run.requests > 1000, "{run:?}");
    assert_eq!((run.unanswered, run.errors, run.misses), (0, 0, 0), "{run:?}");
    assert_eq!((run.retransmitted, *server_retransmitted), (0, 0), "the fleet's and the server's: {run:?}");
    assert_eq!((run.dropped, run.ring_drops), (0, 0), "{run:?}");
    // Those in flight when the measurement begins and ends may make a difference.
    let replies = run.qps * run.seconds;
    assert!((replies / run.requests as f64 - 1.0).abs() < 0.1, "{replies} replies: {run:?}");
}

#[test]
#[ignore = "timing"]
#[isolated(root, drivers = "epoll")]
#[serial]
fn all_requests_of_64_connections_are_answered_without_a_retransmission() {
    open_and_closed(Policy::Vanilla, 64).iter().for_each(assert_answered);
}

#[test]
#[ignore = "timing"]
#[isolated(root, drivers = "epoll")]
#[serial]
fn all_requests_of_10_000_connections_are_answered_without_a_retransmission() {
    open_and_closed(Policy::Vanilla, 10_000).iter().for_each(assert_answered);
}

#[test]
#[ignore = "timing"]
#[isolated(root, drivers = "epoll, uring")]
#[serial]
fn all_requests_are_answered_under_kernel_polling() {
    open_and_closed(Policy::KernelPolling, 64).iter().for_each(assert_answered);
}
