//! A server that has no descriptors left.

use std::io::Write;
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use serial_test::serial;
use tests::memcached::{Memcached, binary, expect, free_port, set_request, wait_until};

/// Of the server, some twenty of them for itself.
const DESCRIPTORS: u64 = 80;
const SLOW_READERS: usize = 120;
/// Replies of 12 MiB, more than a connection's buffers take.
const REPLIES: usize = 12;

/// Clients that fill their send paths and don't read take all descriptors. Those in the queue wait.
/// The server must not try to accept them all the time; it disconnects the slow ones, and then
/// serves the others.
fn slow_readers_take_all_descriptors(driver: &str) {
    let Some(setpriv) = tests::program("setpriv") else { return };
    let port = free_port();
    let mut command = Command::new("sh");
    // With this capability root raises the limit. The ring of io_uring takes the limit of the time
    // at which it starts to accept, so it is set before.
    let script =
        format!("ulimit -n {DESCRIPTORS}; exec \"$0\" --bounding-set=-sys_resource --inh-caps=-all \"$@\"");
    command.arg("-c").arg(script).arg(setpriv).arg(binary());
    command.args(["-u", "root", "-t", "2", "-p", &port.to_string(), "--driver", driver]);
    command.args(["-o", "idle_timeout=3", "-I", "2m"]);
    let server = Memcached::run(&mut command, port);
    let large = set_request("large", 1_048_000);
    assert_eq!(server.talk(&large), b"STORED\r\n");
    assert_eq!(server.talk(b"set other 0 0 5\r\nvalue\r\n"), b"STORED\r\n");
    // Accepted before there are none left. It stays busy all the time.
    let mut early = server.connect();
    let mut ask = || {
        early.write_all(b"get other\r\n").unwrap();
        expect(&mut early, b"VALUE other 0 5\r\nvalue\r\nEND\r\n").unwrap();
    };
    ask();
    let before = server.descriptors();
    let slow: Vec<TcpStream> = (0..SLOW_READERS)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(&b"get large\r\n".repeat(REPLIES)).unwrap();
            stream
        })
        .collect();
    wait_until("no descriptor is left", || server.descriptors() >= DESCRIPTORS);
    // Until the send paths are full, too.
    std::thread::sleep(Duration::from_millis(500));
    let (cpu, start) = (server.cpu_time(), Instant::now());
    while start.elapsed() < Duration::from_secs(1) {
        ask();
        std::thread::sleep(Duration::from_millis(20));
    }
    let share = (server.cpu_time() - cpu).as_secs_f64() / start.elapsed().as_secs_f64();
    println!("{driver}: {share:.3} of a core without descriptors");
    assert!(share < 0.3, "the server spins without descriptors: {share:.3} of a core");
    // The slow ones are disconnected after their idle time, which lets the next ones in, which are
    // slow too. This one is the last in the queue.
    let start = Instant::now();
    let mut late = server.connect();
    late.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    late.write_all(b"get other\r\n").unwrap();
    let mut served = false;
    while !served && start.elapsed() < Duration::from_secs(40) {
        ask();
        served = expect(&mut late, b"VALUE other 0 5\r\nvalue\r\nEND\r\n").is_ok();
    }
    println!("{driver}: the last one was served after {:?}", start.elapsed());
    assert!(served, "a client was not accepted although the slow ones should have been disconnected");
    drop(slow);
    wait_until("only two are connected", || server.stat("curr_connections") <= 3);
    // Those that were waiting are accepted to find them closed.
    wait_until("the descriptors are closed", || server.descriptors() <= before + 4);
}

#[test]
#[ignore = "timing"]
#[serial]
fn slow_readers_that_take_all_descriptors_are_disconnected_and_others_served_on_epoll() {
    slow_readers_take_all_descriptors("epoll");
}

#[test]
#[ignore = "timing"]
#[serial]
fn slow_readers_that_take_all_descriptors_are_disconnected_and_others_served_on_uring() {
    slow_readers_take_all_descriptors("auto");
}
