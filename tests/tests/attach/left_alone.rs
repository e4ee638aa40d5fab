//! What can't be attached to is said before anything is changed.

use policies::JournalDir;
use policies::attach::{AttachEvent, Fitness, Observation, Target, observe};
use policies::explain::Severity;
use tests::memcached::wait_until;
use tests::testbed::enter_plain;
use tests::testbed_test;

use super::attached::{CONNECTIONS, Observed, is_aligned, state};
use super::servers::{self, serve_if_asked};

/// Looks at a server under load, or at an idle one with `connections` 0. `is_told`: whether the
/// observation says what keeps it from being attached to.
fn check(what: &str, connections: usize, is_told: fn(&Observation) -> bool) {
    let testbed = enter_plain(1);
    let server = servers::own(what);
    let load = server.load_by(&testbed, connections, std::time::Duration::ZERO);
    wait_until("the server waits", || connections > 0 || waits_in_poll(server.pid()));
    let before = state(&[server.pid()]);
    let observation = observe(&Target::Process(server.pid()), None, &JournalDir::default()).unwrap();
    assert_eq!(state(&[server.pid()]), before);
    load.end();
    assert!(is_told(&observation), "{}, {observation:#?}", observation.verdict());
}

fn has(observation: &Observation, fitness: Fitness) -> bool {
    observation.instances().any(|it| it.fitness == fitness) && !is_aligned(observation)
}

fn finds(observation: &Observation, text: &str) -> bool {
    observation.findings.iter().any(|finding| finding.summary.contains(text))
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

#[testbed_test]
fn a_server_that_waits_in_poll_is_named_as_one() {
    serve_if_asked();
    // Under load it might never be seen waiting.
    check("poll", 0, |observation| prevents(observation, "poll or select"));
}

#[testbed_test]
fn a_server_that_waits_in_io_uring_is_named_as_one() {
    serve_if_asked();
    check("io_uring", CONNECTIONS, |observation| {
        let rings: usize = observation.processes.iter().map(|process| process.rings).sum();
        rings > 0 && !is_aligned(observation) && finds(observation, "io_uring")
    });
}

#[ignore = "timing"]
#[testbed_test]
fn a_server_whose_waits_have_a_timeout_of_0_is_named_as_one() {
    serve_if_asked();
    // While the hypervisor has the server's core the server doesn't run, and seems to sleep.
    check("timeout 0", CONNECTIONS, |observation| finds(observation, "never sleeps"));
}

#[testbed_test]
fn a_nested_epoll_instance_is_left_alone() {
    serve_if_asked();
    check("nested", CONNECTIONS, |observation| has(observation, Fitness::Nested));
}

#[testbed_test]
fn a_server_that_polls_by_itself_is_left_alone_and_keeps_its_queue() {
    serve_if_asked();
    check("own polling", CONNECTIONS, |observation| has(observation, Fitness::PollsItself));
}

#[testbed_test]
fn a_second_attachment_does_not_take_a_queue_that_the_first_one_holds() {
    let testbed = enter_plain(1);
    let Some(server) = servers::memcached() else { return };
    let load = server.load(&testbed);
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
    server.wait_polls();
    drop(first);
    load.end();
}

#[testbed_test]
fn an_interface_that_does_not_exist_is_an_error_that_lists_those_of_the_server() {
    let _testbed = enter_plain(1);
    // The other threads of this process are not in the testbed.
    let sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let sleeper = tests::KillOnDrop::from(sleeper);
    let target = Target::Process(sleeper.id());
    let error = observe(&target, Some("nonesuch0"), &JournalDir::default()).unwrap_err().to_string();
    assert!(error.contains("nonesuch0") && error.contains("lull-server"), "{error}");
}
