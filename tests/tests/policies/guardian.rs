//! The memcached server's guardian: a process that keeps root privileges after the server has
//! dropped them.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab::testbed::{SERVER_ADDRESS, SERVER_INTERFACE, Testbed};
use policies::host::scheduler;
use policies::{Pid, Policy, Settings};
use rustix::process::{Signal, kill_process};
use tests::closed_loop::{Exchange, Load};
use tests::control_group::ControlGroup;
use tests::memcached::{Memcached, command, free_port, wait_until};
use tests::testbed::{apply, enter, is_deferred, napi, steer_to};
use tests::{KillOnDrop, isolated, policies_command, testbed_test};

use super::crash_recovery::{restore_all, settings};

/// Eight requests at once, so that the server is busy and the clients are not.
const MISSES: Exchange = Exchange {
    request: b"get k\r\nget k\r\nget k\r\nget k\r\nget k\r\nget k\r\nget k\r\nget k\r\n",
    end: b"END\r\nEND\r\nEND\r\nEND\r\nEND\r\nEND\r\nEND\r\nEND\r\n",
};

/// Whether no thread of the process has an effective capability.
pub(super) fn is_unprivileged(process: u32) -> bool {
    std::fs::read_dir(format!("/proc/{process}/task")).unwrap().all(|task| {
        // A thread that has ended meanwhile has none.
        let Ok(status) = std::fs::read_to_string(task.unwrap().path().join("status")) else { return true };
        let capable = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
        capable.trim().trim_start_matches('0').is_empty()
    })
}

/// A server without capabilities on the testbed's interface, and its guardian.
pub(super) struct Guarded {
    server: Memcached,
    port: u16,
    /// The guardian's process id.
    pub(super) guardian: u32,
}

impl Guarded {
    pub(super) fn start(policy: Policy) -> Self {
        let port = free_port();
        let arguments = format!(
            "-t 1 -u nobody --cores 0 -l {SERVER_ADDRESS},127.0.0.1 -p {port} --interface {SERVER_INTERFACE} \
             --policy {policy} --poll-interval 1000"
        );
        let server = Memcached::run(command().args(arguments.split(' ')), port);
        let pid = server.child.id();
        wait_until("the server has no capabilities", || is_unprivileged(pid));
        Self { guardian: child_of(pid).unwrap(), server, port }
    }

    /// Returns when the guardian has ended. It has restored nothing then.
    fn kill_guardian(&self) {
        kill(self.guardian, Signal::KILL);
        wait_until("the guardian has ended", || child_of(self.server.child.id()).is_none_or(is_zombie));
    }

    /// Ends the server, in order unless the signal is SIGKILL. Returns its standard error.
    fn end_server(&mut self, signal: Signal) -> String {
        self.server.signal(signal);
        assert_eq!(self.server.wait().success(), signal != Signal::KILL);
        self.server.standard_error()
    }

    pub(super) fn kill_server(&mut self) {
        self.end_server(Signal::KILL);
    }

    /// A load on its only worker, which is real-time: other programs on the core would keep it from
    /// being saturated.
    fn load(&self, testbed: &Testbed) -> Load {
        let pid = Pid::from_raw(self.server.child.id().try_into().unwrap()).unwrap();
        scheduler::set_fifo_priority(pid, 1).unwrap();
        Load::open(testbed, (SERVER_ADDRESS, self.port).into(), 16, MISSES)
    }
}

pub(super) fn child_of(parent: u32) -> Option<u32> {
    let processes =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    processes.filter_map(|name| name.parse().ok()).find(|pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status
            .lines()
            .any(|line| line.strip_prefix("PPid:").is_some_and(|it| it.trim() == parent.to_string()))
    })
}

fn kill(process: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(process).unwrap()).unwrap(), signal).unwrap();
}

pub(super) fn wait_restored(fresh: &serde_json::Value) {
    wait_until("the guardian restores the settings", || settings() == *fresh);
    wait_until("the guardian removes the journal", || !Path::new("/run/lull").exists());
}

#[testbed_test]
fn under_each_policy_settings_come_back_whether_server_guardian_or_both_are_killed() {
    let _testbed = enter(1);
    steer_to(1);
    let fresh = settings();
    let start = |policy| {
        let guarded = Guarded::start(policy);
        let held = settings();
        assert_ne!(held, fresh, "{policy} sets nothing");
        // A restore leaves the settings of a server that runs.
        let restored = policies_command(&["restore"]).output().unwrap();
        assert!(restored.status.success(), "{policy}: {restored:?}");
        assert_eq!(settings(), held, "{policy}: {restored:?}");
        guarded
    };
    let restore = |policy| {
        assert_ne!(settings(), fresh, "{policy}: nobody could restore them");
        restore_all(&fresh, &format!("{policy}"));
    };
    let group = ControlGroup::new();
    for policy in Policy::ALL {
        for signal in [Signal::KILL, Signal::TERM] {
            let log = start(policy).end_server(signal);
            wait_restored(&fresh);
            assert!(!log.contains("ERROR"), "{policy}: {log}");

            // Without its guardian the server may not restore them itself, also if it ends in order,
            // and says how to.
            let mut guarded = start(policy);
            guarded.kill_guardian();
            let log = guarded.end_server(signal);
            let says_how = log.contains("ERROR") && log.contains("policies restore");
            assert!(signal == Signal::KILL || says_how, "{policy}: {log}");
            restore(policy);
        }

        let Some(group) = &group else { continue };
        let mut guarded = start(policy);
        for process in [guarded.server.child.id(), guarded.guardian] {
            group.add(process);
        }
        group.kill();
        guarded.server.wait();
        wait_until("the guardian has ended", || group.is_empty());
        restore(policy);
    }
}

pub(super) fn is_zombie(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    status.is_empty() || status.lines().any(|line| line.starts_with("State:") && line.contains('Z'))
}

/// In the process that
/// [`a_guardian_stays_while_its_server_holds_its_settings_whatever_else_it_restores`] has started:
/// applies a policy and starts a guardian. After a line on standard input it closes the guardian's
/// pipe, and keeps running.
fn stands_for_a_server() -> bool {
    if std::env::var_os("GUARDED").is_none() {
        return false;
    }
    let _guard = apply(Policy::KernelPolling, &Settings::default());
    let mut guardian = Command::new(tests::memcached::binary());
    guardian.env("LULL_GUARDIAN", "1").stdin(Stdio::piped()).stdout(Stdio::null());
    let mut guardian = guardian.spawn().unwrap();
    println!("applied");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    drop(guardian.stdin.take());
    std::thread::sleep(Duration::from_secs(60));
    guardian.wait().unwrap();
    true
}

#[testbed_test]
fn a_guardian_stays_while_its_server_holds_its_settings_whatever_else_it_restores() {
    if stands_for_a_server() {
        return;
    }
    let _testbed = enter(1);
    let fresh = settings();
    let (mut server, _) = KillOnDrop::start_until(isolated::once_more().env("GUARDED", "1"), "applied");
    let held = settings();
    assert_ne!(held, fresh);
    // A journal of a process that has ended, with nothing in it.
    let own = fs::read_dir("/run/lull").unwrap().map(|entry| entry.unwrap().path());
    let own = own.into_iter().find(|path| path.extension().is_some_and(|it| it == "json")).unwrap();
    let mut journal: serde_json::Value = serde_json::from_slice(&fs::read(&own).unwrap()).unwrap();
    (journal["writer"]["pid"], journal["writer"]["start"]) = (std::process::id().into(), 1.into());
    (journal["entries"], journal["sequence"]) = (serde_json::json!([]), 99.into());
    let stale = own.with_file_name("stale-s99.json");
    fs::write(&stale, journal.to_string()).unwrap();
    // One that nobody can restore: the guardian must not give up because of it.
    let damaged = own.with_file_name("damaged-s98.json");
    fs::write(&damaged, "{").unwrap();
    drop(server.stdin.take());
    wait_until("the other journal is restored", || !stale.exists());
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(settings(), held, "restored under a running process");
    server.kill().unwrap();
    server.wait().unwrap();
    wait_until("the server's settings are restored", || settings() == fresh);
    fs::remove_file(damaged).unwrap();
}

#[testbed_test]
fn the_queue_of_an_unprivileged_server_is_adapted_and_after_sigkill_restored() {
    let testbed = enter(1);
    let before = napi();
    let mut guarded = Guarded::start(Policy::KernelPolling);
    assert!(!is_deferred(), "{:?}", napi());
    let load = guarded.load(&testbed);
    // No request is under way when the server is killed, and the controller has not yet seen that
    // the queue is idle.
    wait_until("the controller defers interrupts", || {
        load.on();
        wait_until("interrupts are deferred", is_deferred);
        load.off();
        wait_until("all requests are answered", || load.in_flight() == 0);
        is_deferred()
    });
    guarded.kill_server();
    assert!(load.end() > 0);
    wait_until("the guardian restores the queue", || napi() == before);
    wait_until("the guardian removes the journal", || !std::path::Path::new("/run/lull").exists());
}

#[testbed_test]
fn a_guardian_that_is_stopped_keeps_its_server_neither_from_serving_nor_from_ending() {
    let testbed = enter(1);
    let guarded = Guarded::start(Policy::KernelPolling);
    let load = guarded.load(&testbed);
    let Guarded { mut server, guardian, .. } = guarded;
    kill(guardian, Signal::STOP);
    load.on();
    // The controller asks for other values, and gets no answer.
    wait_until("the guardian has a request", || has_unread_input(guardian));
    // The queue keeps its values, and the log says why.
    wait_until("the supervisor gives up", || {
        let log = server.standard_error();
        log.contains("keeps its values") && log.contains("the guardian hangs or was stopped")
    });
    wait_until("so does the worker", || server.standard_error().contains("the supervisor does not answer"));
    assert!(!is_deferred(), "{:?}", napi());
    assert_eq!(server.talk(b"mn\r\n"), b"MN\r\n");
    assert!(load.end() > 0);
    server.signal(Signal::TERM);
    let end = Instant::now() + Duration::from_secs(20);
    while server.child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "the server waits for its guardian");
        std::thread::sleep(Duration::from_millis(20));
    }
    kill(guardian, Signal::CONT);
    wait_until("the guardian removes the journal", || !Path::new("/run/lull").exists());
}

/// Whether something was written to a process's standard input that it has not read.
fn has_unread_input(process: u32) -> bool {
    let input = fs::File::open(format!("/proc/{process}/fd/0")).unwrap();
    rustix::io::ioctl_fionread(&input).unwrap() > 0
}
