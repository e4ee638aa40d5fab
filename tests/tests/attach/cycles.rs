//! Attaching and detaching again and again, and what a killed attachment leaves to the next one.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab::testbed::Testbed;
use policies::attach::Target;
use serial_test::serial;
use tests::isolated;
use tests::memcached::wait_until;
use tests::testbed::enter_plain;

use super::attached::{CONNECTIONS, Observed, epolls, nothing_is_left, state};
use super::load::Load;
use super::servers::{self, Server};

/// A request that takes longer was stalled.
const STALL: Duration = Duration::from_millis(10);

fn cycles() -> u32 {
    std::env::var("LULL_ATTACH_CYCLES").ok().and_then(|text| text.parse().ok()).unwrap_or(10)
}

/// What the descriptors of a process are.
fn descriptors(pid: u32) -> Vec<String> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let target = |entry: std::io::Result<std::fs::DirEntry>| std::fs::read_link(entry.ok()?.path()).ok();
    entries.filter_map(target).map(|target| target.display().to_string()).collect()
}

fn share_of_stalls(times: &[Duration]) -> f64 {
    times.iter().filter(|time| **time > STALL).count() as f64 / times.len().max(1) as f64
}

#[test]
#[isolated(root)]
#[serial]
fn attaching_and_detaching_loses_no_request_and_no_descriptor() {
    let testbed = enter_plain(1);
    let Some(server) = servers::memcached(&["-t", "1"]) else { return };
    attach_and_detach_repeatedly(&testbed, &server, 3);
}

#[test]
#[ignore = "timing"]
#[isolated(root)]
#[serial]
fn attaching_and_detaching_stalls_no_more_requests_than_the_machine() {
    let testbed = enter_plain(1);
    let Some(server) = servers::memcached(&["-t", "1"]) else { return };
    let load = Load::start(&testbed, server.address, server.exchange, CONNECTIONS);
    std::thread::sleep(Duration::from_secs(1));
    let plain = share_of_stalls(&load.end());
    let times = attach_and_detach_repeatedly(&testbed, &server, cycles());
    let stalled = share_of_stalls(&times);
    println!("{} requests; stalls {plain:.5} before, {stalled:.5} meanwhile", times.len());
    // The machine pauses, too.
    assert!(stalled <= (plain * 4.0).max(0.005), "stalls {plain:.5} before, {stalled:.5} meanwhile");
}

/// Attaches a server under load until it is polled, and detaches it. Returns how long each request
/// took.
fn attach_and_detach_repeatedly(testbed: &Testbed, server: &Server, cycles: u32) -> Vec<Duration> {
    let load = Load::start(testbed, server.address, server.exchange, CONNECTIONS);
    wait_until("the server serves", || load.requests() > 100);
    let before = state(&[server.pid()]);
    // The first one opens a pair of sockets for the rest of the process; the first cycle may not
    // come to it.
    let _signals = policies::signals::on_termination(|| ()).unwrap();
    let mut held = None;
    for _ in 0..cycles {
        let attached = Observed::start(Target::Process(server.pid()));
        wait_until("the server is polled", || {
            epolls(server.pid()).iter().any(|(.., params)| params.prefer_busy_poll == 1)
        });
        attached.attachment.detach();
        assert_eq!(state(&[server.pid()]), before);
        let now = || [descriptors(server.pid()), descriptors(std::process::id())];
        let first = held.get_or_insert_with(now);
        // The kernel closes a socket of another thread a moment later, also in the first cycle.
        let more =
            |now: &[Vec<String>; 2]| now.iter().zip(&*first).any(|(now, first)| now.len() > first.len());
        let end = Instant::now() + Duration::from_secs(60);
        while more(&now()) {
            assert!(
                Instant::now() < end,
                "more descriptors than after the first cycle: {:?}, {first:?}",
                now()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    let times = load.end();
    nothing_is_left();
    times
}

#[test]
#[isolated(root)]
#[serial]
fn what_a_killed_attachment_left_is_put_back_by_the_next_one_also_if_the_server_has_ended() {
    let testbed = enter_plain(1);
    let Some(server) = servers::memcached(&["-t", "1"]) else { return };
    let fresh = state(&[]);
    let load = Load::start(&testbed, server.address, server.exchange, CONNECTIONS);
    let policies = tests::own_program("policies");
    let mut command = Command::new(&policies);
    command.args(["attach", "--pid", &server.pid().to_string(), "--latency-budget", "1000"]);
    let mut child: tests::KillOnDrop = command.stdout(Stdio::null()).spawn().unwrap().into();
    wait_until("the server is polled", || {
        epolls(server.pid()).iter().any(|(.., params)| params.prefer_busy_poll == 1)
    });
    child.kill().unwrap();
    child.wait().unwrap();
    load.end();
    drop(server);
    assert_ne!(state(&[]), fresh);
    let Some(server) = servers::memcached(&["-t", "1"]) else { return };
    let mut command = Command::new(&policies);
    command.args(["attach", "--pid", &server.pid().to_string(), "--duration", "1"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(state(&[]), fresh);
    nothing_is_left();
}
