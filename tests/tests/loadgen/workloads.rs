//! Workloads: think times and records.

use std::fs;
use std::time::Duration;

use loadgen::{Config, Workload};
use serial_test::serial;
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
