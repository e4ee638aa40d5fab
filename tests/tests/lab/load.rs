//! Every request of a fleet is answered, and nothing is lost on the way.

use lab::fleet::{FleetLoad, FleetMeasurement, FleetPacing};
use policies::Policy;
use serial_test::serial;
use tests::isolated;

use super::server::{connect, serve};

/// A run's measurement, and the segments that the server's kernel sent again meanwhile.
type Run = (FleetMeasurement, u64);

const OPEN: FleetPacing = FleetPacing::Open { rate: 2000.0 };

/// Loads a server in these ways with the same fleet.
fn runs<const N: usize>(policy: Policy, connections: usize, pacings: [FleetPacing; N]) -> [Run; N] {
    serve(policy, connections, move |testbed, address| {
        let mut fleet = connect(address, connections).unwrap();
        // An unoptimized server accepts more slowly than the fleet connects. Where its queue
        // overflowed, the kernel sends the second segment of the handshake again after 1 s.
        let settle = FleetLoad { pacing: OPEN, warm_up: 0.0, duration: 2.0 };
        fleet.run(&settle).unwrap();
        let runs = pacings.map(|pacing| {
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
fn all_requests_of_10_000_connections_are_answered_without_a_retransmission() {
    runs(Policy::Vanilla, 10_000, [OPEN]).iter().for_each(assert_answered);
}

#[test]
#[ignore = "timing"]
#[isolated(root, drivers = "epoll, uring")]
#[serial]
fn all_requests_are_answered_under_kernel_polling() {
    runs(Policy::KernelPolling, 64, [OPEN, FleetPacing::Closed]).iter().for_each(assert_answered);
}
