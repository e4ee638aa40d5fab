//! The load generator's ways of asking: TLS, users, datagrams, connections made anew, pauses, the kernel's
//! timestamps, traces and recordings.

use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use loadgen::{Config, Credentials, Error, Loop, Protocol, TlsFiles, Workload};
use tests::load::{Noting, alone, config, load_and_run, loadgen, open, run};
use tests::memcached::Memcached;

/// A certificate that signs itself, with its key, for 127.0.0.1.
fn certificate(folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned(), name.to_owned()]).unwrap();
    let (chain, key) = (folder.join(format!("{name}.pem")), folder.join(format!("{name}.key")));
    fs::write(&chain, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    (chain, key)
}

#[test]
fn tls_is_verified_unless_it_is_not_to_be() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let (chain, key) = certificate(folder.path(), "server");
    let (other, other_key) = certificate(folder.path(), "client");
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let options = format!(
        "ssl_chain_cert={},ssl_key={},ssl_ca_cert={},ssl_verify_mode=2",
        text(&chain),
        text(&key),
        text(&other)
    );
    let server = Memcached::start(&["-Z", "-o", &options]);
    let files = |authorities: Option<&PathBuf>| TlsFiles {
        authorities: authorities.cloned(),
        certificate: Some(other.clone()),
        key: Some(other_key.clone()),
        ..TlsFiles::default()
    };
    let with = |tls: TlsFiles| Config {
        tls: Some(tls),
        connections: 4,
        depth: 4,
        workload: Workload { verify: true, records: 200, ..Workload::default() },
        ..config(server.address)
    };
    for good in [
        files(Some(&chain)),
        TlsFiles { name: Some("server".to_owned()), ..files(Some(&chain)) },
        TlsFiles { unverified: true, ..files(None) },
    ] {
        let report = load_and_run(&with(good), 1).unwrap();
        assert!(report.hits > 100 && report.misses == 0 && !report.has_failures(), "{}", report.table());
    }
    for (bad, word) in [
        (files(Some(&other)), "certificate"),
        (TlsFiles { name: Some("somebody".to_owned()), ..files(Some(&chain)) }, "certificate"),
        (files(None), "signs"),
        (files(Some(&folder.path().join("none.pem"))), "none.pem"),
        (files(Some(&key)), "no certificate"),
        (TlsFiles { key: None, ..files(Some(&chain)) }, "its key"),
    ] {
        let error = load_and_run(&with(bad), 1).unwrap_err().to_string();
        assert!(error.contains(word), "{word}: {error}");
    }
}

#[test]
fn users_are_let_in_by_either_protocol_with_the_right_password_only() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    fs::write(&users, "me:secret\n").unwrap();
    for protocol in [Protocol::Text, Protocol::Binary] {
        let port = tests::memcached::free_port();
        let mut command = Command::new(tests::own_program("memcached"));
        command.args(["-p", &port.to_string()]);
        match protocol {
            Protocol::Binary => command.arg("-S").env("MEMCACHED_SASL_PWDB", &users),
            _ => command.arg("-Y").arg(&users),
        };
        let server = Memcached::run(&mut command, port);
        let with = |password: &str| Config {
            protocol,
            credentials: Some(Credentials { user: "me".to_owned(), password: password.to_owned() }),
            workload: Workload { records: 100, ..Workload::default() },
            ..config(server.address)
        };
        let report = load_and_run(&with("secret"), 1).unwrap();
        assert!(report.hits > 100 && !report.has_failures(), "{}", report.table());
        let error = load_and_run(&with("wrong"), 1).unwrap_err();
        assert!(matches!(&error, Error::Refused { user, .. } if user == "me"), "{error}");
    }
}

#[test]
fn gets_go_by_datagrams_also_with_answers_of_several() {
    let _alone = alone();
    let port = tests::memcached::free_port();
    let server = Memcached::start_on(port, &["-U", &port.to_string()]);
    for size in [100.0, 9000.0] {
        let config = Config {
            protocol: Protocol::Udp,
            connections: 4,
            depth: 4,
            workload: Workload {
                verify: true,
                records: 50,
                value: loadgen::Distribution::Fixed(size),
                ..Workload::default()
            },
            ..config(server.address)
        };
        let report = load_and_run(&config, 1).unwrap();
        assert!(report.hits > 100 && report.misses + report.wrong + report.errors == 0, "{}", report.table());
        assert!(report.unanswered * 1000 <= report.requests, "{}", report.table());
    }
}

#[test]
fn datagrams_that_get_lost_are_counted_and_hold_up_nothing() {
    let _alone = alone();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 2000];
        for count in 0.. {
            let Ok((length, from)) = socket.recv_from(&mut buffer) else { break };
            if count % 10 == 9 || length < 8 {
                continue;
            }
            // Twice: the second is nobody's.
            let answer = [&buffer[..2], &[0, 0, 0, 1, 0, 0], b"END\r\n"].concat();
            let _ = socket.send_to(&answer, from).and_then(|_| socket.send_to(&answer, from));
        }
    });
    let pacing = open(1000.0);
    let report =
        run(&Config { protocol: Protocol::Udp, connections: 2, depth: 500, pacing, ..config(address) });
    assert_eq!((report.requests + report.unanswered, report.unanswered), (500, 50), "{}", report.table());
    assert!(report.latency.p50 < 100_000.0 && report.latency.p95 > 900_000.0, "{}", report.table());
}

#[test]
fn connections_are_made_anew_while_nothing_is_lost() {
    let _alone = alone();
    let server = Memcached::start(&[]);
    for pacing in [Loop::Closed, open(5000.0)] {
        let config = Config { connections: 20, churn: 2.0, pacing, ..config(server.address) };
        let report = load_and_run(&config, 1).unwrap();
        // Twice a second each, for half a second.
        let made = report.connect.unwrap().count;
        assert!((15..=20).contains(&made), "{made}");
        assert!(report.requests > 100 && report.misses == 0 && !report.has_failures(), "{}", report.table());
    }
}

#[test]
fn requests_wait_for_as_long_as_one_thinks() {
    let _alone = alone();
    let server = Memcached::start(&[]);
    let think = Some("fixed:20000".parse().unwrap());
    let report =
        load_and_run(&Config { connections: 2, depth: 2, think, ..config(server.address) }, 1).unwrap();
    // Also while its connection is made anew: each has four.
    let churn = Config { connections: 2, depth: 2, think, churn: 20.0, ..config(server.address) };
    let renewed = run(&churn);
    assert!(renewed.requests >= 20 && renewed.connect.unwrap().count >= 10, "{}", renewed.table());
    // Four at once, each at most every 20 ms.
    assert!((40..=104).contains(&report.requests), "{}", report.table());
    assert!(report.latency.p50 < 10_000.0, "thinking is no latency:\n{}", report.table());
}

#[test]
fn the_kernels_timestamps_tell_the_generators_own_delay_from_the_servers() {
    let _alone = alone();
    let server = Memcached::start(&[]);
    let config = Config { kernel_timestamps: true, connections: 4, ..config(server.address) };
    let mut runtime = runtime::Builder::new().ignore_environment().workers(1).build().unwrap();
    let report = runtime.block_on(async {
        loadgen::load_records(&config).await.unwrap();
        // Whoever holds up the generator: answers lie there meanwhile.
        let busy = runtime::spawn(async {
            loop {
                std::thread::sleep(Duration::from_millis(8));
                runtime::sleep(Duration::from_micros(200)).await;
            }
        });
        let report = loadgen::run(&config).await.unwrap();
        busy.abort();
        report
    });
    let (own, wire) = (report.own.unwrap(), report.wire.unwrap());
    assert!(own.count * 10 > report.requests * 9, "{}", report.table());
    // What lay there for up to 8 ms is the generator's own, however long the server took.
    assert!(own.p99 > 5_000.0, "{}", report.table());
    let parts = own.avg + wire.avg;
    assert!((parts / report.latency.avg - 1.0).abs() < 0.05, "{parts}\n{}", report.table());
}

#[test]
fn what_a_small_cache_has_lost_is_filled_in_and_the_hit_ratio_told() {
    let _alone = alone();
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
    // A fifth of the records has room; the popular ones are asked for most.
    assert!((0.3..0.95).contains(&ratio), "{ratio}\n{}", report.table());
    assert!(report.fills > 0 && report.fills.abs_diff(report.misses) <= 200, "{}", report.table());
    assert!(report.table().contains("Hit ratio") && !report.has_failures(), "{}", report.table());
}

#[test]
fn recorded_times_are_kept_and_a_run_ends_with_its_recording() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let times: Vec<f64> = (0..100).map(|step| 5.0 + f64::from(step * step) / 10_000.0).collect();
    let path = folder.path().join("times");
    fs::write(&path, times.iter().map(|time| format!("{time}\n")).collect::<String>()).unwrap();
    let server = Noting::start();
    let pacing = Loop::Recorded { times: Some(path), speed: 2.0 };
    let begun = Instant::now();
    let report =
        run(&Config { pacing, connections: 4, duration: Duration::from_secs(30), ..config(server.address) });
    assert!(begun.elapsed() < Duration::from_secs(5), "it does not wait for nothing");
    assert_eq!(report.requests, 100, "{}", report.table());
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
fn a_trace_is_asked_for_as_it_was_recorded() {
    let _alone = alone();
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
    // At depth 1 by one connection, in its order: each get but those of the deleted ones finds something.
    let report = run(&closed);
    assert_eq!(report.read.count + report.update.count + report.other.count, 300, "{}", report.table());
    assert_eq!((report.read.count, report.update.count, report.errors), (100, 100, 0), "{}", report.table());
    assert_eq!((report.hits, report.misses), (100 + 50 + 50, 0), "{}", report.table());
    // Three seconds of it, four times as fast, by three connections that have keys in common.
    let begun = Instant::now();
    let pacing = Loop::Recorded { times: None, speed: 4.0 };
    let report = run(&Config { pacing, connections: 3, depth: 4, ..closed.clone() });
    assert_eq!(report.read.count + report.update.count + report.other.count, 300, "{}", report.table());
    assert!((600..3000).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
    fs::write(&path, "1,k,1,1,1,get,0\nwhat is this\n").unwrap();
    let mut runtime = runtime::Builder::new().ignore_environment().workers(1).build().unwrap();
    let error = runtime.block_on(loadgen::run(&closed)).unwrap_err().to_string();
    assert!(error.contains("trace.csv, line 2"), "{error}");
}

#[test]
fn a_comparison_tells_which_server_is_slower_and_by_how_much() {
    let _alone = alone();
    let (fast, slow) = (Memcached::start(&[]), Memcached::start(&[]));
    let servers = [fast.address.to_string(), slow.address.to_string()];
    // Twice the values' bytes would tell nothing for sure; a server that is stopped half of the time does.
    let pid = slow.child.id().to_string();
    let over = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&over);
    let stopper = std::thread::spawn(move || {
        let kill = |signal: &str| Command::new("kill").args([signal, &pid]).status().unwrap();
        while !ends.load(Ordering::Relaxed) {
            kill("-STOP");
            std::thread::sleep(Duration::from_millis(40));
            kill("-CONT");
            std::thread::sleep(Duration::from_millis(40));
        }
    });
    let output = loadgen(&["--compare", &servers[0], &servers[1], "--rounds", "4", "-t", "0.4", "-w", "0"])
        .args(["-r", "100", "--format", "json"])
        .output()
        .unwrap();
    over.store(true, Ordering::Relaxed);
    stopper.join().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let compared: serde_json::Value = serde_json::from_str(&text).unwrap();
    let ratio = &compared["servers"][1]["ratio"]["qps"];
    assert_eq!(compared["servers"][0]["turns"].as_array().unwrap().len(), 4, "{text}");
    assert!(ratio["mean"].as_f64().unwrap() < 0.8, "{ratio}");
    assert!(ratio["low"].as_f64().unwrap() < ratio["mean"].as_f64().unwrap(), "{ratio}");
}

#[test]
fn records_are_stored_without_memory_for_each() {
    let _alone = alone();
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
    // A bit for each of them more would be 48 KiB.
    assert!(few > 1000 && many < few + 1024, "{few} KiB for few, {many} KiB for many");
}

#[test]
fn each_request_is_saved_and_a_run_drawn() {
    let _alone = alone();
    let server = Memcached::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (samples, plot) = (file("samples"), file("plot.svg"));
    let address = server.address.to_string();
    let output = loadgen(&["-s", &address, "-q", "500", "-t", "1", "-w", "0", "-i", "fixed", "-r", "10"])
        .args(["--save", &samples, "--plot", &plot, "--format", "json"])
        .output()
        .unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut latencies: Vec<f64> = fs::read_to_string(&samples)
        .unwrap()
        .lines()
        .map(|line| line.split_once(' ').unwrap().1.parse().unwrap())
        .collect();
    latencies.sort_unstable_by(f64::total_cmp);
    assert_eq!(latencies.len() as u64, report["requests"].as_u64().unwrap());
    let (exact, told) = (latencies[latencies.len() / 2 - 1], report["latency"]["p50"].as_f64().unwrap());
    assert!((exact / told - 1.0).abs() < 0.002, "{exact} {told}");
    assert!(fs::read_to_string(&plot).unwrap().contains("</svg>"));
    for (flag, word) in [("--save", "/nowhere/x"), ("--plot", "/nowhere/x"), ("--workload", "/nowhere/x")] {
        let output = loadgen(&["-s", &address, flag, "/nowhere/x"]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(word), "{text}");
    }
}

#[test]
fn a_file_of_a_workload_is_what_its_dump_says_and_the_shell_has_its_completions() {
    let output = loadgen(&["-q", "100", "--mix", "get=1,set=1", "--dump-workload"]).output().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("workload.toml");
    fs::write(&path, &output.stdout).unwrap();
    let path = path.to_str().unwrap();
    let again = loadgen(&["--workload", path, "--dump-workload"]).output().unwrap();
    assert_eq!(output.stdout, again.stdout);
    let other = loadgen(&["--workload", path, "-q", "7", "--dump-workload"]).output().unwrap();
    assert!(String::from_utf8_lossy(&other.stdout).contains("qps = 7\n"));
    for shell in ["bash", "zsh", "fish"] {
        let script = loadgen(&["--completions", shell]).output().unwrap().stdout;
        assert!(String::from_utf8_lossy(&script).contains("kernel-timestamps"), "{shell}");
    }
    let man = loadgen(&["--man"]).output().unwrap().stdout;
    assert!(String::from_utf8_lossy(&man).contains(".SH OPTIONS"));
}
