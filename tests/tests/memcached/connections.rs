//! What becomes of connections whose clients vanish or are idle, and the descriptors that all may
//! take. What of it the transport may change is in `transports.rs`.

use std::io::Write;
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use serial_test::parallel;
use tests::memcached::{Memcached, binary, expect, free_port, read_some, wait_until};

const VALUE: usize = 500_000;

fn store_large_value(server: &Memcached) {
    let set = [format!("set k 0 0 {VALUE}\r\n").as_bytes(), &[b'v'; VALUE], b"\r\n"].concat();
    assert_eq!(server.talk(&set), b"STORED\r\n");
}

#[test]
#[parallel]
fn clients_are_probed_as_they_may_vanish() {
    let server = Memcached::start(&[]);
    let mut stream = server.connect();
    stream.write_all(b"mn\r\n").unwrap();
    expect(&mut stream, b"MN\r\n").unwrap();
    // `proc(5)`: local and remote address in hexadecimal, state, queues, then the timer; 02 is the
    // keepalive's.
    let ends = (server.address.port(), stream.local_addr().unwrap().port());
    let timer = || {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        table.lines().find_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let port = |word: &str| u16::from_str_radix(word.split_once(':')?.1, 16).ok();
            let ours = (port(words[1])?, port(words[2])?) == ends;
            ours.then(|| words[5].to_owned())
        })
    };
    // Until its answer is acknowledged the connection has a retransmission timer instead.
    wait_until("the connection has a keepalive timer", || {
        timer().is_some_and(|timer| timer.starts_with("02:"))
    });
}

#[test]
#[parallel]
fn an_idle_client_that_is_disconnected_sees_the_end_of_the_stream() {
    for driver in tests::drivers(["uring", "epoll"]) {
        let server = Memcached::start(&["-o", "idle_timeout=3", "--driver", driver]);
        let mut idle = server.connect();
        idle.write_all(b"mn\r\n").unwrap();
        expect(&mut idle, b"MN\r\n").unwrap();
        wait_until("it is disconnected", || {
            server.stat("idle_kicks") >= 1 && server.stat("curr_connections") <= 1
        });
        // After a reset its next write would fail, before it has seen the end of the stream.
        let written = idle.write(b"mn\r\n");
        assert!(written.is_ok(), "{written:?} on {driver}");
        assert_eq!(read_some(&mut idle, &mut [0; 1]).map_err(|error| error.kind()), Ok(0), "on {driver}");
    }
}

/// Where the kernel fills a ring's buffers to their ends, a line can be cut at any byte, even one
/// that was sent whole.
#[test]
#[parallel]
fn a_get_of_many_keys_may_come_in_segments_on_every_driver() {
    let keys: String = (0..800).map(|key| format!(" key-{key:05}")).collect();
    for driver in tests::drivers(["uring", "epoll"]) {
        let server = Memcached::start(&["--driver", driver]);
        assert_eq!(server.talk(b"set key-00799 0 0 5\r\nvalue\r\n"), b"STORED\r\n");
        for (verb, has_cas) in [("get", false), ("gets", true), ("gat 0", false), ("gats 0", true)] {
            let mut stream = server.connect();
            stream.set_nodelay(true).unwrap();
            for segment in format!("{verb}{keys}\r\n").as_bytes().chunks(1448) {
                stream.write_all(segment).unwrap();
                // So that the server receives them one by one, which the result must not depend on.
                std::thread::sleep(Duration::from_millis(2));
            }
            let cas = if has_cas { " 1" } else { "" };
            let reply = format!("VALUE key-00799 0 5{cas}\r\nvalue\r\nEND\r\n");
            expect(&mut stream, reply.as_bytes()).unwrap_or_else(|got| panic!("{verb} on {driver}: {got:?}"));
        }
    }
}

/// Reads at a pace for some time, then everything.
fn read_slowly(stream: &mut TcpStream, time: Duration) -> u64 {
    let (start, mut taken) = (Instant::now(), 0);
    let mut buffer = vec![0; 256 << 10];
    while start.elapsed() < time {
        let length = read_some(stream, &mut buffer).unwrap();
        assert!(length > 0, "disconnected after {:?}", start.elapsed());
        taken += length as u64;
        std::thread::sleep(Duration::from_millis(20));
    }
    taken + std::io::copy(stream, &mut std::io::sink()).unwrap()
}

#[test]
#[ignore = "timing"]
#[parallel]
fn a_client_that_takes_its_replies_is_not_idle() {
    let server = Memcached::start(&["-o", "idle_timeout=1"]);
    store_large_value(&server);
    let mut stream = server.connect_with_small_buffer(64 << 10);
    let gets = 60;
    stream.write_all(&[&b"get k\r\n".repeat(gets)[..], b"quit\r\n"].concat()).unwrap();
    let taken = read_slowly(&mut stream, Duration::from_secs(4));
    assert!(taken > (gets * VALUE) as u64, "{taken} bytes");
    assert_eq!(server.stat("idle_kicks"), 0);
}

#[test]
#[parallel]
fn the_descriptor_limit_covers_the_connections_and_all_workers() {
    let Some(()) = tests::descriptors(4000) else { return };
    let port = free_port();
    for (driver, workers, connections) in [("epoll", "100", 400), ("uring", "100", 400), ("epoll", "2", 3000)]
    {
        if tests::drivers([driver]).is_empty() {
            continue;
        }
        // A low soft limit, as a login shell has it; the server may raise it up to the hard one.
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -Sn 256; exec \"$@\"", "sh"]).arg(binary());
        command.args(["-u", "root", "-t", workers, "-c", &connections.to_string(), "-U", &port.to_string()]);
        command.args(["-l", "127.0.0.1,127.0.0.2,127.0.0.3"]);
        command.args(["-p", &port.to_string(), "--driver", driver]);
        let server = Memcached::run(&mut command, port);
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.child.id())).unwrap();
        let limit = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
        let limit: usize = limit.split_whitespace().next().unwrap().parse().unwrap();
        let open = std::fs::read_dir(format!("/proc/{}/fd", server.child.id())).unwrap().count();
        let wanted = open + connections;
        assert!(wanted <= limit, "{wanted} with all connections on {driver}, and a limit of {limit}");
    }
}
