//! Operations and their results: hits, errors, wrong values, broken connections.

use std::time::Duration;

use loadgen::{Address, Config, Protocol, Workload};
use serial_test::serial;
use tests::fake_server::FakeServer;
use tests::load::{config, load_and_run, loadgen, run};
use tests::memcached::Memcached;

#[test]
#[serial]
fn error_responses_are_counted_and_do_not_stop_the_run() {
    let server = FakeServer::answering(|line| match line.text {
        line if line.starts_with("get") => b"SERVER_ERROR out of order\r\n".to_vec(),
        line if line.starts_with("set") => Vec::new(),
        _ => b"SERVER_ERROR object too large for cache\r\n".to_vec(),
    })
    .address;
    let workload = Workload { mix: "get=1,set=1".parse().unwrap(), ..Workload::default() };
    let report = run(&Config { workload, depth: 4, ..config(server) });
    assert!(report.requests > 0, "{}", report.table());
    // Errors that arrive after the end of the run are counted, too, and are few.
    let (requests, errors) = (report.requests, report.errors);
    assert!(errors >= requests && errors - requests <= requests / 10 + 16, "{}", report.table());
    assert!(report.has_failures());
}

#[test]
#[serial]
fn a_response_that_does_not_match_its_request_ends_the_run_with_a_reason() {
    let server = FakeServer::answering(|_| b"STORED\r\n".to_vec()).address;
    let runtime = runtime::Builder::new().ignore_environment().workers(1).build().unwrap();
    let error = runtime.block_on(loadgen::run(&config(server))).unwrap_err().to_string();
    assert!(error.contains("out of step"), "{error}");
}

#[test]
#[serial]
fn wrong_values_are_counted_and_right_ones_are_not() {
    let workload = Workload { verify: true, records: 100, ..Workload::default() };
    // Another key's value, and a corrupted one.
    for broken in
        ["VALUE 000000000000000000000000000007 0 3\r\n000\r\nEND\r\n", "VALUE KEY 0 2\r\nxx\r\nEND\r\n"]
    {
        let server = FakeServer::answering(move |line| {
            broken.replace("KEY", line.text.strip_prefix("get ").unwrap()).into_bytes()
        })
        .address;
        let report = run(&Config { workload: workload.clone(), ..config(server) });
        assert!(report.hits > 0 && report.wrong >= report.hits * 9 / 10, "{}", report.table());
    }
}

#[test]
#[serial]
fn every_operation_runs_in_either_protocol_and_is_verified() {
    for (protocol, mix) in [
        (Protocol::Text, "get=4,set=2,add=1,replace=1,delete=1,touch=1,cas=2,incr=1,decr=1,mg=2,ms=2"),
        (Protocol::Binary, "get=4,set=2,add=1,replace=1,delete=1,touch=1,cas=2,incr=1,decr=1"),
    ] {
        let server = Memcached::start(&["-m", "64"]);
        let workload = Workload {
            mix: mix.parse().unwrap(),
            value: "fb_value".parse().unwrap(),
            key: "fb_key".parse().unwrap(),
            records: 500,
            popularity: "zipf:0.99".parse().unwrap(),
            multiget: 5,
            ttl: Duration::from_secs(60),
            verify: true,
            ..Workload::default()
        };
        let config = Config { workload, protocol, connections: 8, depth: 8, ..config(server.address) };
        let report = load_and_run(&config, 2).unwrap();
        assert_eq!((report.errors, report.wrong, report.unanswered), (0, 0, 0), "{}", report.table());
        // Sixteen connections store the same records, so that some CAS numbers are stale; deletes
        // make misses.
        assert!(report.hits > 0 && report.misses > 0 && report.conflicts > 0, "{}", report.table());
        for summary in [&report.read, &report.update, &report.other] {
            assert!(summary.count > 0, "{}", report.table());
        }
    }
}

#[test]
#[serial]
fn several_servers_and_unix_sockets_share_the_load() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let mut unix: tests::KillOnDrop =
        tests::memcached::command().arg("-s").arg(&path).spawn().unwrap().into();
    tests::memcached::wait_until("the server listens", || {
        std::os::unix::net::UnixStream::connect(&path).is_ok()
    });
    let tcp = Memcached::start(&[]);
    for round_robin in [false, true] {
        let config = Config {
            servers: vec![Address::Tcp(tcp.address), Address::Unix(path.clone())],
            round_robin,
            connections: 2,
            ..config(tcp.address)
        };
        let before = tcp.stat("cmd_get");
        let report = load_and_run(&config, 2).unwrap();
        assert_eq!((report.misses, report.errors), (0, 0), "{}", report.table());
        let gets = tcp.stat("cmd_get") - before;
        assert!(gets > 0 && gets < report.hits, "{gets} of {}", report.hits);
    }
    unix.kill().unwrap();
    unix.wait().unwrap();
}

#[test]
#[serial]
fn servers_that_close_all_connections_end_the_run_on_all_threads_with_a_reason() {
    let closing = || FakeServer::closing_after(Duration::from_millis(300)).address.to_string();
    let servers = [closing(), closing()];
    for pacing in [&[][..], &["-q", "500"]] {
        let [first, second] = &servers;
        let mut command = loadgen(&["-s", first, "-s", second, "-R", "-T", "2", "--noload", "-t", "60"]);
        let output = command.args(pacing).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        let named = |server: &String| error.contains(&format!("the last one to {server}"));
        assert!(error.contains("all connections broke") && servers.iter().any(named), "{error}");
    }
}
