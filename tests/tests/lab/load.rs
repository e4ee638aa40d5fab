//! Every request of a fleet is answered, and nothing is lost on the way.

use std::collections::HashSet;
use std::net::{SocketAddr, TcpListener};

use lab::fleet::{Fleet, FleetConfig, FleetLoad, FleetMeasurement, FleetPacing};
use lab::testbed::{
    INTERRUPT_THREAD_PRIORITY, SERVER_ADDRESS, SERVER_INTERFACE, Testbed, fleet_address, poll_by_threads,
};
use policies::Policy;
use serial_test::serial;
use tests::isolated;

use super::server::{connect, fleet_config, on_client_side, serve};

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
#[isolated(root)]
#[serial]
fn packets_of_a_fleet_go_by_their_connection_to_all_queues_of_the_server() {
    let testbed = Testbed::for_fleets(2).unwrap();
    poll_by_threads(&testbed.server, SERVER_INTERFACE, &[0], INTERRUPT_THREAD_PRIORITY).unwrap();
    let listener = testbed.server.run(|| TcpListener::bind((SERVER_ADDRESS, 0))).unwrap();
    let SocketAddr::V4(address) = listener.local_addr().unwrap() else { panic!("an IPv4 address") };
    let accepting = std::thread::spawn(move || -> HashSet<u32> {
        // One is the connection by which the fleet polls its queue.
        let accepted = (0..33).map(|_| listener.accept().unwrap().0).collect::<Vec<_>>();
        accepted.iter().map(policies::socket_options::incoming_napi_id).collect()
    });
    on_client_side(&testbed, || Fleet::connect(fleet_config(address, 32)).unwrap().close().unwrap());
    let napis = accepting.join().unwrap();
    assert!(napis.len() == 2 && !napis.contains(&0), "{napis:?}");
}

#[test]
#[isolated(root, drivers = "epoll")]
#[serial]
fn two_fleets_on_one_interface_each_get_their_own_answers() {
    let runs = serve(Policy::Vanilla, 9, |testbed, address| {
        let run = |number: u8| {
            on_client_side(testbed, || {
                let config = FleetConfig { address: fleet_address(number), ..fleet_config(address, 4) };
                let mut fleet = Fleet::connect(config).unwrap();
                let load = FleetLoad { pacing: FleetPacing::Closed, warm_up: 0.2, duration: 1.0 };
                fleet.run(&load).unwrap()
            })
        };
        connect(address, 0).unwrap();
        std::thread::scope(|scope| {
            [0, 1].map(|number| scope.spawn(move || run(number))).map(|it| it.join().unwrap())
        })
    });
    for run in &runs {
        // They share a core, so only what was answered counts, and that no answer was another's.
        assert!(run.all_replies > 100 && (run.errors, run.misses) == (0, 0), "{run:?}");
    }
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
