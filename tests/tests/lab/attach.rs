//! `lab attach`: a server of another project, as it runs and attached to.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use serial_test::serial;
use tests::memcached::wait_until;
use tests::{isolated, program};

use super::reports::{array, run};

fn attach(arguments: &[&str]) -> Output {
    run(&[&["attach"], arguments].concat())
}

/// Measures a server at a rate that an unoptimized fleet can keep, and checks what was attached.
fn is_measured(name: &str, arguments: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let load = ["--rates", "500", "--rounds", "1", "--poll-interval", "1000", "--format", "json"];
    let output = attach(&[&load[..], &["--output", folder.path().to_str().unwrap()], arguments].concat());
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{errors}"));
    let attached = format!("{name}, attached, 1000 µs");
    // Empty where the machine disturbed the round.
    let loads = array(&report["results"]["loads"]);
    for (load, row) in loads.iter().flat_map(|load| array(&load["rows"]).iter().map(move |row| (load, row))) {
        let mut others = array(&load["rows"]).iter();
        let has_reference = others.any(|row| row["contender"] == name && row["turns"] != 0);
        let is_attached = row["contender"] == attached;
        assert!(is_attached || row["contender"] == name, "{row}");
        // A server of which no turn was valid has none.
        if row["turns"] != 0 {
            assert_eq!(row["figures"]["attach-cpu"].is_object(), is_attached, "{row}");
            assert_eq!(row["queue"].is_string(), is_attached, "{row}");
            // By index: the server as it runs is the first.
            let reference = if has_reference { Value::from(0) } else { Value::Null };
            assert_eq!(row["figures"]["p50"]["reference"], reference, "{row}");
        }
    }
    // Turns that don't count show what was attached, too.
    let load = &report["results"]["measurements"][0];
    let turns = array(&load["turns"]).iter().filter(|turn| turn["contender"] == 1);
    let attached: Vec<&Value> = turns.map(|turn| &turn["detail"]["attach"]).collect();
    assert!(!attached.is_empty(), "{load}");
    for turn in attached {
        assert_eq!(turn["instances"], 1, "{load}");
    }
}

#[test]
#[isolated(root)]
#[serial]
fn memcached_is_measured_as_it_runs_and_attached() {
    if tests::require("/usr/bin/memcached", Path::new("/usr/bin/memcached").exists().then_some(())).is_none()
    {
        return;
    }
    is_measured("memcached", &["--memcached", "/usr/bin/memcached"]);
}

#[test]
#[isolated(root)]
#[serial]
fn another_server_is_measured_with_a_request_of_its_protocol() {
    if program("redis-server").is_none() {
        return;
    }
    let redis = "redis-server --bind {address} --port {port} --save '' --protected-mode no";
    is_measured("redis-server", &["--server", redis, "--request", r"PING\r\n"]);
}

#[test]
fn a_memcached_that_is_not_installed_is_an_error_that_says_what_to_do() {
    let output = attach(&["--memcached", "/nonesuch/memcached"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    for expected in ["/nonesuch/memcached is not installed", "apt-get install memcached", "--server"] {
        assert!(errors.contains(expected), "no {expected:?} in {errors}");
    }
}

/// Echoes with a thread for each connection, which blocks in reads.
const BLOCKING: &str = "python3 -c 'import socketserver as s
class Echo(s.BaseRequestHandler):
    def handle(self):
        for data in iter(lambda: self.request.recv(99), b\"\"):
            self.request.sendall(data)
s.ThreadingTCPServer.daemon_threads = True
s.ThreadingTCPServer((\"{address}\", {port}), Echo).serve_forever()'";

#[test]
#[isolated(root)]
#[serial]
fn a_server_that_can_not_be_attached_to_is_refused_with_the_reason() {
    if program("python3").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let report = ["--output", folder.path().to_str().unwrap()];
    let blocking = ["--quick", "--connections", "2", "--server", BLOCKING, "--request", "echo"];
    let output = attach(&[&report[..], &blocking].concat());
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{output:?}");
    for expected in ["can't be attached to", "poll or select", "epoll"] {
        assert!(errors.contains(expected), "no {expected:?} in {errors}");
    }
}

const NGINX: &str = "daemon off; user root; worker_processes 1; pid FOLDER/pid; error_log FOLDER/log;
events {} http { access_log off; server { listen 198.18.0.1:11211; root FOLDER; } }";

#[test]
#[isolated(root)]
#[serial]
fn a_server_and_its_children_end_with_a_lab_that_is_killed() {
    let nginx = Path::new("/usr/sbin/nginx");
    if tests::require("/usr/sbin/nginx", nginx.exists().then_some(())).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let config = folder.path().join("nginx.conf");
    fs::write(&config, NGINX.replace("FOLDER", path)).unwrap();
    let server = format!("/usr/sbin/nginx -c {} -e {path}/log", config.display());
    let request = r"GET /nonesuch HTTP/1.1\r\nHost: lab\r\n\r\n";
    let mut lab = Command::new(tests::own_program("lab"));
    lab.args([
        "attach",
        "--anyway",
        "--quick",
        "--connections",
        "2",
        "--server",
        &server,
        "--request",
        request,
    ]);
    let mut lab = lab.current_dir(folder.path()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let children = || -> Option<(u32, Vec<u32>)> {
        let master = fs::read_to_string(folder.path().join("pid")).ok()?.trim().parse().ok()?;
        let children = fs::read_to_string(format!("/proc/{master}/task/{master}/children")).ok()?;
        let children: Vec<u32> = children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
        (!children.is_empty()).then_some((master, children))
    };
    let mut processes = Vec::new();
    wait_until("nginx has a worker", || {
        let found = children();
        processes =
            found.into_iter().flat_map(|(master, children)| [vec![master], children].concat()).collect();
        !processes.is_empty()
    });
    lab.kill().unwrap();
    lab.wait().unwrap();
    wait_until("nginx has ended", || {
        processes.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists())
    });
}
