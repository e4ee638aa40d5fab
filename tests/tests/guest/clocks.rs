//! Clocks that jump, processes that are stopped, machines that are suspended: what the memcached
//! server makes of them.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serial_test::serial;

use super::boot;
use super::load::{serve, stop};
use super::machine::{Machine, Nic};

/// `-o idle_timeout`, and lifetimes.
const LIMIT: Duration = Duration::from_secs(16);
/// A client must log in within this time.
const LOGIN_LIMIT: Duration = Duration::from_secs(10);
/// How much later than its limit a client may be disconnected: 1.25 s, and what an emulated machine
/// takes.
const LAG: Duration = Duration::from_secs(4);
const DAY: i64 = 86_400;

struct Clients {
    /// It has logged in, and sends requests.
    active: TcpStream,
    /// It has logged in, and sends nothing.
    idle: TcpStream,
    /// It does not log in.
    stranger: TcpStream,
    start: Instant,
}

fn send(stream: &mut TcpStream, request: &str, end: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut reply = Vec::new();
    while !reply.ends_with(end.as_bytes()) {
        let mut byte = [0];
        let length = stream.read(&mut byte).unwrap();
        assert_eq!(length, 1, "disconnected after {:?}", String::from_utf8_lossy(&reply));
        reply.push(byte[0]);
    }
    String::from_utf8(reply).unwrap()
}

fn store(stream: &mut TcpStream, key: &str, expiry: i64) {
    assert_eq!(send(stream, &format!("set {key} 0 {expiry} 1\r\nx\r\n"), "\r\n"), "STORED\r\n");
}

fn has(stream: &mut TcpStream, key: &str) -> bool {
    send(stream, &format!("get {key}\r\n"), "END\r\n").starts_with("VALUE")
}

/// The seconds until an item expires.
fn time_to_live(stream: &mut TcpStream, key: &str) -> i64 {
    let reply = send(stream, &format!("mg {key} t\r\n"), "\r\n");
    reply.trim().strip_prefix("HD t").unwrap_or_else(|| panic!("{reply}")).parse().unwrap()
}

fn is_closed(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let peeked = stream.peek(&mut [0]);
    stream.set_nonblocking(false).unwrap();
    peeked.map_or_else(|error| error.kind() != ErrorKind::WouldBlock, |length| length == 0)
}

fn wall_clock(guest: &mut Machine) -> i64 {
    guest.run("date +%s").trim().parse().unwrap()
}

fn start(guest: &mut Machine, idle_limit: Duration) {
    guest.run("echo ann:secret >/tmp/users");
    serve(guest, 0, "vanilla", &format!("-Y /tmp/users -o idle_timeout={}", idle_limit.as_secs()));
}

fn connect_clients(guest: &Machine) -> Clients {
    let stranger = connect(guest);
    let start = Instant::now();
    Clients { active: login(guest), idle: login(guest), stranger, start }
}

fn connect(guest: &Machine) -> TcpStream {
    let stream = guest.connect(0, 11211).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

fn login(guest: &Machine) -> TcpStream {
    let mut stream = connect(guest);
    assert_eq!(send(&mut stream, "set x 0 0 10\r\nann secret\r\n", "\r\n"), "STORED\r\n");
    stream
}

/// Stops the server, which must not have panicked.
fn end(guest: &mut Machine) {
    stop(guest);
    let said = guest.run("cat /tmp/memcached");
    assert!(!said.contains("panic"), "the server has panicked:\n{said}");
}

/// Looks until each of these has come true, for a time by a clock. Returns the clock's times.
fn times_of<const N: usize>(
    limit: Duration,
    mut look: impl FnMut() -> (Duration, [bool; N]),
) -> [Duration; N] {
    let mut seen = [None; N];
    while seen.iter().any(Option::is_none) {
        let (now, is_over) = look();
        assert!(now < limit, "not all is over after {now:?}: {seen:?}");
        for (seen, _) in seen.iter_mut().zip(is_over).filter(|(_, is_over)| *is_over) {
            seen.get_or_insert(now);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    seen.map(Option::unwrap)
}

fn assert_near(what: &str, seen: Duration, limit: Duration) {
    println!("{what} after {seen:.1?}, limit {limit:?}");
    // Lifetimes are whole seconds of a clock that need not have begun one when an item was stored.
    assert!(
        seen + Duration::from_secs(1) >= limit && seen <= limit + LAG,
        "{what} after {seen:?}, not {limit:?}"
    );
}

#[test]
#[serial]
fn lifetimes_and_time_limits_are_elapsed_time_when_the_wall_clock_jumps() {
    let Some(mut guest) = boot(&[Nic::Virtio], 1) else { return };
    for jump in [DAY, -DAY] {
        start(&mut guest, LIMIT);
        let mut clients = connect_clients(&guest);
        let lifetime = i64::try_from(LIMIT.as_secs()).unwrap();
        let before = wall_clock(&mut guest);
        let active = &mut clients.active;
        store(active, "relative", lifetime);
        store(active, "absolute", before + lifetime);
        store(active, "ever", 0);
        guest.run(&format!("date -s @{} >/dev/null", before + jump));
        assert!((wall_clock(&mut guest) - before - jump).abs() < 60, "the clock has jumped");
        assert!(["relative", "absolute", "ever"].iter().all(|key| has(active, key)), "{jump}");
        // A Unix time is compared with the wall clock as it was when the server started, as in
        // memcached.
        store(active, "late", before + jump + lifetime);
        match jump {
            DAY => {
                let left = time_to_live(active, "late");
                assert!((left - DAY - lifetime).abs() < 60, "{left}");
            }
            _ => assert!(!has(active, "late"), "it was before the server's start"),
        }
        let seen = times_of(LIMIT + 2 * LAG, || {
            let active = &mut clients.active;
            let is_over = [
                !has(active, "relative"),
                !has(active, "absolute"),
                is_closed(&clients.idle),
                is_closed(&clients.stranger),
            ];
            (clients.start.elapsed(), is_over)
        });
        let what = ["relative lifetime", "absolute lifetime", "idle client", "client without a login"];
        for ((what, seen), limit) in what.iter().zip(seen).zip([LIMIT, LIMIT, LIMIT, LOGIN_LIMIT]) {
            assert_near(&format!("jump of {jump} s: {what}"), seen, limit);
        }
        assert!(has(&mut clients.active, "ever"));
        guest.run(&format!("date -s @$(($(date +%s) - {jump})) >/dev/null"));
        end(&mut guest);
    }
}

#[test]
#[serial]
fn a_stopped_servers_limits_count_the_stop_but_not_against_clients_that_have_sent_something() {
    const STOP: Duration = Duration::from_secs(20);
    let Some(mut guest) = boot(&[Nic::Virtio], 1) else { return };
    start(&mut guest, LIMIT);
    let mut clients = connect_clients(&guest);
    let lifetime = i64::try_from(LIMIT.as_secs()).unwrap();
    store(&mut clients.active, "short", lifetime);
    store(&mut clients.active, "long", 1000);
    // On both workers, of which one has the store's clock.
    let mut others: Vec<TcpStream> = (0..8).map(|_| login(&guest)).collect();
    let pid = guest.run("pidof memcached").trim().to_owned();
    guest.run(&format!("kill -STOP {pid}"));
    std::thread::sleep(STOP / 2);
    let mut senders: Vec<&mut TcpStream> = others.iter_mut().chain([&mut clients.active]).collect();
    senders.iter_mut().for_each(|stream| stream.write_all(b"mn\r\n").unwrap());
    std::thread::sleep(STOP / 2);
    guest.run(&format!("kill -CONT {pid}"));
    let goes_on = Instant::now();
    for stream in &mut senders {
        assert_eq!(send(stream, "", "MN\r\n"), "MN\r\n");
    }
    while !(is_closed(&clients.idle) && is_closed(&clients.stranger)) {
        assert!(goes_on.elapsed() < LAG, "they are still connected");
        std::thread::sleep(Duration::from_millis(50));
    }
    println!("the others are disconnected {:?} after the stop", goes_on.elapsed());
    std::thread::sleep(LAG.saturating_sub(goes_on.elapsed()));
    for stream in &mut senders {
        assert_eq!(send(stream, "mn\r\n", "MN\r\n"), "MN\r\n");
    }
    assert!(!has(&mut clients.active, "short"));
    let left = time_to_live(&mut clients.active, "long");
    assert!(left <= 1000 - i64::try_from(STOP.as_secs()).unwrap() && left > 900, "{left}");
    end(&mut guest);
}

/// How long two of the guest's clocks have run.
struct Clocks {
    /// `CLOCK_MONOTONIC`, which stands still in a suspend.
    monotonic: Duration,
    /// `CLOCK_BOOTTIME`, which goes on.
    boottime: Duration,
}

impl Clocks {
    fn read(guest: &mut Machine) -> Self {
        let text = guest.run("cut -d ' ' -f 1 /proc/uptime; grep -m 1 'now at' /proc/timer_list");
        let (boottime, monotonic) = text.split_once('\n').unwrap();
        let nanos = monotonic.split_whitespace().nth(2).unwrap_or_else(|| panic!("{text}"));
        Self {
            monotonic: Duration::from_nanos(nanos.parse().unwrap()),
            boottime: Duration::from_secs_f64(boottime.parse().unwrap()),
        }
    }

    /// How long the clocks have run since an earlier reading.
    fn since(&self, earlier: &Self) -> Self {
        Self { monotonic: self.monotonic - earlier.monotonic, boottime: self.boottime - earlier.boottime }
    }
}

#[test]
#[serial]
fn a_suspend_counts_for_lifetimes_but_not_for_clients_that_could_not_send_meanwhile() {
    const SUSPEND: Duration = Duration::from_secs(13);
    const LIFETIME: i64 = 12;
    const IDLE_LIMIT: Duration = Duration::from_secs(12);
    let Some(mut guest) = boot(&[Nic::Virtio], 1) else { return };
    start(&mut guest, IDLE_LIMIT);
    let begin = Clocks::read(&mut guest);
    let mut clients = connect_clients(&guest);
    let unix = wall_clock(&mut guest);
    let stored = Clocks::read(&mut guest);
    let expiries = [("relative", LIFETIME), ("absolute", unix + LIFETIME), ("ever", 0)];
    for (key, expiry) in expiries.into_iter().chain([("long", 1000), ("later", unix + 1000)]) {
        store(&mut clients.active, key, expiry);
    }
    guest.suspend(SUSPEND, || {
        assert_eq!(send(&mut clients.active, "mn\r\n", "MN\r\n"), "MN\r\n");
    });
    let woken = Clocks::read(&mut guest).since(&begin);
    let slept = woken.boottime.saturating_sub(woken.monotonic);
    println!("awake for {:.1?}, suspended for {slept:.1?}", woken.monotonic);
    // The guest takes this time from the mainboard's clock, which has whole seconds.
    assert!(slept > SUSPEND / 2, "{slept:?}");
    // The store's clock is advanced ten times a second.
    std::thread::sleep(Duration::from_millis(500));
    let active = &mut clients.active;
    assert!(!has(active, "relative"), "a relative lifetime goes on");
    assert!(!has(active, "absolute"), "a Unix time is one of the wall clock");
    assert!(has(active, "ever"));
    store(active, "late", wall_clock(&mut guest) + 1000);
    let passed = i64::try_from(Clocks::read(&mut guest).since(&stored).boottime.as_secs()).unwrap();
    for (key, expected) in [("long", 1000 - passed), ("later", 1000 - passed), ("late", 1000)] {
        let left = time_to_live(active, key);
        assert!((left - expected).abs() <= 2, "{key} has {left} s left, not {expected} s");
    }
    let [idle, stranger] = times_of(LOGIN_LIMIT + 2 * LAG, || {
        let awake = Clocks::read(&mut guest).since(&begin).monotonic;
        assert_eq!(send(&mut clients.active, "mn\r\n", "MN\r\n"), "MN\r\n");
        (awake, [is_closed(&clients.idle), is_closed(&clients.stranger)])
    });
    assert_near("suspended: an idle client", idle, IDLE_LIMIT);
    assert_near("suspended: a client without a login", stranger, LOGIN_LIMIT);
    end(&mut guest);
}
