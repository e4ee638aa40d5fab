//! Attachments that begin and end again and again or are killed, servers that restart or reload, a
//! link that goes down and up, and a server in another network namespace.

use std::path::Path;
use std::time::Duration;

use lab::testbed::{Namespace, SERVER_INTERFACE, Testbed};
use policies::JournalDir;
use policies::attach::{AttachConfig, AttachEvent, Target, observe};
use policies::netlink::netdev::Netdev;
use policies::netlink::route;
use rustix::process::{Pid, Signal, kill_process};
use tests::memcached::wait_until;
use tests::testbed::{enter_plain, ip};
use tests::{policies_command, testbed_test};

use super::attached::{AttachCommand, Observed, family, is_aligned, nothing_is_left, state};
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

#[testbed_test]
fn attaching_and_detaching_loses_no_request_and_no_descriptor() {
    let testbed = enter_plain(1);
    let Some(server) = servers::memcached() else { return };
    attach_and_detach_repeatedly(&testbed, &server, 3);
}

#[ignore = "timing"]
#[testbed_test]
fn attaching_and_detaching_stalls_no_more_requests_than_the_machine() {
    let testbed = enter_plain(1);
    let Some(server) = servers::memcached() else { return };
    let load = server.load(&testbed);
    std::thread::sleep(Duration::from_secs(1));
    let plain = share_of_stalls(&load.end_with_times());
    let times = attach_and_detach_repeatedly(&testbed, &server, cycles());
    let stalled = share_of_stalls(&times);
    println!("{} requests; stalls {plain:.5} before, {stalled:.5} meanwhile", times.len());
    // The machine pauses, too.
    assert!(stalled <= (plain * 4.0).max(0.005), "stalls {plain:.5} before, {stalled:.5} meanwhile");
}

/// Attaches a server under load until it is polled, and detaches it. Returns how long each request
/// took.
fn attach_and_detach_repeatedly(testbed: &Testbed, server: &Server, cycles: u32) -> Vec<Duration> {
    let load = server.load(testbed);
    let before = state(&[server.pid()]);
    // The first one opens a pair of sockets for the rest of the process; the first cycle may not
    // come to it.
    let _signals = policies::signals::on_termination(|| ()).unwrap();
    let mut held = None;
    for _ in 0..cycles {
        let attached = Observed::start(Target::Process(server.pid()));
        server.wait_polls();
        attached.attachment.detach();
        assert_eq!(state(&[server.pid()]), before);
        let now = || [descriptors(server.pid()), descriptors(std::process::id())];
        let first = held.get_or_insert_with(now);
        // The kernel closes a socket of another thread a moment later, also in the first cycle.
        wait_until("as many descriptors as after the first cycle", || {
            let now = now();
            let has_more = now.iter().zip(&*first).any(|(now, first)| now.len() > first.len());
            if has_more {
                println!("{now:?}, {first:?}");
            }
            !has_more
        });
    }
    let times = load.end_with_times();
    nothing_is_left();
    times
}

#[testbed_test]
fn what_a_killed_attachment_left_is_put_back_by_the_next_one_also_if_the_server_has_ended() {
    let testbed = enter_plain(1);
    let Some(server) = servers::memcached() else { return };
    let fresh = state(&[]);
    let load = server.load(&testbed);
    AttachCommand::to(&server).kill();
    load.end();
    drop(server);
    assert_ne!(state(&[]), fresh);
    let Some(server) = servers::memcached() else { return };
    let pid = server.pid().to_string();
    let output = policies_command(&["attach", "--pid", &pid, "--duration", "1"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(state(&[]), fresh);
    nothing_is_left();
}

fn detached(event: &AttachEvent) -> bool {
    matches!(event, AttachEvent::Detached { .. })
}

#[testbed_test]
fn a_worker_that_nginx_starts_on_reload_is_attached_in_place_of_the_old_one() {
    let testbed = enter_plain(1);
    let Some(server) = servers::nginx(1, "") else { return };
    let load = server.load(&testbed);
    let attached = Observed::start(Target::Process(server.pid()));
    attached.wait_attached(1);
    let old = family(server.pid());
    kill_process(Pid::from_child(&server.child), Signal::HUP).unwrap();
    wait_until("nginx has another worker", || family(server.pid()).iter().any(|pid| !old.contains(pid)));
    // The old worker serves its connections until they are closed, and closes those that it finds
    // idle.
    drop(load);
    wait_until("the old worker has ended", || {
        let now = family(server.pid());
        old.iter().filter(|pid| now.contains(pid)).count() == 1
    });
    let load = server.load(&testbed);
    attached.wait_attached(2);
    wait_until("the old worker is detached", || attached.count(detached) > 0);
    attached.end(load);
}

#[testbed_test]
fn a_server_that_is_restarted_is_attached_again() {
    let testbed = enter_plain(1);
    let Some(server) = servers::memcached() else { return };
    let fresh = state(&[]);
    let attached = Observed::start(Target::DescendantsOf(std::process::id()));
    let load = server.load(&testbed);
    attached.wait_polls();
    load.end();
    drop(server);
    wait_until("the ended server is detached", || attached.count(detached) > 0);
    wait_until("the queue is given back", || state(&[]) == fresh);
    let server = servers::memcached().unwrap();
    let load = server.load(&testbed);
    attached.wait_attached(2);
    attached.attachment.detach();
    load.end();
    assert!(!server.polls());
    nothing_is_left();
}

#[testbed_test]
fn a_link_that_goes_down_and_up_is_polled_again_and_left_as_it_was() {
    let testbed = enter_plain(1);
    let Some(server) = servers::memcached() else { return };
    let before = state(&[server.pid()]);
    let load = server.load(&testbed);
    let attached = Observed::start(Target::Process(server.pid()));
    attached.wait_polls();
    for state in ["down", "up"] {
        ip(&["link", "set", SERVER_INTERFACE, state]);
        wait_until("the link changes", || {
            let links = route::links().unwrap();
            links.iter().any(|link| link.name == SERVER_INTERFACE && link.up == (state == "up"))
        });
    }
    let served = load.requests();
    wait_until("the server serves again", || load.requests() > served + 200);
    attached.wait_packets();
    attached.attachment.detach();
    assert_eq!(state(&[server.pid()]), before);
    load.end();
    nothing_is_left();
}

/// Moves the calling thread to a network namespace of its own.
fn enter_another_namespace() -> Namespace {
    let own = Namespace::new().unwrap();
    let file = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(own.file()));
    Namespace::open(&file).unwrap().enter_process().unwrap();
    own
}

#[testbed_test]
fn a_server_in_another_network_namespace_is_attached_there_and_recovered_from_outside() {
    let _own = enter_another_namespace();
    let testbed = Testbed::new(1).unwrap();
    let Some(server) = testbed.server.run(|| Ok(servers::memcached())).unwrap() else { return };
    assert!(!Path::new("/sys/class/net").join(SERVER_INTERFACE).exists(), "it must not be here");
    let load = server.load(&testbed);
    let target = Target::Process(server.pid());
    let observation = observe(&target, Some(SERVER_INTERFACE), &JournalDir::default()).unwrap();
    assert!(is_aligned(&observation), "{observation:?}");
    let attached = Observed::start_with(AttachConfig {
        interface: Some(SERVER_INTERFACE.to_owned()),
        ..AttachConfig::new(target)
    });
    attached.wait_polls();
    server.wait_polls();
    let recovery = policies::recover(&JournalDir::default()).unwrap();
    assert!(recovery.reports.is_empty() && !recovery.failed(), "it runs: {recovery:?}");
    let journals = JournalDir::default();
    let (found, _) = policies::summaries_everywhere(&journals).unwrap();
    assert!(found.iter().any(|it| it.elsewhere && it.interface == SERVER_INTERFACE), "{found:?}");
    assert!(policies::summaries(&journals).unwrap().0.is_empty(), "only of this namespace");
    attached.attachment.detach();
    assert!(!server.polls());

    // Killed, and recovered from this namespace.
    AttachCommand::to(&server).kill();
    let preview = policies::restore_preview(&journals, None, false).unwrap();
    assert!(preview.reports.iter().any(|report| report.interface == SERVER_INTERFACE), "{preview:?}");
    let recovery = policies::recover(&JournalDir::default()).unwrap();
    assert!(recovery.reports.iter().any(|report| report.interface == SERVER_INTERFACE), "{recovery:?}");
    assert!(!recovery.failed(), "{recovery:?}");
    assert!(!server.polls());
    let napis = || {
        let links = route::links()?;
        let index = links.iter().find(|link| link.name == SERVER_INTERFACE).unwrap().index;
        Netdev::open()?.napis(index)
    };
    let left = testbed.server.run(napis).unwrap();
    assert!(left.iter().all(|napi| napi.gro_flush_timeout == Some(0)), "{left:?}");
    load.end();
}
