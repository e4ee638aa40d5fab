//! Kernel polling that adapts to the load, end to end.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lab::testbed::{SERVER_ADDRESS, SERVER_INTERFACE, Testbed};
use policies::controller::{QueueMode, QueueSettings};
use policies::counters::Snapshot;
use policies::{Change, Cpus, Policy, host};
use runtime::{Builder, DriverKind};
use serial_test::serial;
use tests::isolated;
use tests::testbed::{self, napi, receive_on_client_core, server_builder};

use super::echo::server::{Connection, ECHO, EchoServer, Load, preempt_on_client_core, quantile};

const CONNECTIONS: usize = 16;
/// What the server computes for a request: several times what the client takes for one, so that the
/// server is the bottleneck on any machine.
const WORK: Duration = Duration::from_micros(100);
/// The same where another program waits for the server's batches: 16 requests of it are the longest
/// batch.
const SHORT_WORK: Duration = Duration::from_micros(15);
/// The time between two requests of the sparse load.
const PAUSE: Duration = Duration::from_millis(5);

/// A server under kernel polling that adapts, and what its supervisor has set.
struct Adapting {
    server: EchoServer,
    changes: Arc<Mutex<Vec<(Instant, QueueSettings)>>>,
}

impl Adapting {
    fn start() -> Self {
        let changes = Arc::new(Mutex::new(Vec::new()));
        let set = Arc::clone(&changes);
        let builder = server_builder(Policy::KernelPolling, 1).on_host_change(move |change| match change {
            Change::QueueSettings { settings, .. } => set.lock().unwrap().push((Instant::now(), *settings)),
            other => panic!("{other}"),
        });
        Self { server: EchoServer::start(builder, SERVER_ADDRESS, WORK), changes }
    }

    /// How the supervisor drives the queue.
    fn mode(&self) -> QueueMode {
        self.changes.lock().unwrap().last().map_or(QueueMode::Interrupts, |(_, settings)| settings.mode)
    }

    /// Waits for a mode, and meanwhile does `step` again and again. Returns how long it took.
    fn wait_for(&mut self, mode: QueueMode, longest: Duration, mut step: impl FnMut()) -> Duration {
        let start = Instant::now();
        while self.mode() != mode {
            if start.elapsed() > longest {
                let history = self.history(start);
                panic!("not {mode} within {longest:?}: {history}; at last {}", self.server.report());
            }
            step();
        }
        start.elapsed()
    }

    /// The changes, with times since `start`.
    fn history(&self, start: Instant) -> String {
        let changes = self.changes.lock().unwrap();
        let line = |(when, settings): &(Instant, QueueSettings)| {
            let millis = when.saturating_duration_since(start).as_millis();
            format!("{millis} ms: {settings}")
        };
        changes.iter().map(line).collect::<Vec<_>>().join(", ")
    }
}

fn enter() -> Testbed {
    let testbed = testbed::enter(1);
    receive_on_client_core(&testbed);
    testbed
}

/// Deferrals, grace time and suspend timeout.
fn values() -> (u64, Duration, Duration) {
    let napi = napi();
    let time = |nanos: Option<u64>| Duration::from_nanos(nanos.unwrap());
    (napi.defer_hard_irqs.unwrap(), time(napi.gro_flush_timeout), time(napi.irq_suspend_timeout))
}

/// The share of packets that busy polls took within a time.
fn busy_poll_share(time: Duration) -> f64 {
    let interface = host::interface(SERVER_INTERFACE).unwrap();
    let before = Snapshot::take(&interface).unwrap();
    std::thread::sleep(time);
    Snapshot::take(&interface).unwrap().since(&before).busy_poll_share()
}

/// Saturates a queue until it is in timed mode, and returns the share of packets that busy polls
/// take from then on.
fn saturate(adapting: &mut Adapting, load: &Load) -> f64 {
    load.on();
    let sleep = || std::thread::sleep(Duration::from_millis(2));
    let took = adapting.wait_for(QueueMode::Timed, Duration::from_secs(5), sleep);
    let share = busy_poll_share(Duration::from_millis(250));
    println!("timed mode after {took:?}, {share:.2} of the packets by busy polls");
    share
}

/// The settings of a mode, once they are in effect and the queue has their values, which it soon
/// does.
fn values_of(adapting: &mut Adapting, mode: QueueMode) -> QueueSettings {
    let give_up = Instant::now() + Duration::from_millis(300);
    loop {
        let settings = adapting.server.report().queue.unwrap();
        let set = (settings.defer_hard_irqs, settings.grace_time, settings.suspend_timeout);
        if settings.mode == mode && values() == set {
            return settings;
        }
        assert!(Instant::now() < give_up, "{:?}, {settings}", values());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
#[ignore = "timing"]
#[isolated(root, drivers = "epoll, auto")]
#[serial]
fn a_loaded_queue_is_polled_by_its_worker_and_a_sparse_one_left_to_interrupts() {
    let testbed = enter();
    let before = napi();
    let mut adapting = Adapting::start();
    let start = Instant::now();
    let report = adapting.server.report();
    assert_eq!(report.queue.unwrap().mode, QueueMode::Interrupts, "{report}");
    assert!(report.steps_down.is_empty(), "{report}");
    assert_eq!(values(), (0, Duration::ZERO, Duration::from_millis(20)));
    let load = Load::open(&testbed, adapting.server.address, CONNECTIONS, ECHO);
    let share = saturate(&mut adapting, &load);
    // Under interrupts it is 0. After pauses of the machine the watchdog polls instead, and of a
    // ring's polls the kernel doesn't count every second one (`busy_poll_stop`).
    assert!(share > 0.3, "{share:.2} of the packets by busy polls: {}", adapting.history(start));
    let timed = values_of(&mut adapting, QueueMode::Timed);
    assert_eq!((timed.defer_hard_irqs, timed.suspend_timeout), (1, Duration::ZERO), "{timed}");
    let (watchdog, interval) = (timed.grace_time.as_micros(), timed.poll_interval.as_micros());
    assert!((250..=20_000).contains(&watchdog), "a watchdog of {watchdog} µs");
    assert_eq!(interval, 30, "{timed}");
    check_way_back(&testbed, &mut adapting, load);
    drop(adapting);
    assert_eq!(napi(), before);
}

/// From a saturated queue to a sparse load, and then often back and forth.
fn check_way_back(testbed: &Testbed, adapting: &mut Adapting, load: Load) {
    let start = Instant::now();
    preempt_on_client_core();
    let mut probe = Connection::open_on(testbed, adapting.server.address);
    // Without packets timed mode stays for a moment. The median of three, because the hypervisor
    // pauses a core now and then.
    let mut firsts: Vec<Duration> = (0..3)
        .map(|_| {
            load.on();
            std::thread::sleep(Duration::from_millis(20));
            load.off();
            std::thread::sleep(Duration::from_millis(100));
            probe.request()
        })
        .collect();
    firsts.sort_unstable();
    let first = firsts[1];
    let took = adapting.wait_for(QueueMode::Interrupts, Duration::from_millis(500), || {
        std::thread::sleep(PAUSE);
        probe.request();
    });
    println!("first packet {first:?}, interrupts after {took:?}");
    // Suspension would end after 20 ms.
    assert!(first < Duration::from_millis(10), "first packets waited for {firsts:?}");
    let plain = values_of(adapting, QueueMode::Interrupts);
    assert_eq!((plain.defer_hard_irqs, plain.grace_time), (0, Duration::ZERO), "{plain}");

    for step in 0..20 {
        if step % 2 == 0 {
            load.on()
        } else {
            load.off()
        }
        std::thread::sleep(Duration::from_millis(70));
        probe.request();
    }
    let requests = load.end();
    println!("{requests} requests, {}", adapting.history(start));
    assert!(requests > 1000, "only {requests} requests");
}

/// Round trips of a server without a policy on the queue of a loaded server: median, 99th
/// percentile, longest.
fn neighbour_trips(testbed: &Testbed, policy: Policy) -> [Duration; 3] {
    let loaded = EchoServer::start(server_builder(policy, 1), SERVER_ADDRESS, SHORT_WORK);
    let neighbour = Builder::new().ignore_environment().driver(DriverKind::Epoll).workers(1);
    let neighbour = EchoServer::start(neighbour.cores(Cpus::one(1)), SERVER_ADDRESS, Duration::ZERO);
    preempt_on_client_core();
    let load = Load::open(testbed, loaded.address, CONNECTIONS, ECHO);
    let mut probe = Connection::open_on(testbed, neighbour.address);
    load.on();
    // Until the controller has settled.
    std::thread::sleep(Duration::from_millis(150));
    let trips = probe.probe(Duration::from_millis(2), Duration::from_millis(400));
    load.end();
    [quantile(&trips, 0.5), quantile(&trips, 0.99), quantile(&trips, 1.0)]
}

#[test]
#[ignore = "timing"]
#[isolated(root, drivers = "epoll, auto")]
#[serial]
fn another_program_on_an_adapted_queue_waits_for_little_longer() {
    const ROUNDS: usize = 5;
    const INTERVAL: Duration = Duration::from_micros(30);
    // The neighbour shares its core with the load: a thread that receives there would delay it more
    // than the queue does.
    let testbed = testbed::enter(1);
    let mut rounds = [const { Vec::new() }; 2];
    for _ in 0..ROUNDS {
        for (policy, rounds) in [Policy::Vanilla, Policy::KernelPolling].into_iter().zip(&mut rounds) {
            rounds.push(neighbour_trips(&testbed, policy));
        }
    }
    println!("vanilla {:?}\nadapted {:?}", rounds[0], rounds[1]);
    // Medians of rounds, because the hypervisor pauses a core now and then, for tens of
    // milliseconds.
    let median = |rounds: &[[Duration; 3]], which: usize| {
        let mut trips: Vec<Duration> = rounds.iter().map(|round| round[which]).collect();
        trips.sort_unstable();
        trips[ROUNDS / 2]
    };
    for (which, name) in ["median", "99th percentile"].into_iter().enumerate() {
        let [vanilla, adapted] = [0, 1].map(|policy| median(&rounds[policy], which));
        // Other programs delay both, and the 99th percentile by a different amount each time.
        let bound = vanilla * 3 + INTERVAL + Duration::from_millis(1);
        assert!(adapted < bound, "{name}: {adapted:?}, under vanilla {vanilla:?}");
    }
    let longest = median(&rounds[1], 2);
    assert!(longest < Duration::from_millis(100), "a request took {longest:?}");
}

#[test]
#[ignore = "timing"]
#[isolated(root, drivers = "epoll, auto")]
#[serial]
fn no_packet_is_stuck_while_the_mode_changes_often() {
    const TIME: Duration = Duration::from_secs(5);
    let testbed = enter();
    let adapting = Adapting::start();
    let start = Instant::now();
    preempt_on_client_core();
    let load = Load::open(&testbed, adapting.server.address, CONNECTIONS, ECHO);
    let mut probe = Connection::open_on(&testbed, adapting.server.address);
    let mut late = Vec::new();
    std::thread::scope(|scope| {
        // Dropped at the end, also if a response is lost.
        let (_end, ended) = mpsc::channel::<()>();
        let load = &load;
        scope.spawn(move || {
            for step in 0_u64.. {
                if step % 2 == 0 {
                    load.on()
                } else {
                    load.off()
                }
                // 60 to 100 ms, so that a change meets every phase of the controller; and without a
                // load for a window of few packets longer.
                let quiet = if step % 2 == 0 { 0 } else { 100 };
                let time = Duration::from_millis(60 + step * 13 % 41 + quiet);
                if ended.recv_timeout(time) == Err(RecvTimeoutError::Disconnected) {
                    break;
                }
            }
        });
        while start.elapsed() < TIME {
            std::thread::sleep(Duration::from_millis(5));
            let sent = start.elapsed();
            let trip = probe.request();
            if trip > Duration::from_millis(15) {
                late.push((sent, trip));
            }
        }
    });
    let requests = load.end();
    let changes = adapting.changes.lock().unwrap().len();
    println!("{requests} requests, {changes} changes, late: {late:?}");
    // Two for each load but where the machine pauses: 39.
    assert!(changes >= 20, "only {}", adapting.history(start));
    let longest = late.iter().map(|(_, trip)| *trip).max().unwrap_or_default();
    // A packet that nobody polls for waits for its retransmission, 200 ms at least.
    assert!(longest < Duration::from_millis(190), "{late:?} with {}", adapting.history(start));
}
