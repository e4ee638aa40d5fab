//! Networks that lose, repeat, reorder and reset, and clients that vanish in them.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lab::testbed::Testbed;
use serial_test::serial;
use tests::KillOnDrop;
use tests::isolated;
use tests::load::loadgen;
use tests::memcached::{Memcached, expect, free_port, set_request, wait_until};
use tests::testbed::enter;

use super::tunnel::{SERVER, Tunnel};

/// Makes the tunnel, and a server behind it. The kernel gives clients up soon.
fn start() -> Option<(Testbed, Tunnel, Memcached)> {
    tests::require("/dev/net/tun", std::fs::metadata("/dev/net/tun").ok())?;
    tests::program("ip")?;
    let testbed = enter(1);
    for (name, value) in [("tcp_keepalive_intvl", "1"), ("tcp_keepalive_probes", "2"), ("tcp_retries2", "3")]
    {
        std::fs::write(format!("/proc/sys/net/ipv4/{name}"), value).unwrap();
    }
    let tunnel = Tunnel::between(&testbed.server, &testbed.client).unwrap();
    let port = free_port();
    let mut server =
        Memcached::start_on(port, &["-l", "127.0.0.1", "-l", SERVER, "--keepalive", "1", "-c", "4096"]);
    server.address.set_port(port);
    Some((testbed, tunnel, server))
}

/// A load that checks each value. It runs in the client's namespace.
fn load(testbed: &Testbed, server: &Memcached, seconds: &str) -> KillOnDrop {
    let address = format!("{SERVER}:{}", server.address.port());
    let mut command =
        loadgen(&["-s", &address, "-c", "16", "-d", "4", "-r", "500", "-u", "0.3", "-V", "3000"]);
    command.args(["-w", "0", "-t", seconds, "--verify", "--churn", "0.5", "--format", "json"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    testbed.client.run(|| command.spawn()).unwrap().into()
}

fn report(load: KillOnDrop) -> serde_json::Value {
    let output = load.wait_with_output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

fn all_are_gone(server: &Memcached) {
    let start = Instant::now();
    wait_until("no connection is counted but the one that asks", || server.stat("curr_connections") <= 1);
    println!("all connections were gone after {:?}", start.elapsed());
    assert_eq!(
        server.talk(b"set last 0 0 1\r\nx\r\nget last\r\n"),
        b"STORED\r\nVALUE last 0 1\r\nx\r\nEND\r\n"
    );
}

#[test]
#[isolated(root)]
#[serial]
fn values_are_right_over_a_network_that_loses_repeats_and_reorders() {
    let Some((testbed, tunnel, server)) = start() else { return };
    tunnel.impairment.lost.store(20, Ordering::Relaxed);
    tunnel.impairment.repeated.store(20, Ordering::Relaxed);
    tunnel.impairment.delayed.store(100, Ordering::Relaxed);
    let report = report(load(&testbed, &server, "4"));
    let counts = tunnel.impairment.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
    println!("{} requests; packets lost, repeated, delayed, reset: {counts:?}", report["requests"]);
    assert!(counts[..3].iter().all(|count| *count > 0), "{counts:?}");
    assert_eq!((&report["wrong"], &report["errors"]), (&0.into(), &0.into()), "{report}");
    assert!(report["requests"].as_u64().unwrap() > 0, "{report}");
    all_are_gone(&server);
}

fn value_of(key: u32, version: u64) -> String {
    format!("{key}:{version}:").repeat(300)
}

/// Sets and gets a key until a moment, on a new connection after each reset. What is found must be the value that was
/// stored last, or one whose response was lost. Returns how many values were found.
fn set_and_get(address: SocketAddr, key: u32, over: Instant) -> u64 {
    let (mut sent, mut stored, mut found) = (0, 0, 0);
    while Instant::now() < over {
        // A reset may meet any request, and ends its connection.
        let connection = || -> std::io::Result<()> {
            let mut stream = BufReader::new(TcpStream::connect_timeout(&address, Duration::from_secs(5))?);
            stream.get_ref().set_read_timeout(Some(Duration::from_secs(5)))?;
            while Instant::now() < over {
                sent += 1;
                let value = value_of(key, sent);
                let mut line = String::new();
                stream
                    .get_mut()
                    .write_all(format!("set {key} 0 0 {}\r\n{value}\r\n", value.len()).as_bytes())?;
                stream.read_line(&mut line)?;
                if line == "STORED\r\n" {
                    stored = sent;
                }
                line.clear();
                stream.get_mut().write_all(format!("get {key}\r\n").as_bytes())?;
                let mut lines = Vec::new();
                while stream.read_line(&mut line)? > 0 && !line.ends_with("END\r\n") {
                    lines.push(std::mem::take(&mut line));
                }
                if let ([_, value], "END\r\n") = (&lines[..], &*line) {
                    let allowed = (stored..=sent).any(|version| value.trim_end() == value_of(key, version));
                    assert!(
                        allowed,
                        "key {key}: versions {stored} to {sent} were stored, and this was found: {value}"
                    );
                    found += 1;
                }
            }
            Ok(())
        }();
        drop(connection);
    }
    found
}

#[test]
#[isolated(root)]
#[serial]
fn resets_in_the_middle_of_requests_leave_no_wrong_value_and_no_connection() {
    let Some((testbed, tunnel, server)) = start() else { return };
    let address = SocketAddr::new(SERVER.parse().unwrap(), server.address.port());
    tunnel.impairment.reset.store(20, Ordering::Relaxed);
    let requests: u64 = std::thread::scope(|scope| {
        let (testbed, over) = (&testbed, Instant::now() + Duration::from_secs(3));
        let client = move |key| testbed.client.run(|| Ok(set_and_get(address, key, over))).unwrap();
        let clients: Vec<_> = (0..8).map(|key| scope.spawn(move || client(key))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    let resets = tunnel.impairment.counts[3].load(Ordering::Relaxed);
    println!("{requests} requests, {resets} resets");
    assert!(resets > 0 && requests > 0, "{requests} requests, {resets} resets");
    tunnel.impairment.reset.store(0, Ordering::Relaxed);
    all_are_gone(&server);
}

#[test]
#[isolated(root)]
#[serial]
fn clients_that_vanish_without_a_word_do_not_count_as_connections_for_long() {
    let Some((testbed, tunnel, server)) = start() else { return };
    let large = set_request("large", 1_000_000);
    assert_eq!(server.talk(&large), b"STORED\r\n");
    let address = (SERVER, server.address.port());
    let connect = || testbed.client.run(|| TcpStream::connect(address)).unwrap();
    // Silent ones, half-sent values, and replies that are not read.
    let mut silent: Vec<TcpStream> = (0..300).map(|_| connect()).collect();
    for (index, stream) in silent.iter_mut().enumerate() {
        let request = [&b"mn\r\n"[..], b"mn\r\nset half 0 0 5000\r\nha", b"mn\r\nget large\r\nget large\r\n"];
        stream.write_all(request[index % 3]).unwrap();
        expect(stream, b"MN\r\n").unwrap();
    }
    let mut load = load(&testbed, &server, "60");
    wait_until("the load is connected", || server.stat("curr_connections") > 310);
    std::thread::sleep(Duration::from_secs(1));
    tunnel.impairment.lost.store(1000, Ordering::Relaxed);
    // Their last packets are lost, too.
    load.kill().unwrap();
    drop(silent);
    all_are_gone(&server);
    // And the network comes back.
    tunnel.impairment.lost.store(0, Ordering::Relaxed);
    let mut stream = connect();
    stream.write_all(b"mn\r\n").unwrap();
    expect(&mut stream, b"MN\r\n").unwrap();
}
