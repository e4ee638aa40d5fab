//! A server that is stopped for a time, as by a hypervisor or a debugger.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serial_test::parallel;
use tests::memcached::{Memcached, expect};

/// Longer than the time limits below, and than the 10 s for a login.
const PAUSE: Duration = Duration::from_secs(11);

/// Reads until the server closes the connection. Returns when, after `start`.
fn closed_after(mut stream: TcpStream, start: Instant) -> Duration {
    let _ = stream.read_to_end(&mut Vec::new());
    start.elapsed()
}

#[test]
#[parallel]
fn lifetimes_and_time_limits_count_the_time_in_which_the_server_was_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    std::fs::write(&users, "ann:secret\n").unwrap();
    let server = Memcached::start(&["-o", "idle_timeout=8"]);
    let closed = Memcached::start(&["-Y", users.to_str().unwrap()]);
    assert_eq!(
        server.talk(b"set short 0 5 1\r\nx\r\nset long 0 60 1\r\ny\r\nset ever 0 0 1\r\nz\r\n"),
        b"STORED\r\nSTORED\r\nSTORED\r\n"
    );
    let mut idle = server.connect();
    idle.write_all(b"mn\r\n").unwrap();
    expect(&mut idle, b"MN\r\n").unwrap();
    let stranger = closed.connect();
    // It has been accepted.
    std::thread::sleep(Duration::from_millis(200));
    let servers = [&server, &closed];
    servers.iter().for_each(|server| server.signal(Signal::STOP));
    std::thread::sleep(PAUSE);
    let start = Instant::now();
    servers.iter().for_each(|server| server.signal(Signal::CONT));
    let kicked = [closed_after(idle, start), closed_after(stranger, start)];
    println!("disconnected after the pause: idle {:?}, without a login {:?}", kicked[0], kicked[1]);
    // Not a whole time limit again, but soon.
    assert!(kicked.iter().all(|after| *after < Duration::from_secs(3)), "{kicked:?}");
    // The clock is read ten times a second. Until then a value may be found for a moment longer.
    std::thread::sleep(Duration::from_millis(500).saturating_sub(start.elapsed()));
    let alive = b"VALUE long 0 1\r\ny\r\nVALUE ever 0 1\r\nz\r\nEND\r\n";
    assert_eq!(server.talk(b"get short long ever\r\n"), alive, "lifetimes have ended");
}
