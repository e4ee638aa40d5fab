//! Which connection a request of the open loop is assigned to.

use std::cell::OnceCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use loadgen::{Assign, Config, Loop};
use serial_test::serial;
use tests::fake_server::{FakeServer, MISS};
use tests::load::{config, open, run};

#[test]
#[ignore = "timing"]
#[serial]
fn requests_avoid_a_busy_connection_if_they_may_take_any_free_one() {
    thread_local!(static IS_SLOW: OnceCell<bool> = const { OnceCell::new() });
    let p90 = |assign| {
        let taken = AtomicBool::new(false);
        // The first connection that sends has its own thread, and is slow.
        let server = FakeServer::answering(move |_| {
            let slow = IS_SLOW.with(|slow| *slow.get_or_init(|| !taken.swap(true, Ordering::SeqCst)));
            std::thread::sleep(Duration::from_millis(if slow { 50 } else { 0 }));
            MISS.to_vec()
        });
        let load = Config { pacing: open(400.0), connections: 4, assign, ..config(server.address) };
        run(&load).latency.p90
    };
    let (in_turn, free) = (p90(Assign::RoundRobin), p90(Assign::RandomFree));
    assert!(in_turn > 200_000.0 && free < 40_000.0, "p90 {in_turn} and {free} µs");
}

#[test]
#[serial]
fn a_request_that_finds_no_free_connection_goes_to_the_first_that_becomes_free() {
    // One connection never answers; the other one is busy for half of the time, or more.
    let server = FakeServer::answering(|line| {
        std::thread::sleep(Duration::from_millis(2));
        if line.connection == 0 { Vec::new() } else { MISS.to_vec() }
    });
    let assign = Assign::RandomFree;
    let pacing = Loop::Open { rate: 250.0, arrival: "exponential".parse().unwrap() };
    let report = run(&Config { pacing, connections: 2, assign, ..config(server.address) });
    assert_eq!(report.unanswered, 1, "{}", report.table());
}

#[test]
fn connections_with_gaps_of_their_own_send_different_numbers_of_requests() {
    let counts = |assign| {
        let server = FakeServer::recording();
        let pacing = Loop::Open { rate: 1000.0, arrival: "exponential".parse().unwrap() };
        run(&Config { pacing, connections: 4, depth: 100, assign, ..config(server.address) });
        let mut counts = [0_usize; 4];
        server.lines().iter().for_each(|(connection, _)| counts[*connection] += 1);
        counts.sort_unstable();
        counts
    };
    let in_turn = counts(Assign::RoundRobin);
    assert!(in_turn[3] - in_turn[0] <= 1, "{in_turn:?}");
    let independent = counts(Assign::PerConnection);
    assert!(independent[3] - independent[0] > 4, "{independent:?}");
    let total: usize = independent.iter().sum();
    assert!((400..600).contains(&total), "{independent:?}");
}
