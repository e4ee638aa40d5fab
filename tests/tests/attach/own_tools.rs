//! The load generators that people use for a server find no error while it is attached and detached under them.

use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lab::testbed::Testbed;
use policies::attach::Target;
use serial_test::serial;
use tests::memcached::wait_until;
use tests::testbed::enter;
use tests::{isolated, program};

use super::attached::{Observed, epolls, family, nothing_is_left};
use super::servers::{self, Server};

/// Attaches three times while a tool loads the server from the testbed's other side, as often as it takes. Returns
/// what each of the tool's runs printed.
fn attach_under(testbed: &Testbed, server: &Server, tool: &str, arguments: &[&str]) -> Vec<String> {
    let Some(tool) = program(tool) else { return Vec::new() };
    let mut command = Command::new("taskset");
    command.args(["-c", "1"]).arg(&tool).args(arguments);
    let stop = Arc::new(AtomicBool::new(false));
    let stops = Arc::clone(&stop);
    let run = move || -> Vec<Output> {
        let mut outputs = Vec::new();
        while !stops.load(Ordering::Relaxed) {
            outputs.push(command.output().unwrap());
        }
        outputs
    };
    // Children of a namespace's thread are in that namespace.
    let runs = testbed.client.run(|| Ok(std::thread::spawn(run))).unwrap();
    let family = family(server.pid());
    for _ in 0..3 {
        let attached = Observed::start(Target::Process(server.pid()));
        wait_until("the server polls under the tool's load", || {
            family.iter().flat_map(|pid| epolls(*pid)).any(|(.., params)| params.prefer_busy_poll == 1)
        });
        attached.attachment.detach();
    }
    stop.store(true, Ordering::Relaxed);
    let outputs = runs.join().unwrap();
    nothing_is_left();
    let text = |output: Output| {
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{text}");
        text
    };
    outputs.into_iter().map(text).collect()
}

#[test]
#[isolated(root)]
#[serial]
fn wrk_finds_no_error_while_nginx_is_attached_and_detached() {
    let testbed = enter(1);
    let Some(server) = servers::nginx(1, "") else { return };
    let url = format!("http://{}/", server.address);
    for text in attach_under(&testbed, &server, "wrk", &["-t", "1", "-c", "16", "-d", "1", &url]) {
        assert!(text.contains("Requests/sec"), "{text}");
        assert!(!text.contains("Socket errors") && !text.contains("Non-2xx"), "{text}");
    }
}

#[test]
#[isolated(root)]
#[serial]
fn redis_benchmark_finds_no_error_while_redis_is_attached_and_detached() {
    let testbed = enter(1);
    let Some(server) = servers::redis() else { return };
    let (host, port) = (server.address.ip().to_string(), server.address.port().to_string());
    let arguments = ["-h", &host, "-p", &port, "-c", "16", "-n", "50000", "-t", "get", "-q"];
    for text in attach_under(&testbed, &server, "redis-benchmark", &arguments) {
        assert!(text.contains("requests per second"), "{text}");
        assert!(!text.to_lowercase().contains("error"), "{text}");
    }
}
