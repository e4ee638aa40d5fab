//! What can't be attached to is said before anything is changed.

use policies::JournalDir;
use policies::attach::{AttachConfig, AttachEvent, Fitness, Observation, Target, observe};
use policies::explain::Severity;
use serial_test::serial;
use tests::isolated;
use tests::memcached::wait_until;
use tests::testbed::enter_plain;

use super::attached::{CONNECTIONS, Observed, epolls, is_aligned, state};
use super::load::Load;
use super::servers::{self, serve_if_asked};

/// Looks at a server under load, or at an idle one with `connections` 0.
fn look(what: &str, connections: usize) -> Observation {
    let testbed = enter_plain(1);
    let server = servers::own(what);
    let load = Load::start(&testbed, server.address, server.exchange, connections);
    wait_until("the server serves or waits", || match connections {
        0 => waits_in_poll(server.pid()),
        _ => load.requests() > 100,
    });
    let before = state(&[server.pid()]);
    let observation = observe(&Target::Process(server.pid()), None, &JournalDir::default()).unwrap();
    println!("{}\n{:#?}", observation.verdict(), observation.findings);
    assert_eq!(state(&[server.pid()]), before);
    load.end();
    observation
}

/// Whether a thread of the process waits in `poll`.
fn waits_in_poll(process: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    let calls = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("syscall")).ok());
    let mut numbers = calls.filter_map(|call| call.split_whitespace().next()?.parse().ok());
    numbers.any(|number: libc::c_long| is_poll(number))
}

fn is_poll(number: libc::c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    if number == libc::SYS_poll {
        return true;
    }
    number == libc::SYS_ppoll
}

fn prevents(observation: &Observation, text: &str) -> bool {
    let mut findings = observation.findings.iter().filter(|finding| finding.severity == Severity::Prevents);
    findings.any(|finding| finding.summary.contains(text) && finding.remedy.is_some())
}

#[test]
#[isolated(root)]
#[serial]
fn a_server_that_waits_in_poll_is_named_as_one() {
    serve_if_asked();
    // Under load it might never be seen waiting.
    let observation = look("poll", 0);
    assert!(prevents(&observation, "poll or select"), "{:?}", observation.findings);
}

#[test]
#[isolated(root)]
#[serial]
fn a_server_that_waits_in_io_uring_is_named_as_one() {
    serve_if_asked();
    let observation = look("io_uring", CONNECTIONS);
    let rings: usize = observation.processes.iter().map(|process| process.rings).sum();
    assert!(rings > 0 && !is_aligned(&observation), "{observation:?}");
    assert!(
        observation.findings.iter().any(|finding| finding.summary.contains("io_uring")),
        "{observation:?}"
    );
}

#[test]
#[ignore = "timing"]
#[isolated(root)]
#[serial]
fn a_server_whose_waits_have_a_timeout_of_0_is_named_as_one() {
    serve_if_asked();
    rustix::mount::mount(
        "tracefs",
        "/sys/kernel/tracing",
        "tracefs",
        rustix::mount::MountFlags::empty(),
        None,
    )
    .ok();
    // While the hypervisor has the server's core the server doesn't run, and seems to sleep.
    let observation = look("timeout 0", CONNECTIONS);
    let found = prevents(&observation, "timeout of 0");
    let suspected = observation.findings.iter().any(|finding| finding.summary.contains("never sleeps"));
    assert!(found || suspected, "{:?}", observation.findings);
}

#[test]
#[isolated(root)]
#[serial]
fn a_nested_epoll_instance_is_left_alone() {
    serve_if_asked();
    let observation = look("nested", CONNECTIONS);
    assert!(observation.instances().any(|it| it.fitness == Fitness::Nested), "{observation:?}");
    assert!(!is_aligned(&observation));
}

#[test]
#[isolated(root)]
#[serial]
fn a_server_that_polls_by_itself_is_left_alone_and_keeps_its_queue() {
    serve_if_asked();
    let observation = look("own polling", CONNECTIONS);
    assert!(observation.instances().any(|it| it.fitness == Fitness::PollsItself), "{observation:?}");
    assert!(!is_aligned(&observation));
}

#[test]
#[isolated(root)]
#[serial]
fn a_second_attachment_does_not_take_a_queue_that_the_first_one_holds() {
    let testbed = enter_plain(1);
    let Some(server) = servers::memcached(&["-t", "1"]) else { return };
    let load = Load::start(&testbed, server.address, server.exchange, CONNECTIONS);
    let target = Target::Process(server.pid());
    let first = Observed::start(target.clone());
    first.wait_attached(1);
    // The instance that the first one has not set yet may look free.
    let second = Observed::start(target);
    let refused = |event: &AttachEvent| {
        matches!(event, AttachEvent::QueueRefused { .. } | AttachEvent::LeftAlone { .. })
    };
    wait_until("the second one is refused", || second.count(refused) > 0);
    assert_eq!(second.count(|event| matches!(event, AttachEvent::Attached { .. })), 0);
    drop(second);
    wait_until("the first one goes on", || {
        epolls(server.pid()).iter().any(|(.., params)| params.prefer_busy_poll == 1)
    });
    drop(first);
    load.end();
}

#[test]
#[isolated(root)]
#[serial]
fn an_interface_that_does_not_exist_is_an_error_that_lists_those_of_the_server() {
    let _testbed = enter_plain(1);
    // The other threads of this process are not in the testbed.
    let sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let sleeper = tests::KillOnDrop::from(sleeper);
    let target = Target::Process(sleeper.id());
    let error = observe(&target, Some("nonesuch0"), &JournalDir::default()).unwrap_err().to_string();
    assert!(error.contains("nonesuch0") && error.contains("lull-server"), "{error}");
    let config = AttachConfig::new(Target::Process(u32::MAX));
    let error = policies::attach::Attachment::start(config, |_| {}).unwrap_err().to_string();
    assert!(error.contains("no such process"), "{error}");
}
