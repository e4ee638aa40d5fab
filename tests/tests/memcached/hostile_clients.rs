//! Ten thousand connections, half of them hostile: the others hardly wait longer.
//!
//! All clients run on the server's two cores, and the work for hostile ones takes time there. So
//! the comparison is with the same hostile clients at another server on these cores: what the
//! others wait longer than then, their own server has caused.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use loadgen::medians::percentile;
use serial_test::serial;
use tests::memcached::{Memcached, expect, set_request, wait_until};

const THREADS: usize = 5;
const CONNECTIONS: usize = 1000;
const ROUNDS: usize = 3;
const ROUND: Duration = Duration::from_secs(1);
/// The p99 below which no ratio is computed: the hypervisor, and the load itself, which has the
/// server's two cores, make the figures differ by that.
const FLOOR: Duration = Duration::from_millis(50);

/// What is measured: without hostile clients, with those of another server on the same cores, and
/// with the server's own.
const QUIET: u8 = 0;
const ELSEWHERE: u8 = 1;
const HOSTILE: u8 = 2;
const MEASURED: usize = 3;
const OVER: u8 = 3;
/// Hostile clients come or go, at full speed, which takes the cores. Nothing is measured.
const COMING_ELSEWHERE: u8 = 4;
const COMING: u8 = 5;
const GOING: u8 = 6;
/// Between two requests of a hostile thread. Faster ones would measure only that they take the
/// server's cores.
const HOSTILE_PACE: Duration = Duration::from_millis(5);

/// What a hostile client sends next. It never waits for an answer.
fn hostile(stream: &mut TcpStream, kind: usize, turn: usize) {
    let garbage: Vec<u8> = (0..200).map(|index| (index * 37 + turn * 101) as u8).collect();
    let request: &[u8] = match kind % 5 {
        0 => b"set half 0 0 5000\r\nhalf a va",
        // Pipelined, and the answers are not read.
        1 => &b"get large\r\n".repeat(20),
        2 => &garbage,
        3 => &[b"get ".to_vec(), vec![b'k'; 3000]].concat(),
        _ => &b"get other\r\nset other2 0 0 1\r\nx\r\n".repeat(50),
    };
    let broken = |error: std::io::Error| error.kind() != std::io::ErrorKind::WouldBlock;
    // Where the server has closed the connection, another takes its place.
    let closed = stream.write(request).is_err_and(broken) || matches!(stream.peek(&mut [0]), Ok(0));
    if closed && let Ok(new) = stream.peer_addr().and_then(TcpStream::connect) {
        new.set_nonblocking(true).unwrap();
        *stream = new;
    }
}

fn misbehave(server: &Memcached, other: &Memcached, phase: &AtomicU8) {
    // Of this thread. Clients on another machine would not take the server's cores at all.
    rustix::process::setpriority_process(None, 19).unwrap();
    let mut turn = 0;
    loop {
        let (target, phases) = match phase.load(Ordering::Relaxed) {
            OVER => break,
            COMING_ELSEWHERE | ELSEWHERE => (other, [COMING_ELSEWHERE, ELSEWHERE]),
            COMING | HOSTILE => (server, [COMING, HOSTILE]),
            _ => {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
        };
        let mut connections: Vec<TcpStream> = Vec::new();
        while phases.contains(&phase.load(Ordering::Relaxed)) {
            if connections.len() < CONNECTIONS {
                let stream = target.connect();
                stream.set_nonblocking(true).unwrap();
                connections.push(stream);
            }
            // The newest first, then each in turn.
            let index =
                if connections.len() < CONNECTIONS { connections.len() - 1 } else { turn % CONNECTIONS };
            hostile(&mut connections[index], index, turn);
            turn += 1;
            if connections.len() == CONNECTIONS {
                std::thread::sleep(HOSTILE_PACE);
            }
        }
    }
}

type Times = [[Vec<Duration>; ROUNDS]; MEASURED];

/// Requests of the well-behaved, on each connection in turn.
fn behave(server: &Memcached, phase: &AtomicU8, round: &AtomicUsize) -> Times {
    let mut times = Times::default();
    let mut connections: Vec<TcpStream> = (0..CONNECTIONS).map(|_| server.connect()).collect();
    connections.iter().for_each(|stream| stream.set_nodelay(true).unwrap());
    for index in (0..CONNECTIONS).cycle() {
        let stream = &mut connections[index];
        let now = phase.load(Ordering::Relaxed);
        if now == OVER {
            break;
        }
        let start = Instant::now();
        stream.write_all(b"get other\r\n").unwrap();
        expect(stream, b"VALUE other 0 5\r\nvalue\r\nEND\r\n").unwrap();
        // Not those in which the phase has changed.
        if usize::from(now) < MEASURED && phase.load(Ordering::Relaxed) == now {
            times[usize::from(now)][round.load(Ordering::Relaxed)].push(start.elapsed());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    times
}

/// The p99 of the best round: what else runs on the machine rarely disturbs all of them. None may
/// have starved the well-behaved, who would send some 2500 requests if nothing else ran.
fn p99(mut rounds: [Vec<Duration>; ROUNDS]) -> Duration {
    let requests = rounds.each_ref().map(Vec::len);
    assert!(requests.iter().all(|requests| *requests >= 100), "{requests:?} requests in the rounds");
    rounds.iter_mut().filter_map(|times| percentile(times, 99)).min().unwrap()
}

#[test]
#[ignore = "timing"]
#[serial]
fn half_of_ten_thousand_connections_are_hostile_and_the_others_do_not_wait_twice_as_long() {
    let Some(()) = tests::descriptors(11_000) else { return };
    let start = || {
        let server = Memcached::start(&["-c", "12000", "-m", "64"]);
        let items = [&set_request("large", 100_000)[..], b"set other 0 0 5\r\nvalue\r\n"].concat();
        assert_eq!(server.talk(&items), b"STORED\r\nSTORED\r\n");
        server
    };
    let (server, other) = (start(), start());
    let (phase, round) = (AtomicU8::new(GOING), AtomicUsize::new(0));
    let mut times = Times::default();
    std::thread::scope(|scope| {
        let behaved: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| behave(&server, &phase, &round))).collect();
        (0..THREADS).for_each(|_| drop(scope.spawn(|| misbehave(&server, &other, &phase))));
        let connections = |of: &Memcached, least: usize, most: usize| {
            wait_until("connections come and go", || {
                (least..=most).contains(&(of.stat("curr_connections") as usize))
            });
        };
        let half = THREADS * CONNECTIONS;
        for number in 0..ROUNDS {
            round.store(number, Ordering::Relaxed);
            for (coming, measured) in [(GOING, QUIET), (COMING_ELSEWHERE, ELSEWHERE), (COMING, HOSTILE)] {
                phase.store(GOING, Ordering::Relaxed);
                connections(&server, half, half + 10);
                connections(&other, 0, 10);
                phase.store(coming, Ordering::Relaxed);
                // The server closes some of them at once: those that send too long a line.
                match measured {
                    ELSEWHERE => connections(&other, half - half / 4, half + 10),
                    HOSTILE => connections(&server, 2 * half - half / 4, 2 * half + 10),
                    _ => {}
                }
                std::thread::sleep(Duration::from_millis(300));
                phase.store(measured, Ordering::Relaxed);
                std::thread::sleep(ROUND);
            }
        }
        phase.store(OVER, Ordering::Relaxed);
        for thread in behaved {
            let of_thread = thread.join().unwrap();
            for (all, more) in times.as_flattened_mut().iter_mut().zip(of_thread.as_flattened()) {
                all.extend(more);
            }
        }
    });
    let [quiet, elsewhere, with_hostile] = times.map(p99);
    println!(
        "p99 {quiet:?} without hostile clients, {elsewhere:?} with 5000 of another server, {with_hostile:?} with 5000"
    );
    assert!(
        with_hostile <= elsewhere.saturating_mul(2).max(FLOOR),
        "p99 {with_hostile:?}, with hostile clients of another server {elsewhere:?}"
    );
    wait_until("all connections are closed", || server.stat("curr_connections") <= 1);
    let mut last = server.connect();
    last.write_all(b"mn\r\n").unwrap();
    let mut answer = [0; 4];
    last.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"MN\r\n");
}

/// Each reads another version of a value, which the store has replaced since then.
#[test]
#[serial]
fn slow_readers_of_replaced_values_are_disconnected_and_others_go_on() {
    const READERS: usize = 60;
    for driver in tests::drivers(["uring", "epoll"]) {
        let server = Memcached::start(&["-m", "64", "-I", "2m", "--driver", driver]);
        let big = set_request("big", 1_000_000);
        let mut writer = server.connect();
        let mut set = |request: &[u8]| {
            writer.write_all(request).unwrap();
            expect(&mut writer, b"STORED\r\n").unwrap();
        };
        let readers: Vec<_> = (0..READERS)
            .map(|_| {
                set(&big);
                let mut reader = server.connect_with_small_buffer(4096);
                reader.write_all(&b"get big\r\n".repeat(20)).unwrap();
                reader.read_exact(&mut [0; 100]).unwrap();
                reader
            })
            .collect();
        for _ in 0..200 {
            set(&set_request("other", 64 << 10));
        }
        // Those that hold a quarter of the memory stay. The rest is the present values, and segments.
        assert!(server.stat("bytes_memory") <= server.stat("limit_maxbytes"));
        wait_until("most readers are disconnected", || server.stat("bytes_memory") <= 24 << 20);
        assert!(server.stat("curr_connections") > 12, "more were disconnected than needed");
        drop(readers);
    }
}
