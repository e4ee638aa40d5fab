//! The `loadgen` command: exit codes, output formats, searches.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use serial_test::serial;
use tests::fake_server::{FakeServer, MISS};
use tests::load::loadgen;
use tests::memcached::Memcached;

#[test]
#[ignore = "timing"]
#[serial]
fn a_late_generator_reports_an_invalid_run_and_exits_with_its_code() {
    let server = FakeServer::missing().address.to_string();
    let arguments = ["-s", &server, "--noload", "-q", "1000", "-t", "2", "-w", "0", "-d", "1000"];
    let child = loadgen(&arguments).stdout(Stdio::piped()).spawn().unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    let signal = |signal| rustix::process::kill_process(pid, signal).unwrap();
    // As if another process had its core.
    std::thread::sleep(Duration::from_millis(700));
    signal(rustix::process::Signal::STOP);
    std::thread::sleep(Duration::from_millis(600));
    signal(rustix::process::Signal::CONT);
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("INVALID: the generator itself was late"), "{text}");
}

#[test]
#[serial]
fn failed_requests_and_failed_connects_have_exit_codes_and_b_a_warning() {
    let server = FakeServer::answering(|_| b"ERROR\r\n".to_vec()).address.to_string();
    let output = loadgen(&["-s", &server, "--noload", "-t", "1", "-w", "0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let nobody = loadgen(&["-s", "127.0.0.1:1", "-t", "1", "-B"]).output().unwrap();
    assert_eq!(nobody.status.code(), Some(1), "{nobody:?}");
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("-B has no effect"), "{nobody:?}");
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("cannot connect to 127.0.0.1:1"), "{nobody:?}");
    assert_eq!(loadgen(&["--mix", "x"]).output().unwrap().status.code(), Some(2));
}

#[test]
#[serial]
fn the_output_has_the_lines_of_mutilate() {
    let server = Memcached::start(&[]);
    let address = server.address.to_string();
    let output = loadgen(&["-s", &address, "-t", "0.5", "-w", "0", "-u", "0.2", "-c", "4"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let words = |start: &str| -> Vec<String> {
        let line =
            text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start}: {text}"));
        line.split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(words("#type")[1..9], ["avg", "std", "min", "5th", "10th", "90th", "95th", "99th"]);
    for row in ["read", "update", "op_q"] {
        let figures: Vec<f64> = words(row)[1..].iter().map(|figure| figure.parse().unwrap()).collect();
        assert_eq!(figures.len(), 11, "{text}");
        assert!(figures[2..8].is_sorted() && figures[0] > 0.0, "{row}: {text}");
    }
    let total = words("Total QPS");
    let qps: f64 = total[3].parse().unwrap();
    let count: f64 = total[4].trim_start_matches('(').parse().unwrap();
    let seconds: f64 = total[6].trim_end_matches("s)").parse().unwrap();
    assert!((qps * seconds / count - 1.0).abs() < 0.1, "{text}");
    assert_eq!(words("Misses")[..3], ["Misses", "=", "0"]);
    assert_eq!(words("Skipped")[..4], ["Skipped", "TXs", "=", "0"]);
    for direction in ["RX", "TX"] {
        assert_eq!(words(direction)[2..4], ["bytes", ":"]);
    }
}

#[test]
#[ignore = "timing"]
#[serial]
fn a_search_finds_the_rate_at_which_a_server_of_known_speed_is_too_slow() {
    // One response in half a millisecond: at most two thousand per second, whatever the machine,
    // and enough in a second to judge a quarter of that.
    let server = FakeServer::answering(|_| {
        std::thread::sleep(Duration::from_micros(500));
        MISS.to_vec()
    })
    .address;
    let address = server.to_string();
    let arguments = ["-s", &address, "--noload", "-t", "1", "-i", "fixed", "--search", "90:20000"];
    let search = || loadgen(&[&arguments[..], &["--format", "json"]].concat()).output().unwrap();
    // Where the machine pauses in each run at a rate, that rate counts as too high.
    let output = (0..5).map(|_| search()).find(|output| output.status.code() == Some(0));
    let output = output.expect("one of five searches finds a rate");
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let (rate, peak) = (found["rate"].as_f64().unwrap(), found["peak"].as_f64().unwrap());
    assert!((500.0..=2000.0).contains(&peak), "{found}");
    assert!((peak * 0.2..=peak).contains(&rate), "{found}");
    let verdict =
        |verdict: &str| found["tried"].as_array().unwrap().iter().any(|it| it["verdict"] == verdict);
    // By the mean of the runs, where they differ.
    assert!(verdict("below") || verdict("below-by-mean"), "{found}");
    // No rate keeps a bound below the time of one response; at low rates there are too few requests
    // to judge.
    let arguments = ["-s", &address, "--noload", "-t", "1", "--search", "90:300", "--format", "json"];
    let output = loadgen(&arguments).output().unwrap();
    // 1 if requests get too few before a rate is judged too slow.
    assert!(matches!(output.status.code(), Some(1 | 5)), "{output:?}");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("too few requests") || stderr.contains("no rate keeps p90"), "{stderr}");
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(found["rate"].is_null() && !found["tried"].as_array().unwrap().is_empty(), "{found}");
}

#[test]
#[serial]
fn a_scan_prints_a_line_for_each_rate() {
    let server = FakeServer::missing().address.to_string();
    let arguments =
        ["-s", &server, "--noload", "-t", "0.4", "-w", "0", "-i", "fixed", "--scan", "200:600:200"];
    let output = loadgen(&arguments).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), 4, "{text}");
    let column = |name: &str| rows[0].iter().position(|cell| *cell == name).unwrap();
    for (row, rate) in rows[1..].iter().zip([200.0, 400.0, 600.0]) {
        assert!(row.len() >= rows[0].len(), "{text}");
        assert_eq!(row[column("target")].parse(), Ok(rate), "{text}");
        assert!(row[column("QPS")].parse::<f64>().unwrap() > 0.0, "{text}");
    }
}

#[test]
#[serial]
fn each_request_is_saved() {
    let server = Memcached::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let samples = folder.path().join("samples").to_str().unwrap().to_owned();
    let address = server.address.to_string();
    let output = loadgen(&["-s", &address, "-q", "500", "-t", "1", "-w", "0", "-i", "fixed", "-r", "10"])
        .args(["--save", &samples, "--format", "json"])
        .output()
        .unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut latencies: Vec<f64> = fs::read_to_string(&samples)
        .unwrap()
        .lines()
        .map(|line| line.split_once(' ').unwrap().1.parse().unwrap())
        .collect();
    latencies.sort_unstable_by(f64::total_cmp);
    assert_eq!(latencies.len() as u64, report["latency"]["count"].as_u64().unwrap());
    let (exact, reported) = (latencies[latencies.len() / 2 - 1], report["latency"]["p50"].as_f64().unwrap());
    assert!((exact / reported - 1.0).abs() < 0.002, "{exact} {reported}");
    let output = loadgen(&["-s", &address, "--save", "/nowhere/x"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("/nowhere/x"), "{text}");
}

#[test]
#[serial]
fn a_server_that_never_answers_while_records_are_stored_is_named() {
    let server = FakeServer::answering(|_| Vec::new()).address.to_string();
    let output = loadgen(&["-s", &server, "-r", "100", "-t", "1"]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains(&format!("{server} has not answered for 10 s")), "{error}");
}
