//! A server that is stopped for a time, as by a hypervisor or a debugger.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
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
#[ignore = "timing"]
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

/// Sends requests one after another, so that the server is often in the middle of a turn.
fn keep_busy(server: &Memcached, end: &AtomicBool) -> u64 {
    let (mut stream, mut requests) = (server.connect(), 0);
    stream.set_read_timeout(Some(PAUSE * 2)).unwrap();
    while !end.load(Ordering::Relaxed) {
        stream.write_all(b"mn\r\n").unwrap();
        expect(&mut stream, b"MN\r\n").unwrap();
        requests += 1;
    }
    requests
}

#[test]
#[ignore = "timing"]
#[parallel]
fn a_client_that_has_sent_something_while_the_server_was_stopped_is_not_idle() {
    let drivers = ["epoll", "uring"];
    let servers = drivers.map(|driver| Memcached::start(&["-o", "idle_timeout=3", "--driver", driver]));
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let busy: Vec<_> = servers.iter().map(|server| scope.spawn(|| keep_busy(server, &end))).collect();
        let mut clients: Vec<Vec<TcpStream>> =
            servers.iter().map(|server| (0..200).map(|_| server.connect()).collect()).collect();
        let mut idle: Vec<TcpStream> = servers.iter().map(Memcached::connect).collect();
        // All are accepted.
        for stream in clients.iter_mut().flatten().chain(&mut idle) {
            stream.write_all(b"mn\r\n").unwrap();
            expect(stream, b"MN\r\n").unwrap();
        }
        servers.iter().for_each(|server| server.signal(Signal::STOP));
        // Just before the end of a stop, and at its start: the server can't tell them apart.
        std::thread::sleep(Duration::from_secs(1));
        clients.iter_mut().flatten().step_by(2).for_each(|stream| stream.write_all(b"mn\r\n").unwrap());
        std::thread::sleep(Duration::from_secs(4));
        clients
            .iter_mut()
            .flatten()
            .skip(1)
            .step_by(2)
            .for_each(|stream| stream.write_all(b"mn\r\n").unwrap());
        servers.iter().for_each(|server| server.signal(Signal::CONT));
        let start = Instant::now();
        for stream in clients.iter_mut().flatten() {
            expect(stream, b"MN\r\n").unwrap();
        }
        let kicked = idle.drain(..).map(|stream| closed_after(stream, start)).max().unwrap();
        println!("an idle client is disconnected {kicked:?} after the stop");
        assert!(kicked < Duration::from_millis(2500), "{kicked:?}");
        // Later than the checks that have found the idle ones.
        std::thread::sleep(Duration::from_millis(2500).saturating_sub(start.elapsed()));
        for (driver, clients) in drivers.iter().zip(&mut clients) {
            let open = clients.iter_mut().filter_map(|stream| {
                stream.write_all(b"mn\r\n").ok()?;
                expect(stream, b"MN\r\n").ok()
            });
            let open = open.count();
            println!("{driver}: {open} of {} stay", clients.len());
            assert_eq!(open, clients.len(), "{driver}: they had sent something");
        }
        end.store(true, Ordering::Relaxed);
        let requests: Vec<u64> = busy.into_iter().map(|thread| thread.join().unwrap()).collect();
        println!("requests meanwhile: {requests:?}");
    });
}
