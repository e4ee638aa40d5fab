//! Which of the kernel's three loops (interrupt, timer, busy poll) drives a queue in each of its
//! modes, by tracepoints.

use std::time::{Duration, Instant};

use lab::testbed::{SERVER_ADDRESS, SERVER_INTERFACE, Testbed};
use policies::controller::QueueMode;
use policies::{Pid, Policy, host};
use runtime::policy::GraceTime;
use tests::poll_trace::{PollTrace, Polls};
use tests::testbed::{enter, server_builder};
use tests::{require, testbed_test};

use super::echo::server::{Connection, ECHO, EchoServer, Load, preempt_on_client_core, quantile};

/// The time between two requests of the sparse load.
const PAUSE: Duration = Duration::from_millis(5);
const SPARSE_TIME: Duration = Duration::from_millis(600);
const LOADED_TIME: Duration = Duration::from_millis(400);
const CONNECTIONS: usize = 16;
/// The server is the bottleneck, so that requests wait for it.
const WORK: Duration = Duration::from_micros(50);

/// Starts a server whose queue is in grace mode at every load.
fn start_in_grace_mode(grace_time: Duration) -> EchoServer {
    let builder = server_builder(Policy::KernelPolling, 1).grace_time(GraceTime::Fixed(grace_time));
    EchoServer::start(builder, SERVER_ADDRESS, WORK)
}

/// The thread of the server's worker, and the kernel's thread of its queue.
fn threads(server: &mut EchoServer) -> [Pid; 2] {
    let queue = host::interface(SERVER_INTERFACE).unwrap().queues.remove(0);
    let thread = queue.napi.unwrap().pid.unwrap();
    [server.report().thread, thread.try_into().unwrap()].map(|thread| Pid::from_raw(thread).unwrap())
}

/// Sends a request every 5 ms. Returns the polls, and the round trips in ascending order.
fn run_sparse(testbed: &Testbed, trace: &PollTrace, server: &mut EchoServer) -> (Polls, Vec<Duration>) {
    let [worker, thread] = threads(server);
    preempt_on_client_core();
    let mut connection = Connection::open_on(testbed, server.address);
    // The connection's first packets have other polls.
    connection.probe(PAUSE, PAUSE * 4);
    trace.clear();
    let trips = connection.probe(PAUSE, SPARSE_TIME);
    let polls = trace.count(worker, thread);
    println!("{} requests: {polls:?}, median {:?}", trips.len(), quantile(&trips, 0.5));
    (polls, trips)
}

/// Runs a closed loop. Returns the polls meanwhile.
fn run_loaded(testbed: &Testbed, trace: &PollTrace, server: &mut EchoServer) -> Polls {
    let [worker, thread] = threads(server);
    preempt_on_client_core();
    let load = Load::open(testbed, server.address, CONNECTIONS, ECHO);
    load.on();
    std::thread::sleep(LOADED_TIME / 4);
    trace.clear();
    std::thread::sleep(LOADED_TIME);
    let polls = trace.count(worker, thread);
    println!("{} requests, {polls:?}", load.end());
    polls
}

fn trace() -> Option<PollTrace> {
    let trace = PollTrace::new(SERVER_INTERFACE);
    if let Err(error) = &trace {
        eprintln!("no trace: {error}");
    }
    require("tracefs with napi_poll and hrtimer_expire_entry", trace.ok())
}

#[testbed_test(drivers = "epoll, uring")]
fn a_sparse_queue_is_driven_by_interrupts_alone() {
    let testbed = enter(1);
    let Some(trace) = trace() else { return };
    let mut server = EchoServer::start(server_builder(Policy::KernelPolling, 1), SERVER_ADDRESS, WORK);
    let (polls, trips) = run_sparse(&testbed, &trace, &mut server);
    assert_eq!((polls.busy, polls.timer), (0, 0), "{polls:?}");
    assert!(polls.thread_packets >= trips.len() as u64, "{polls:?} for {} requests", trips.len());
}

#[ignore = "timing"]
#[testbed_test(drivers = "epoll")]
fn a_queue_in_grace_mode_is_polled_by_the_timer_at_sparse_load_and_by_the_worker_under_load() {
    let testbed = enter(1);
    let Some(trace) = trace() else { return };
    let mut server = start_in_grace_mode(Duration::from_micros(200));
    let (polls, trips) = run_sparse(&testbed, &trace, &mut server);
    // 25 intervals of 200 µs are in one of 5 ms.
    let per_request = polls.timer as f64 / trips.len() as f64;
    assert!(per_request > 6.0, "the timer expires {per_request:.1} times a request");
    let polls = run_loaded(&testbed, &trace, &mut server);
    assert!(polls.busy_share() > 0.5, "{polls:?}");
}

#[ignore = "timing"]
#[testbed_test(drivers = "epoll, uring")]
fn a_queue_in_timed_mode_is_polled_by_the_worker_alone_until_packets_become_rare() {
    let testbed = enter(1);
    let Some(trace) = trace() else { return };
    let builder = server_builder(Policy::KernelPolling, 1);
    let mut server = EchoServer::start(builder, SERVER_ADDRESS, WORK);
    let [worker, thread] = threads(&mut server);
    preempt_on_client_core();
    let load = Load::open(&testbed, server.address, CONNECTIONS, ECHO);
    load.on();
    let give_up = Instant::now() + Duration::from_secs(5);
    while server.report().queue.unwrap().mode != QueueMode::Timed {
        assert!(Instant::now() < give_up, "{}", server.report());
        std::thread::sleep(Duration::from_millis(5));
    }
    trace.clear();
    std::thread::sleep(LOADED_TIME);
    let polls = trace.count(worker, thread);
    println!("{} requests, {polls:?}", load.end());
    // After pauses of the machine the watchdog polls.
    assert!(polls.busy_share() > 0.9 && polls.thread < polls.busy / 10, "{polls:?}");
    assert!(polls.timer < polls.busy / 10, "{polls:?}");
    std::thread::sleep(Duration::from_millis(500));
    let (polls, trips) = run_sparse(&testbed, &trace, &mut server);
    assert_eq!((polls.busy, polls.timer), (0, 0), "{polls:?}");
    assert!(polls.thread_packets >= trips.len() as u64, "{polls:?} for {} requests", trips.len());
}

#[ignore = "timing"]
#[testbed_test(drivers = "epoll")]
fn in_grace_mode_a_packet_waits_for_the_grace_time() {
    // Far longer than a round trip.
    const LONG_GRACE_TIME: Duration = Duration::from_millis(2);
    let testbed = enter(1);
    let server = start_in_grace_mode(LONG_GRACE_TIME);
    preempt_on_client_core();
    let mut connection = Connection::open_on(&testbed, server.address);
    let trips = connection.probe(PAUSE, SPARSE_TIME);
    let median = quantile(&trips, 0.5);
    assert!((LONG_GRACE_TIME / 4..LONG_GRACE_TIME * 2).contains(&median), "{median:?}");
}

#[testbed_test(drivers = "epoll, uring")]
fn a_load_that_comes_by_another_interface_leaves_the_queue_to_interrupts() {
    let _testbed = enter(1);
    let builder = server_builder(Policy::KernelPolling, 1);
    let mut server = EchoServer::start(builder, std::net::Ipv4Addr::LOCALHOST, Duration::ZERO);
    // Polling is chosen at any load here, so if these events counted, the queue would be in timed
    // mode, which nothing needs.
    let load = Load::open_here(server.address, CONNECTIONS, ECHO);
    load.on();
    std::thread::sleep(LOADED_TIME);
    let queue = server.report().queue.unwrap();
    let requests = load.end();
    assert!(requests > 100, "only {requests} requests");
    assert_eq!(queue.mode, QueueMode::Interrupts, "{queue}");
}
