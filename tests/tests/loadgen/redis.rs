//! RESP, against redis.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use loadgen::{Address, Config, Protocol, Workload};
use serial_test::serial;
use tests::fake_server::FakeServer;
use tests::load::{config, load_and_run, run};
use tests::memcached::wait_until;
use tests::{KillOnDrop, program};

#[test]
fn redis_counts_the_gets_and_sets_that_are_reported() {
    let Some(redis) = program("redis-server") else { return };
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("redis");
    let mut command = Command::new(redis);
    command.args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket).stdout(Stdio::null());
    let _redis = KillOnDrop::from(command.spawn().unwrap());
    let mut stream = None;
    wait_until("redis listens", || {
        stream = UnixStream::connect(&socket).ok();
        stream.is_some()
    });
    let mut stream = stream.unwrap();
    let mut ask = |request: &str| {
        stream.write_all(format!("{request}\r\n").as_bytes()).unwrap();
        let mut answer = vec![0; 64 << 10];
        let length = stream.read(&mut answer).unwrap();
        String::from_utf8_lossy(&answer[..length]).into_owned()
    };

    let workload = Workload {
        records: 500,
        mix: "get=9,set=1".parse().unwrap(),
        ttl: Duration::from_secs(1000),
        ..Workload::default()
    };
    let server: Address = socket.to_str().unwrap().parse().unwrap();
    let load = Config { protocol: Protocol::Resp, connections: 4, depth: 4, workload, ..config(server) };
    let in_flight = (load.connections * load.depth) as u64;
    let report = load_and_run(&load, 1).unwrap();
    assert!(report.requests > 100 && !report.has_failures(), "{}", report.table());
    assert_eq!((report.misses, report.hits), (0, report.read.count), "{}", report.table());
    assert_eq!(ask("DBSIZE"), ":500\r\n");
    let stats = ask("INFO commandstats");
    let calls = |command: &str| -> u64 {
        let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:calls=")));
        line.and_then(|line| line.split(['=', ',']).nth(1)?.parse().ok()).unwrap_or_else(|| panic!("{stats}"))
    };
    // Those in flight at the end are answered after it, and belong to no interval.
    for (command, reported) in [("get", report.read.count), ("setex", report.update.count + 500)] {
        let counted = calls(command);
        assert!((reported..=reported + in_flight).contains(&counted), "{reported} {command}: {stats}");
    }
}

/// A server whose time for each answer is known: of ten one takes 12 ms, the others 4.
#[test]
#[ignore = "timing"]
#[serial]
fn rate_and_percentiles_are_those_that_redis_benchmark_finds() {
    const CONNECTIONS: usize = 8;
    let Some(benchmark) = program("redis-benchmark") else { return };
    // A GET has five lines, of which the last is the key. redis-benchmark asks for settings first,
    // which this server doesn't have.
    let server = FakeServer::answering(|line| match line.text {
        "save" | "appendonly" => b"-ERR\r\n".to_vec(),
        text if line.index % 5 == 4 && !["CONFIG", "GET"].contains(&text) => {
            let is_slow = line.index / 5 % 10 == 9;
            std::thread::sleep(Duration::from_millis(if is_slow { 12 } else { 4 }));
            b"$3\r\nabc\r\n".to_vec()
        }
        _ => Vec::new(),
    });
    let address = server.address;
    let workload = Workload { records: 100, mix: "get=1".parse().unwrap(), ..Workload::default() };
    let load = Config {
        protocol: Protocol::Resp,
        connections: CONNECTIONS,
        duration: Duration::from_secs(2),
        workload,
        ..config(address)
    };
    let ours = run(&load);
    let output = Command::new(benchmark)
        .args(["-h", "127.0.0.1", "-p", &address.port().to_string(), "-c", &CONNECTIONS.to_string()])
        .args(["-t", "get", "-n", "3000", "--csv", "--precision", "3"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // "test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"
    let line = text.lines().find(|line| line.starts_with("\"GET\"")).unwrap_or_else(|| panic!("{output:?}"));
    let theirs: Vec<f64> = line.split(',').filter_map(|it| it.trim_matches('"').parse().ok()).collect();
    let latency = &ours.latency;
    let ours = [ours.qps, latency.avg / 1e3, latency.p50 / 1e3, latency.p95 / 1e3];
    let theirs = [theirs[0], theirs[1], theirs[3], theirs[4]];
    for [rate, mean, p50, p95] in [ours, theirs] {
        // Little's law: each connection always has one request in flight.
        assert!((rate * mean / 1e3 / CONNECTIONS as f64 - 1.0).abs() < 0.05, "{ours:?} {theirs:?}");
        assert!(p50 >= 4.0 && p95 >= 12.0, "{ours:?} {theirs:?}");
    }
    assert!(
        std::iter::zip(ours, theirs).all(|(ours, theirs)| (ours / theirs - 1.0).abs() < 0.15),
        "{ours:?} {theirs:?}"
    );
}
