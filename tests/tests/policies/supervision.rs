//! A policy's settings while its process runs, and their restoration after it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use lab::testbed::SERVER_INTERFACE;
use policies::controller::{PollInterval, QueueSettings};
use policies::netlink::ethtool::Ethtool;
use policies::netlink::netdev::{Napi, NapiSetting, Netdev};
use policies::{
    AdaptedQueue, Affinity, Change, Policy, QueueDelegate, QueueRequests, Settings, Supervisor,
    SupervisorHooks, host,
};
use runtime::{Builder, Running, Runtime};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use tests::memcached::wait_until;
use tests::testbed::{apply, enter, ip, napi, server_builder, server_runtime, steer_to};
use tests::{KillOnDrop, isolated, testbed_test};

#[testbed_test(drivers = "epoll, uring")]
fn settings_of_a_killed_process_are_restored_at_the_next_start() {
    if let Ok(policy) = std::env::var("APPLY") {
        // In the grandchild, which inherits the namespaces: hold the policy until it is killed.
        let policy = policy.parse().unwrap();
        let runtime = server_runtime(policy, 1);
        // kernel-thread steps down to vanilla on an older kernel.
        let complete = runtime.applied().iter().all(|step| step.outcome.is_ok());
        assert!(complete || policy == Policy::KernelThread, "{:?}", runtime.applied());
        println!("applied");
        std::thread::sleep(Duration::from_secs(60));
        drop(runtime);
        return;
    }
    let _testbed = enter(1);
    let state = || (host::interface(SERVER_INTERFACE).unwrap().queues.remove(0).rps_cpus, napi());
    steer_to(0);
    let fresh = state();
    let hold = |policy: Policy| {
        let (child, _) =
            KillOnDrop::start_until(isolated::once_more().env("APPLY", policy.name()), "applied");
        assert_ne!(state(), fresh, "{policy} set nothing");
        child
    };
    for signal in [Signal::TERM, Signal::INT] {
        let mut child = hold(Policy::KernelPolling);
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert!(!child.wait().unwrap().success());
        assert_eq!(state(), fresh, "{signal:?} left something set");
        assert!(!std::path::Path::new("/run/lull").exists(), "{signal:?} left the journal");
    }
    for policy in Policy::ALL {
        let mut child = hold(policy);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_ne!(state(), fresh, "{policy} was restored by its killed process");
        // The next start is of a policy that changes none of these settings.
        let next =
            Builder::new().ignore_environment().workers(1).interface(SERVER_INTERFACE).build().unwrap();
        assert_eq!(state(), fresh, "{policy}");
        drop(next);
        let left: Vec<_> = std::fs::read_dir("/run/lull").into_iter().flatten().collect();
        assert!(!std::path::Path::new("/run/lull").exists(), "{policy} left its journal: {left:?}");
    }
}

#[testbed_test(drivers = "epoll, uring")]
fn a_second_process_reports_that_all_queues_are_in_use_and_polls_none() {
    let _testbed = enter(1);
    let first = server_runtime(Policy::KernelPolling, 1);
    let second = server_runtime(Policy::Suppression, 1);
    let report = second.block_on(async { runtime::reports() }).remove(0);
    assert!(report.to_string().contains("queues 0 are in use by process"), "{report}");
    assert_eq!(report.running, Running::Blocking, "{report}");
    drop(second);
    let napi = host::interface(SERVER_INTERFACE).unwrap().queues[0].napi.clone().unwrap();
    assert_eq!(napi.irq_suspend_timeout, Some(20_000_000));
    drop(first);
}

#[testbed_test(drivers = "epoll, uring")]
fn a_second_process_takes_the_queues_that_the_first_does_not_use() {
    let _testbed = enter(2);
    let queues = host::interface(SERVER_INTERFACE).unwrap().queues;
    let settings = Settings { queues: Some(vec![0]), ..Settings::default() };
    let first = apply(Policy::KernelPolling, &settings);
    let second = server_runtime(Policy::KernelPolling, 1);
    let report = second.block_on(async { runtime::reports() }).remove(0);
    assert_eq!(report.running, Running::KernelPolling, "{report}");
    assert_eq!(report.napi.as_ref().unwrap().id, queues[1].napi.as_ref().unwrap().id, "{report}");
    assert!(report.to_string().contains("took queues 1 instead"), "{report}");
    drop(second);
    let after = host::interface(SERVER_INTERFACE).unwrap().queues;
    assert_eq!(after[1].napi, queues[1].napi, "the second put its queue back");
    assert_ne!(after[0].napi, queues[0].napi, "and left the first's alone");
    drop(first);
    assert_eq!(host::interface(SERVER_INTERFACE).unwrap().queues[0].napi, queues[0].napi);
}

#[testbed_test(drivers = "epoll, uring")]
fn settings_that_a_reopened_link_lost_are_applied_again_and_reported() {
    let _testbed = enter(1);
    let (runtime, changes) = polling_with_changes();
    let napi = || host::interface(SERVER_INTERFACE).unwrap().queues[0].napi.clone();
    let before = napi().unwrap();
    let mut reported: Vec<String> = Vec::new();
    let mut wait_for_change = |expected: &str| {
        wait_until(&format!("\"{expected}\" is reported"), || {
            reported.extend(changes.try_iter());
            reported.iter().any(|change| change.contains(expected))
        });
    };
    for state in ["down", "up"] {
        ip(&["link", "set", SERVER_INTERFACE, state]);
        wait_for_change(&format!("the link is {state}"));
    }
    wait_until("the new NAPI has the policy's values", || {
        napi().is_some_and(|napi| values(&napi) == values(&before))
    });
    assert_ne!(napi().unwrap().id, before.id, "a veth gives its queues new NAPIs");
    wait_for_change("gro-flush-timeout set to 50000");
    drop(runtime);
    let after = napi().unwrap();
    assert_eq!((after.gro_flush_timeout, after.defer_hard_irqs), (Some(0), Some(0)));
}

#[testbed_test(drivers = "epoll, uring")]
fn a_link_that_was_closed_and_opened_within_a_moment_is_reported_and_followed() {
    let _testbed = enter(1);
    let (runtime, changes) = polling_with_changes();
    wait_until("the supervisor has seen the interface", has_status);
    let before = napi().id;
    // The supervisor waits for 100 ms before it looks.
    for state in ["down", "up"] {
        ip(&["link", "set", SERVER_INTERFACE, state]);
    }
    next(&changes, "the link is up");
    let after = napi().id;
    assert_ne!(after, before);
    wait_until("the worker polls the new NAPI", || statuses().contains(&after.to_string()));
    drop(runtime);
}

#[testbed_test]
fn workers_requests_are_answered_while_other_interfaces_change_all_the_time() {
    let _testbed = enter(1);
    let (_supervisor, requests, _changes) = supervised_queue(None, || ());
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let changing = std::thread::spawn(move || {
        for mtu in (1000..2000).cycle() {
            ip(&["link", "set", "lo", "mtu", &mtu.to_string()]);
            if stopped.recv_timeout(Duration::from_millis(10)) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    });
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(answer(&requests, QueueSettings::fixed(PollInterval::default())), Ok(()));
    drop(stop);
    changing.join().unwrap();
}

#[testbed_test(drivers = "epoll, uring")]
fn a_value_that_a_controller_may_set_is_restored_and_one_that_somebody_else_has_set_is_not() {
    let _testbed = enter(1);
    let mut netdev = Netdev::open().unwrap();
    let id = napi().id;
    // The value from before differs from that of interrupts, or is the same.
    for before in [0, 50_000] {
        netdev.set_napi(id, NapiSetting::GroFlushTimeout, before).unwrap();
        let runtime = server_runtime(Policy::KernelPolling, 1);
        assert_eq!(netdev.napi(id).unwrap().gro_flush_timeout, Some(0));
        netdev.set_napi(id, NapiSetting::GroFlushTimeout, 123_456).unwrap();
        drop(runtime);
        assert_eq!(netdev.napi(id).unwrap().gro_flush_timeout, Some(before));
    }
    // No watchdog is longer than 2 ms, and no poll interval: a longer time was set by somebody
    // else.
    let runtime = server_runtime(Policy::KernelPolling, 1);
    netdev.set_napi(id, NapiSetting::GroFlushTimeout, 2_000_001).unwrap();
    drop(runtime);
    assert_eq!(netdev.napi(id).unwrap().gro_flush_timeout, Some(2_000_001));
    // No controller changes a fixed grace time: a different value was set by somebody else.
    netdev.set_napi(id, NapiSetting::GroFlushTimeout, 0).unwrap();
    let grace = "200".parse().unwrap();
    let runtime = server_builder(Policy::KernelPolling, 1).grace_time(grace).build().unwrap();
    netdev.set_napi(id, NapiSetting::GroFlushTimeout, 123_456).unwrap();
    drop(runtime);
    let left = netdev.napi(id).unwrap();
    assert_eq!((left.gro_flush_timeout, left.defer_hard_irqs), (Some(123_456), Some(0)));
}

#[testbed_test(drivers = "epoll, uring")]
fn a_renamed_interface_keeps_its_policy_and_is_restored_under_its_new_name() {
    let _testbed = enter(1);
    let fresh = napi();
    let (runtime, changes) = polling_with_changes();
    ip(&["link", "set", SERVER_INTERFACE, "name", "renamed0"]);
    let change = changes.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(change, "the interface is now named renamed0");
    // A setting that is lost after that is applied under the new name.
    let mut netdev = Netdev::open().unwrap();
    netdev.set_napi(fresh.id, NapiSetting::DeferHardIrqs, 0).unwrap();
    ip(&["link", "set", "renamed0", "mtu", "1400"]);
    wait_until("the setting is applied again", || {
        netdev.napi(fresh.id).unwrap().defer_hard_irqs == Some(policies::Settings::DEFER_HARD_IRQS)
    });
    drop(runtime);
    let mut after = netdev.napi(fresh.id).unwrap();
    // As `napi` does.
    after.pid = None;
    assert_eq!(after, fresh);
    assert!(!std::path::Path::new("/run/lull").exists());
}

#[testbed_test(drivers = "epoll, uring")]
fn an_interface_that_is_moved_away_is_reported_gone_and_needs_no_restore() {
    let testbed = enter(1);
    let (runtime, changes) = polling_with_changes();
    let elsewhere = std::os::fd::AsRawFd::as_raw_fd(testbed.client.file());
    let elsewhere = format!("/proc/{}/fd/{elsewhere}", std::process::id());
    ip(&["link", "set", SERVER_INTERFACE, "netns", &elsewhere]);
    let change = changes.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(change, "the interface is gone");
    drop(runtime);
    assert!(!std::path::Path::new("/run/lull").exists());
}

#[testbed_test(drivers = "epoll, uring")]
fn an_interface_that_comes_back_with_another_index_gets_its_policy_again() {
    let _testbed = enter(1);
    let (runtime, changes) = polling_with_changes();
    let before = napi();
    // The supervisor, which knows an interface only after it has seen it, writes the status after
    // that.
    wait_until("the supervisor has seen the interface", has_status);
    replace_interface(&changes);
    let again = napi();
    assert_ne!(again.id, before.id);
    assert_eq!(values(&again), values(&before));
    // Followed as before: a setting that is lost is set again.
    Netdev::open().unwrap().set_napi(again.id, NapiSetting::DeferHardIrqs, 0).unwrap();
    ip(&["link", "set", SERVER_INTERFACE, "mtu", "1400"]);
    wait_until("the setting is applied again", || napi().defer_hard_irqs == before.defer_hard_irqs);
    drop(runtime);
    assert_eq!(values(&napi()), [Some(0); 3]);
    assert!(!std::path::Path::new("/run/lull").exists());
}

#[testbed_test]
fn an_interface_that_comes_back_has_the_values_that_the_controllers_have_chosen_last() {
    let _testbed = enter(1);
    let (told, seen) = std::sync::mpsc::channel();
    let (_supervisor, requests, changes) = supervised_queue(None, move || _ = told.send(()));
    let settings = QueueSettings::fixed(PollInterval::default());
    assert_eq!(answer(&requests, settings), Ok(()));
    let before = napi();
    assert_ne!(before.defer_hard_irqs, Some(0));
    // The supervisor knows an interface only after it has seen it.
    seen.recv_timeout(Duration::from_secs(60)).unwrap();
    replace_interface(&changes);
    assert_eq!(values(&napi()), values(&before));
}

#[testbed_test]
fn a_delegate_that_was_late_is_asked_again_and_the_worker_learns_that_the_values_are_set() {
    let _testbed = enter(1);
    let mut calls = 0;
    let delegate = move |_: &AdaptedQueue| {
        calls += 1;
        if calls < 3 { Err(std::io::ErrorKind::TimedOut.into()) } else { Ok(()) }
    };
    let (told, gave_up) = std::sync::mpsc::channel();
    // The supervisor's thread gives up its privileges.
    let give_up = move || {
        let none = CapabilitySet::empty();
        let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
        set_capabilities(None, sets).unwrap();
        let _ = told.send(());
    };
    let (_supervisor, requests, changes) = supervised_queue(Some(Box::new(delegate)), give_up);
    gave_up.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(answer(&requests, QueueSettings::fixed(PollInterval::default())), Ok(()));
    let changes: Vec<String> = changes.try_iter().collect();
    let failures = changes.iter().filter(|change| change.contains("keeps its values")).count();
    assert_eq!(failures, 1, "{changes:?}");
}

/// Deferrals, grace time and suspend timeout.
fn values(napi: &Napi) -> [Option<u64>; 3] {
    [napi.defer_hard_irqs, napi.gro_flush_timeout, napi.irq_suspend_timeout]
}

fn next(changes: &Receiver<String>, expected: &str) {
    while let Ok(change) = changes.recv_timeout(Duration::from_secs(60)) {
        if change.contains(expected) {
            return;
        }
    }
    panic!("{expected} was not reported");
}

/// Deletes the interface, and makes another one of its name, whose queues have NAPIs only later.
fn replace_interface(changes: &Receiver<String>) {
    ip(&["link", "del", SERVER_INTERFACE]);
    next(changes, "the interface is gone");
    ip(&["link", "add", SERVER_INTERFACE, "index", "7777", "type", "veth", "peer", "name", "other"]);
    ip(&["link", "set", "other", "up"]);
    ip(&["link", "set", SERVER_INTERFACE, "up"]);
    next(changes, "without its policy: its driver has not set up all of its queues yet");
    Ethtool::open().unwrap().set_features(7777, &[("rx-gro", true)]).unwrap();
    next(changes, "the interface is back as lull-server, and has its policy");
}

/// A supervisor whose queue 0 can be adapted, and the changes that it reports. It calls `on_tick`
/// when it has seen the interface, and then each second.
fn supervised_queue(
    delegate: Option<Box<QueueDelegate>>,
    mut on_tick: impl FnMut() + Send + 'static,
) -> (Supervisor, Arc<QueueRequests>, Receiver<String>) {
    let guard = apply(Policy::KernelPolling, &Settings::default());
    let (sender, changes) = std::sync::mpsc::channel();
    let requests = Arc::new(QueueRequests::new().unwrap());
    let on_tick = Box::new(move |_| on_tick());
    let hooks = SupervisorHooks { requests: Arc::clone(&requests), delegate, on_tick, takes_back: true };
    let on_change = move |change: &Change| drop(sender.send(change.to_string()));
    (Supervisor::start(guard, Affinity::None, on_change, hooks).unwrap(), requests, changes)
}

/// Asks for settings of queue 0, and waits for the answer.
fn answer(requests: &QueueRequests, settings: QueueSettings) -> Result<(), String> {
    wait_until("the supervisor is asked", || requests.request(0, settings));
    let mut answer = None;
    wait_until("the supervisor answers", || {
        answer = requests.take_answer(0);
        answer.is_some()
    });
    answer.unwrap()
}

/// A runtime under kernel polling with a fixed grace time of 50 µs, and the changes of its
/// interface that it reports.
fn polling_with_changes() -> (Runtime, Receiver<String>) {
    let (sender, changes) = std::sync::mpsc::channel();
    let builder = server_builder(Policy::KernelPolling, 1).grace_time("50".parse().unwrap());
    let builder = builder.on_host_change(move |change| drop(sender.send(change.to_string())));
    (builder.build().unwrap(), changes)
}

/// Whether a supervisor of this network namespace has written which workers it has.
fn has_status() -> bool {
    !statuses().is_empty()
}

/// What supervisors of this network namespace have written of their workers.
fn statuses() -> String {
    let files = std::fs::read_dir("/run/lull").into_iter().flatten().flatten();
    let paths = files.map(|file| file.path());
    let workers = paths.filter(|path| path.extension().is_some_and(|it| it == "workers"));
    workers.filter_map(|path| std::fs::read_to_string(path).ok()).collect()
}
