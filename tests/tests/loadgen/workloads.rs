//! Workloads: think times, records, traces and recorded times.

use std::fs;
use std::time::Duration;
use std::time::Instant;

use loadgen::{Config, Loop, Workload};
use serial_test::serial;
use tests::fake_server::FakeServer;
use tests::load::{config, load_and_run, loadgen, run};
use tests::memcached::Memcached;

#[test]
#[ignore = "timing"]
#[serial]
fn think_time_delays_requests_and_is_not_latency() {
    let server = Memcached::start(&[]);
    let think = Some("fixed:20000".parse().unwrap());
    let report =
        load_and_run(&Config { connections: 2, depth: 2, think, ..config(server.address) }, 1).unwrap();
    // Also while connections are replaced: four requests are outstanding.
    let churn = Config { connections: 2, depth: 2, think, churn: 20.0, ..config(server.address) };
    let renewed = run(&churn);
    assert!(renewed.requests >= 20 && renewed.connect.unwrap().count >= 10, "{}", renewed.table());
    // Four at a time, each at most every 20 ms.
    assert!((40..=104).contains(&report.requests), "{}", report.table());
    assert!(report.latency.p50 < 10_000.0, "think time is not latency:\n{}", report.table());
}

#[test]
#[serial]
fn misses_of_a_small_cache_are_filled_and_the_hit_ratio_is_reported() {
    let server = Memcached::start(&["-m", "8"]);
    let config = Config {
        connections: 4,
        depth: 8,
        workload: Workload {
            records: 20_000,
            value: loadgen::Distribution::Fixed(2000.0),
            popularity: "zipf:0.99".parse().unwrap(),
            fill: true,
            verify: true,
            ..Workload::default()
        },
        duration: Duration::from_secs(1),
        ..config(server.address)
    };
    let report = load_and_run(&config, 1).unwrap();
    let ratio = report.hits as f64 / (report.hits + report.misses) as f64;
    // A fifth of the records fits; popular ones are requested most.
    assert!((0.05..0.95).contains(&ratio), "{ratio}\n{}", report.table());
    assert!(report.fills > 0 && report.fills.abs_diff(report.misses) <= 200, "{}", report.table());
    assert!(report.table().contains("Hit ratio") && !report.has_failures(), "{}", report.table());
}

#[test]
#[ignore = "timing"]
#[serial]
fn a_recording_is_replayed_at_its_times_and_the_run_ends_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let times: Vec<f64> = (0..100).map(|step| 5.0 + f64::from(step * step) / 10_000.0).collect();
    let path = folder.path().join("times");
    fs::write(&path, times.iter().map(|time| format!("{time}\n")).collect::<String>()).unwrap();
    let server = FakeServer::recording();
    let pacing = Loop::Recorded { times: Some(path), speed: 2.0 };
    let start = Instant::now();
    let report =
        run(&Config { pacing, connections: 4, duration: Duration::from_secs(30), ..config(server.address) });
    assert!(start.elapsed() < Duration::from_secs(5), "it ends with the recording");
    assert_eq!(report.latency.count, 100, "{}", report.table());
    let lines = server.lines();
    let mut off: Vec<Duration> = lines
        .iter()
        .zip(&times)
        .map(|((_, at), time)| (*at - lines[0].1).abs_diff(Duration::from_secs_f64((time - 5.0) / 2.0)))
        .collect();
    off.sort_unstable();
    assert!(off[50] < Duration::from_millis(5), "{off:?}");
}

#[test]
#[serial]
fn a_trace_is_replayed_as_it_was_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.csv");
    let lines: String = (0..300)
        .map(|line| {
            let operation = ["set", "get", "delete", "add", "gets", "incr"][line % 6];
            format!("{},key{},10,{},1,{operation},0\n", 100 + line / 100, line / 6 % 20, 10 + line)
        })
        .collect();
    fs::write(&path, lines).unwrap();
    let server = Memcached::start(&[]);
    let workload = Workload { trace: Some(path.clone()), ..Workload::default() };
    let closed =
        Config { workload, connections: 1, duration: Duration::from_secs(30), ..config(server.address) };
    // At depth 1 on one connection, in its order: each get but those of deleted keys is a hit.
    let report = run(&closed);
    assert_eq!(report.read.count + report.update.count + report.other.count, 300, "{}", report.table());
    assert_eq!((report.read.count, report.update.count, report.errors), (100, 100, 0), "{}", report.table());
    assert_eq!((report.hits, report.misses), (100 + 50 + 50, 0), "{}", report.table());
    // Three seconds of it, four times as fast, on three connections that have keys in common.
    let start = Instant::now();
    let pacing = Loop::Recorded { times: None, speed: 4.0 };
    let report = run(&Config { pacing, connections: 3, depth: 4, ..closed.clone() });
    assert_eq!(report.read.count + report.update.count + report.other.count, 300, "{}", report.table());
    assert!(start.elapsed().as_millis() >= 600, "{:?}", start.elapsed());
    fs::write(&path, "1,k,1,1,1,get,0\nwhat is this\n").unwrap();
    let mut runtime = runtime::Builder::new().ignore_environment().workers(1).build().unwrap();
    let error = runtime.block_on(loadgen::run(&closed)).unwrap_err().to_string();
    assert!(error.contains("trace.csv, line 2"), "{error}");
}

#[test]
#[serial]
fn storing_records_takes_no_memory_for_each_of_them() {
    let server = Memcached::start(&["-m", "16"]);
    let peak = |records: &str| {
        let server = server.address.to_string();
        let mut child = loadgen(&["-s", &server, "--loadonly", "-V", "10", "-r", records]).spawn().unwrap();
        let path = format!("/proc/{}/status", child.id());
        let mut peak = 0;
        while child.try_wait().unwrap().is_none() {
            let status = fs::read_to_string(&path).unwrap_or_default();
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let now = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
            peak = now.unwrap_or(0).max(peak);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(child.wait().unwrap().success());
        peak
    };
    let (few, many) = (peak("20000"), peak("400000"));
    // One bit for each additional record would be 48 KiB.
    assert!(few > 1000 && many < few + 1024, "{few} KiB for few, {many} KiB for many");
}
