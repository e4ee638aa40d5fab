//! What a change of a queue's settings does to requests that come meanwhile: between each two
//! modes, and within a mode.

use std::time::{Duration, Instant};

use lab::testbed::SERVER_ADDRESS;
use loadgen::medians::percentile;
use policies::Policy;
use policies::controller::{ForcedSettings, QueueSettings, Reason};
use tests::memcached::wait_until;
use tests::random::Random;
use tests::testbed::{enter, receive_on_client_core, server_builder};
use tests::testbed_test;

use super::echo::server::{Connection, ECHO, EchoServer, Load, preempt_on_client_core};

/// How often each change is made. The hypervisor pauses a core now and then, but not at most
/// changes of a kind.
const ROUNDS: usize = 7;
/// In this time a change that begins is over: the controller is asked each 10 ms, and a saturated
/// worker stops polling 10 ms later at the latest.
const CHANGE: Duration = Duration::from_millis(25);
/// By how much a request may be later than those without a change. The watchdog of timed mode would
/// take 2 ms, a suspension 20.
const LATER: Duration = Duration::from_millis(1);
/// What more of the changes may have such a request than of as many times without a change.
const MORE_LATE: f64 = 0.08;
const WORK: Duration = Duration::from_micros(30);

/// Settings of each mode, and of timed mode those of a controller that goes to another interval, or
/// never sleeps.
fn settings() -> Vec<QueueSettings> {
    let micros = Duration::from_micros;
    let timed = |interval| QueueSettings::timed(interval, QueueSettings::LONGEST_WATCHDOG, Reason::Fixed);
    let mut never_sleeps = timed(micros(1_000));
    never_sleeps.spin = never_sleeps.poll_interval;
    let mut grace = QueueSettings::grace(micros(50), Reason::Fixed);
    grace.defer_hard_irqs = QueueSettings::MOST_DEFERRALS;
    vec![QueueSettings::interrupts(Reason::Fixed), timed(micros(20)), timed(micros(160)), never_sleeps, grace]
}

struct Changing {
    server: EchoServer,
    forced: ForcedSettings,
    connection: Connection,
    random: Random,
    /// Those that the queue has since the last change.
    settings: QueueSettings,
}

impl Changing {
    /// The longest of the requests that are sent for some time, with short pauses.
    fn longest(&mut self) -> Duration {
        let end = Instant::now() + CHANGE;
        let mut longest = Duration::ZERO;
        while Instant::now() < end {
            longest = longest.max(self.connection.request());
            std::thread::sleep(Duration::from_micros(self.random.below(200) as u64));
        }
        longest
    }

    /// Changes the settings, and returns the longest request from the beginning of the change on.
    fn change(&mut self, next: QueueSettings) -> Duration {
        // As a controller does: the timeout ends a suspension that nobody resumes.
        let suspend_timeout = if next.polls() { next.suspend_timeout } else { self.settings.suspend_timeout };
        self.settings = next;
        self.settings.suspend_timeout = suspend_timeout;
        self.forced.choose(self.settings);
        let longest = self.longest();
        wait_until("the settings are in effect", || {
            self.connection.request();
            self.server.report().queue.is_some_and(|queue| queue.equals_but_reason(&self.settings))
        });
        longest
    }
}

fn median(times: &[Duration]) -> Duration {
    percentile(&mut times.to_vec(), 50).unwrap()
}

/// How many times are beyond a bound.
#[derive(Debug, Default)]
struct Share {
    beyond: usize,
    of: usize,
}

impl Share {
    fn add(&mut self, times: &[Duration], bound: Duration) {
        self.beyond += times.iter().filter(|time| **time > bound).count();
        self.of += times.len();
    }

    fn share(&self) -> f64 {
        self.beyond as f64 / self.of as f64
    }
}

/// `connections`: those that load the server meanwhile.
fn check_changes(connections: usize) {
    let testbed = enter(1);
    receive_on_client_core(&testbed);
    let forced = ForcedSettings::default();
    let builder = server_builder(Policy::KernelPolling, 1).force_queue_settings(forced.clone());
    let server = EchoServer::start(builder, SERVER_ADDRESS, WORK);
    preempt_on_client_core();
    let load = Load::open(&testbed, server.address, connections, ECHO);
    load.on();
    let connection = Connection::open_on(&testbed, server.address);
    let all = settings();
    let mut changing = Changing { server, forced, connection, random: Random::new(1), settings: all[0] };
    let mut steady = vec![Vec::new(); all.len()];
    let mut changed = vec![vec![Vec::new(); all.len()]; all.len()];
    for _ in 0..ROUNDS {
        for (one, other) in (0..all.len()).flat_map(|one| (one + 1..all.len()).map(move |other| (one, other)))
        {
            changing.change(all[one]);
            for (from, to) in [(one, other), (other, one)] {
                changed[from][to].push(changing.change(all[to]));
                steady[to].push(changing.longest());
            }
        }
    }
    let requests = load.end();
    println!("{requests} requests of others");
    let medians: Vec<Duration> = steady.iter().map(|times| median(times)).collect();
    // Of the windows with a change, and of those without one.
    let (mut late, mut late_steady) = (Share::default(), Share::default());
    for (times, median) in steady.iter().zip(&medians) {
        late_steady.add(times, *median + LATER);
    }
    for (from, to) in (0..all.len()).flat_map(|from| (0..all.len()).map(move |to| (from, to))) {
        let (times, steady) = (&changed[from][to], medians[from].max(medians[to]));
        if from == to {
            continue;
        }
        assert!(times.len() >= ROUNDS, "{} to {}", all[from], all[to]);
        let line = format!("{} to {}: {:?}, without a change {steady:?}", all[from], all[to], median(times));
        println!("{line} of {times:?}");
        assert!(median(times) <= steady + LATER, "{line}");
        late.add(times, steady + LATER);
    }
    println!("late: {late:?} with a change, {late_steady:?} without");
    assert!(late.share() <= late_steady.share() + MORE_LATE, "{late:?}, without a change {late_steady:?}");
}

#[ignore = "timing"]
#[testbed_test(drivers = "epoll, uring")]
fn a_request_at_a_change_of_mode_waits_no_longer_than_at_other_times() {
    check_changes(0);
}

#[ignore = "timing"]
#[testbed_test(drivers = "epoll, uring")]
fn a_request_of_a_loaded_server_waits_no_longer_at_a_change_of_mode() {
    check_changes(4);
}
