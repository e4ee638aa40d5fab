//! RESP, against redis.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use loadgen::{Address, Config, Protocol, Workload};
use tests::load::{config, load_and_run};
use tests::{KillOnDrop, program};

#[test]
fn redis_counts_the_gets_and_sets_that_are_reported() {
    let Some(redis) = program("redis-server") else { return };
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("redis");
    let mut command = Command::new(redis);
    command.args(["--port", "0", "--save", "", "--unixsocket"]).arg(&socket).stdout(Stdio::null());
    let _redis = KillOnDrop::from(command.spawn().unwrap());
    let stream = (0..500).find_map(|_| {
        std::thread::sleep(Duration::from_millis(10));
        UnixStream::connect(&socket).ok()
    });
    let mut stream = stream.expect("redis listens");
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
    let report = load_and_run(&load, 1).unwrap();
    assert!(report.requests > 100 && !report.has_failures(), "{}", report.table());
    assert_eq!((report.misses, report.hits), (0, report.read.count), "{}", report.table());
    assert_eq!(ask("DBSIZE"), ":500\r\n");
    let stats = ask("INFO commandstats");
    let calls = |command: &str| -> u64 {
        let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:calls=")));
        line.and_then(|line| line.split(['=', ',']).nth(1)?.parse().ok()).unwrap_or_else(|| panic!("{stats}"))
    };
    // Some are answered after the end, and belong to no interval.
    for (command, reported) in [("get", report.read.count), ("setex", report.update.count + 500)] {
        let counted = calls(command);
        assert!((reported..=reported + reported / 10).contains(&counted), "{reported} {command}: {stats}");
    }
}
