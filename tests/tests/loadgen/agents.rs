//! Several load generators: agents, and the coordinator that runs them.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{AsyncReadExt, AsyncWriteExt};
use serial_test::serial;
use tests::KillOnDrop;
use tests::fake_server::FakeServer;
use tests::load::loadgen;
use tests::memcached::{Memcached, free_port, wait_until};

/// What both sides of a connection send first: the protocol and its version.
const GREETING: &[u8] = b"loadgen\0\x04\0\0\0";

struct Agent {
    child: KillOnDrop,
    port: u16,
    stderr: Arc<Mutex<String>>,
}

impl Agent {
    fn start(arguments: &[&str]) -> Self {
        let port = free_port();
        let mut command = loadgen(&["-A", "-p", &port.to_string()]);
        let mut child = command.args(arguments).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = Arc::new(Mutex::new(String::new()));
        let (mut errors, writer) = (child.stderr.take().unwrap(), Arc::clone(&stderr));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = errors.read(&mut buffer) {
                writer.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..length]));
            }
        });
        let agent = Self { child: child.into(), port, stderr };
        agent.wait_for("listens on");
        agent
    }

    fn wait_for(&self, what: &str) {
        wait_until(what, || self.stderr.lock().unwrap().contains(what));
    }

    fn name(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

fn start(command: &mut Command) -> KillOnDrop {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap().into()
}

fn coordinator(server: SocketAddr, agents: &[&Agent], arguments: &[&str]) -> Command {
    let mut command = loadgen(&["-s", &server.to_string(), "-r", "100", "--format", "json"]);
    for agent in agents {
        command.args(["-a", &agent.name()]);
    }
    command.args(arguments);
    command
}

fn report(output: &Output) -> serde_json::Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}{errors}"))
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Two runs of a coordinator and three agents: the requests, and each agent's requests per second.
fn run_three_agents() -> Vec<(u64, Vec<f64>)> {
    let server = Memcached::start(&[]);
    let mut runs = Vec::new();
    let agents = [Agent::start(&[]), Agent::start(&["-T", "2"]), Agent::start(&["-l", "3"])];
    let all: Vec<&Agent> = agents.iter().collect();
    // Twice with the same agents: runs are independent.
    for _ in 0..2 {
        let before = server.stat("cmd_get");
        let output = coordinator(server.address, &all, &["-q", "1400", "-t", "1", "-w", "0", "-c", "2"])
            .output()
            .unwrap();
        // 3 if a busy machine made them late.
        assert!(matches!(output.status.code(), Some(0 | 3)), "{}", errors(&output));
        let report = report(&output);
        let requests = report["latency"]["count"].as_u64().unwrap();
        assert_eq!(requests, server.stat("cmd_get") - before, "each request is in the report once");
        // Replies that came after the end don't count for the rate.
        assert!((1..=requests).contains(&report["requests"].as_u64().unwrap()), "{report}");
        let shares: Vec<f64> =
            report["agents"].as_array().unwrap().iter().map(|agent| agent["qps"].as_f64().unwrap()).collect();
        runs.push((requests, shares));
    }
    runs
}

#[test]
#[serial]
fn three_agents_and_their_coordinator_count_what_the_server_counts() {
    run_three_agents();
}

#[test]
#[ignore = "timing"]
#[serial]
fn agents_share_the_rate_by_threads_and_weights() {
    for (requests, shares) in run_three_agents() {
        // Of seven parts the coordinator has one, the agents have one, two and three.
        for (share, parts) in shares.iter().zip([1.0, 2.0, 3.0]) {
            assert!((share / (parts * 200.0) - 1.0).abs() < 0.35, "{shares:?}");
        }
        assert!((1250..1550).contains(&requests), "{requests}");
    }
}

#[test]
#[ignore = "timing"]
#[serial]
fn the_measurement_client_is_separate_and_only_its_latencies_are_reported() {
    let server = Memcached::start(&[]);
    let agent = Agent::start(&[]);
    let measurement = ["-q", "2000", "-t", "1", "-w", "0", "-c", "8", "-C", "1", "-Q", "100", "-D", "1"];
    let output = coordinator(server.address, &[&agent], &measurement).output().unwrap();
    let report = report(&output);
    let (all, own) = (report["requests"].as_u64().unwrap(), report["latency"]["count"].as_u64().unwrap());
    assert!((60..150).contains(&own) && (1900..2300).contains(&all), "{own} of {all}");
    assert_eq!(report["asked_qps"].as_f64().unwrap(), 2100.0);
}

#[test]
#[ignore = "timing"]
#[serial]
fn the_coordinator_and_its_agents_begin_at_the_same_time() {
    let server = FakeServer::recording();
    let agents = [Agent::start(&[]), Agent::start(&[])];
    let all: Vec<&Agent> = agents.iter().collect();
    let output = coordinator(server.address, &all, &["--noload", "-t", "0.3", "-w", "0"]).output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
    let lines = server.lines();
    let first = |number: usize| lines.iter().find(|(connection, _)| *connection == number).unwrap().1;
    let firsts = [0, 1, 2].map(first);
    let apart = *firsts.iter().max().unwrap() - *firsts.iter().min().unwrap();
    assert!(apart < Duration::from_millis(100), "{apart:?}");
}

#[test]
#[ignore = "timing"]
#[serial]
fn a_lost_agent_makes_the_run_invalid_and_the_rest_is_reported() {
    let server = Memcached::start(&[]);
    let (mut lost, kept) = (Agent::start(&[]), Agent::start(&[]));
    let arguments = ["-q", "600", "-t", "2", "-w", "0"];
    let started = start(&mut coordinator(server.address, &[&lost, &kept], &arguments));
    lost.wait_for("run started");
    std::thread::sleep(Duration::from_millis(500));
    lost.child.kill().unwrap();
    let output = started.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", errors(&output));
    let report = report(&output);
    let invalid = report["invalid"].as_str().unwrap();
    assert!(invalid.contains(&lost.name()) && invalid.contains("lost"), "{invalid}");
    // Two thirds of 1200.
    assert!((650..=950).contains(&report["requests"].as_u64().unwrap()), "{report}");
    assert_eq!(report["agents"][1]["lost"], serde_json::Value::Null);
}

#[test]
#[ignore = "timing"]
#[serial]
fn the_coordinator_decides_when_the_confidence_interval_is_reached() {
    let server = Memcached::start(&[]);
    let agent = Agent::start(&[]);
    // An agent with hundreds of requests would reach this interval at once; the coordinator, with
    // few, does not.
    let arguments =
        ["-q", "2000", "-t", "3", "-w", "0", "--until-ci", "60%", "-C", "1", "-Q", "10", "-c", "4"];
    let output = coordinator(server.address, &[&agent], &arguments).output().unwrap();
    let report = report(&output);
    assert!(report["seconds"].as_f64().unwrap() > 2.9, "{report}");
    let loaded = report["agents"][0]["qps"].as_f64().unwrap();
    assert!((1700.0..2300.0).contains(&loaded), "{loaded}");
}

#[test]
#[ignore = "timing"]
#[serial]
fn an_interrupted_coordinator_stops_its_agents_and_prints_what_was_measured() {
    let server = Memcached::start(&[]);
    let agent = Agent::start(&[]);
    let arguments = ["-q", "200", "-t", "600", "-w", "0"];
    let started = start(&mut coordinator(server.address, &[&agent], &arguments));
    agent.wait_for("run started");
    std::thread::sleep(Duration::from_millis(1500));
    Command::new("kill").args(["-INT", &started.id().to_string()]).status().unwrap();
    let output = started.wait_with_output().unwrap();
    let report = report(&output);
    assert!((50..=600).contains(&report["requests"].as_u64().unwrap()), "{report}");
    assert!(report["agents"][0]["requests"].as_u64().unwrap() > 20, "{report}");
    agent.wait_for("run ended");
    // Agents of a killed coordinator stop their load.
    let killed = start(&mut coordinator(server.address, &[&agent], &arguments));
    wait_until("the second run", || agent.stderr.lock().unwrap().matches("run started").count() == 2);
    drop(killed);
    let mut seen = server.stat("cmd_get");
    wait_until("the end of its load", || {
        std::thread::sleep(Duration::from_millis(200));
        let before = std::mem::replace(&mut seen, server.stat("cmd_get"));
        before == seen
    });
}

#[test]
#[serial]
fn without_the_same_identity_a_coordinator_is_refused() {
    let server = Memcached::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let made = |name: &str| {
        let output = loadgen(&["--new-identity", &path(name)]).output().unwrap();
        assert!(output.status.success(), "{}", errors(&output));
        path(name)
    };
    let (right, other) = (made("right"), made("other"));
    assert_eq!(fs::metadata(&right).unwrap().permissions().mode() & 0o777, 0o600);
    let output = loadgen(&["--new-identity", &right]).output().unwrap();
    assert!(!output.status.success() && errors(&output).contains("exists"), "{}", errors(&output));
    let agent = Agent::start(&["--identity", &right]);
    let plain = Agent::start(&[]);
    for (agent, arguments) in [
        (&agent, &["-t", "0.2"][..]),
        (&agent, &["-t", "0.2", "--identity", &other]),
        (&plain, &["-t", "0.2", "--identity", &right]),
    ] {
        let output = coordinator(server.address, &[agent], arguments).output().unwrap();
        let text = errors(&output);
        assert!(text.contains("--identity") && text.contains(&agent.name()), "{text}");
        assert_eq!(output.status.code(), Some(1));
    }
    let good = ["-t", "1", "-w", "0", "--identity", &right];
    let output = coordinator(server.address, &[&agent], &good).output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
    // Without an identity, anybody who can reach the agent could make it load any server.
    let output = loadgen(&["-A", "-p", "0", "--listen", "0.0.0.0"]).output().unwrap();
    assert!(!output.status.success() && errors(&output).contains("identity"), "{}", errors(&output));
    fs::write(path("key"), fs::read_to_string(&right).unwrap().split_once("-----BEGIN PRIV").unwrap().0)
        .unwrap();
    fs::write(path("empty"), "\n").unwrap();
    for (name, problem) in [("key", "private key"), ("empty", "no certificate"), ("missing", "No such file")]
    {
        for arguments in [&["-A", "-p", "0"][..], &["-s", "127.0.0.1:1", "-a", "127.0.0.1", "-t", "0.2"]] {
            let output = loadgen(&[arguments, &["--identity", &path(name)]].concat()).output().unwrap();
            let text = errors(&output);
            assert!(text.contains(problem) && text.contains(&path(name)), "{text}");
            assert_eq!(output.status.code(), Some(1));
        }
    }
}

/// A client that trusts any agent and has no certificate, as anybody can write one.
#[test]
#[serial]
fn an_agent_with_an_identity_runs_nothing_for_a_client_without_one() {
    let folder = tempfile::tempdir().unwrap();
    let identity = folder.path().join("identity");
    let identity = identity.to_str().unwrap();
    assert!(loadgen(&["--new-identity", identity]).status().unwrap().success());
    let agent = Agent::start(&["--identity", identity]);
    let connector = adapters::tls::Connector::builder().authorities(identity).open().unwrap();
    let runtime = runtime::Builder::new().ignore_environment().workers(1).build().unwrap();
    let received = runtime.block_on(async {
        let stream = net::TcpStream::connect(([127, 0, 0, 1], agent.port)).await.unwrap();
        let mut stream = connector.connect("loadgen-agent", stream).await.unwrap();
        let mut received = Vec::new();
        stream.write_all(GREETING).await.unwrap();
        stream.flush().await.unwrap();
        stream.read_to_end(&mut received).await.map(|_| received)
    });
    assert!(received.unwrap_err().to_string().contains("CertificateRequired"));
    agent.wait_for("--identity");
}

#[test]
#[serial]
fn an_agent_that_is_missing_or_busy_or_of_another_version_is_named_with_the_reason() {
    let server = Memcached::start(&[]);
    let agent = Agent::start(&[]);
    let refused = |name: &str, word: &str| {
        let output = coordinator(server.address, &[], &["-t", "0.2", "-a", name]).output().unwrap();
        let text = errors(&output);
        assert!(text.contains(name) && text.contains(word), "{word}: {text}");
        assert_eq!(output.status.code(), Some(1), "{text}");
    };
    refused(&format!("127.0.0.1:{}", free_port()), "connect");
    refused(&server.address.to_string(), "protocol of loadgen agents");
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = other.local_addr().unwrap().to_string();
    let speaks = std::thread::spawn(move || {
        let (mut stream, _) = other.accept().unwrap();
        stream.write_all(b"loadgen\0\x63\0\0\0").unwrap();
        // Until the coordinator closes the connection.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    refused(&name, "version 99");
    speaks.join().unwrap();
    let busy = start(&mut coordinator(server.address, &[&agent], &["-q", "10", "-t", "30"]));
    agent.wait_for("run started");
    refused(&agent.name(), "another coordinator");
    drop(busy);
    // An agent refuses what it can't do before the run begins. It is free again when it has noticed
    // that the connection is closed, or reset with a heartbeat that nobody read.
    let mut refusal = String::new();
    wait_until("it is free again", || {
        let output =
            coordinator(server.address, &[&agent], &["--noload", "--tls", "--cacert", "/nowhere"]).output();
        refusal = errors(&output.unwrap());
        !refusal.contains("another coordinator")
    });
    assert!(refusal.contains("without an identity"), "{refusal}");
}

#[test]
#[serial]
fn garbage_neither_stops_an_agent_nor_starts_a_run() {
    let server = Memcached::start(&[]);
    let agent = Agent::start(&[]);
    let address = SocketAddr::from(([127, 0, 0, 1], agent.port));
    let announced = [GREETING, &(200_u32 << 20).to_le_bytes(), &[0; 1 << 20]].concat();
    let no_json = [GREETING, &5_u32.to_le_bytes(), b"hello"].concat();
    for garbage in
        [announced, b"GET / HTTP/1.0\r\n\r\n".repeat(5), [GREETING, &[0xff; 100]].concat(), no_json]
    {
        let mut stream = TcpStream::connect(address).unwrap();
        // Fails if the agent has closed the connection.
        let _ = stream.write_all(&garbage);
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // It closes, after at most its greeting and its welcome.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let output = coordinator(server.address, &[&agent], &["-t", "1", "-w", "0"]).output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
}
