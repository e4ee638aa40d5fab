//! `policies apply`, `policies restore`, the memcached server and its guardian, killed before each
//! of their system calls that changes something.

use std::os::unix::process::ExitStatusExt;

use lab::testbed::SERVER_INTERFACE;
use policies::netlink::netdev::{NapiSetting, Netdev};
use policies::{Cpus, Policy, host};
use tests::kill_at_call::{OLDER, SystemCall, Traced, run_until, seize, trace_until};
use tests::testbed::{enter, steer_to};
use tests::{policies_command, testbed_test};

use super::guardian::{self, Guarded};

/// System calls with a lasting effect: wherever a process is killed between two of them, the
/// outcome is the same. Messages to the kernel are among them, including requests that only read.
/// Opening is not: a file that it creates exists when the next call comes.
const CHANGES: [i64; 17] = [
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_ioctl,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_unlinkat,
    libc::SYS_linkat,
    libc::SYS_mkdirat,
    libc::SYS_ftruncate,
    libc::SYS_fchmod,
    libc::SYS_flock,
    libc::SYS_fsync,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setscheduler,
];

fn is_change(call: &SystemCall) -> bool {
    CHANGES.contains(&call.number) || OLDER.contains(&call.number)
}

/// All settings that a policy may change on the testbed.
pub(super) fn settings() -> serde_json::Value {
    let mut interface = serde_json::json!(host::interface(SERVER_INTERFACE).unwrap());
    for queue in interface["queues"].as_array_mut().unwrap() {
        // The id of a thread that is started and ended.
        queue["napi"]["pid"].take();
    }
    interface["notes"].take();
    interface
}

/// Sets values of an operator, which only a restore brings back. Returns all settings.
fn set_by_operator() -> serde_json::Value {
    let mut netdev = Netdev::open().unwrap();
    let napi = host::interface(SERVER_INTERFACE).unwrap().napi_ids()[0];
    for (setting, value) in [
        (NapiSetting::DeferHardIrqs, 3),
        (NapiSetting::GroFlushTimeout, 777_000),
        (NapiSetting::IrqSuspendTimeout, 5_000_000),
    ] {
        netdev.set_napi(napi, setting, value).unwrap();
    }
    steer_to(1);
    settings()
}

/// Restores, and checks that everything is as it was.
pub(super) fn restore_all(fresh: &serde_json::Value, when: &str) {
    let restored = policies_command(&["restore"]).output().unwrap();
    let stdout = String::from_utf8_lossy(&restored.stdout).into_owned();
    assert!(restored.status.success(), "{when}: {stdout} {restored:?}");
    assert!(restored.status.signal().is_none());
    assert_eq!(settings(), *fresh, "{when}: {stdout}");
    assert!(!std::path::Path::new("/run/lull").exists(), "{when}: {stdout}");
}

/// Kills come before every tenth call, or before each with `LULL_EVERY_CALL`, which takes minutes.
fn step() -> usize {
    if std::env::var_os("LULL_EVERY_CALL").is_some() { 1 } else { 10 }
}

#[testbed_test]
fn wherever_an_apply_is_killed_restore_puts_everything_back() {
    let _testbed = enter(1);
    // This thread and the process that it traces take turns, thousands of times. On one core no
    // wake-up crosses cores, which on a virtual machine takes most of the time.
    Cpus::one(1).pin(None).unwrap();
    let fresh = set_by_operator();
    let policies = tests::own_program("policies");
    let policies = policies.to_str().unwrap();
    for policy in Policy::ALL {
        let apply = [policies, "apply", SERVER_INTERFACE, "--policy", policy.name(), "--worker-cores", "0"];
        let apply = [&apply[..], &["--all-programs"]].concat();
        // Where the kernel has no threads that poll all the time, vanilla is applied, and the
        // command fails.
        let status = i32::from(policy == Policy::KernelThread);
        let stops = run_until(&apply, Traced::All, usize::MAX, status, is_change);
        assert_ne!(settings(), fresh, "{policy} sets nothing");
        assert!(stops > 15, "{policy}: {stops}");
        for stop in (0..=stops).step_by(step()) {
            if stop > 0 {
                run_until(&apply, Traced::All, stop, status, is_change);
            }
            restore_all(&fresh, &format!("{policy} killed at {stop} of {stops}"));
        }
        println!("{policy}: killed at {stops} steps");
    }
}

#[testbed_test]
fn wherever_a_restore_is_killed_the_next_one_puts_everything_back() {
    let _testbed = enter(1);
    Cpus::one(1).pin(None).unwrap();
    let fresh = set_by_operator();
    let policies = tests::own_program("policies");
    let policies = policies.to_str().unwrap();
    let apply = || {
        let arguments = ["apply", SERVER_INTERFACE, "--policy", "kernel-polling", "--worker-cores", "0"];
        let applied = policies_command(&arguments).output().unwrap();
        assert!(applied.status.success(), "{applied:?}");
        assert_ne!(settings(), fresh);
    };
    apply();
    let stops = run_until(&[policies, "restore"], Traced::All, usize::MAX, 0, is_change);
    assert!(stops > 5, "{stops}");
    for stop in (1..=stops).step_by(step()) {
        apply();
        run_until(&[policies, "restore"], Traced::All, stop, 0, is_change);
        restore_all(&fresh, &format!("killed at {stop} of {stops}"));
    }
    println!("killed at {stops} steps");
}

#[testbed_test]
fn wherever_a_servers_start_is_killed_restore_puts_everything_back() {
    let _testbed = enter(1);
    Cpus::one(1).pin(None).unwrap();
    let fresh = set_by_operator();
    // It applies the policy, and then ends by itself because it can't listen.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let program = tests::memcached::binary();
    let program = program.to_str().unwrap();
    let policy = ["--interface", SERVER_INTERFACE, "--policy", "kernel-polling"];
    let server = [program, "-u", "root", "-t", "1", "--cores", "0", "-l", "127.0.0.1", "-p", &port];
    let server = [&server[..], &policy].concat();
    let stops = run_until(&server, Traced::FirstThread, usize::MAX, 127, is_change);
    assert_eq!(settings(), fresh, "it restores them itself");
    assert!(stops > 15, "{stops}");
    let mut killed_with_settings = 0;
    for stop in (1..=stops).step_by(step()) {
        run_until(&server, Traced::FirstThread, stop, 127, is_change);
        killed_with_settings += usize::from(settings() != fresh);
        restore_all(&fresh, &format!("killed at {stop} of {stops}"));
    }
    assert!(killed_with_settings > 1, "{killed_with_settings} of {stops}");
    println!("killed at {stops} steps, {killed_with_settings} of them with settings");
}

#[testbed_test]
fn wherever_the_guardian_is_killed_the_next_restore_puts_everything_back() {
    let _testbed = enter(1);
    let fresh = set_by_operator();
    let end = |stop: usize| {
        let mut guarded = Guarded::start(Policy::KernelPolling);
        let pid = seize(guarded.guardian);
        guarded.kill_server();
        trace_until(pid, Traced::FirstThread, stop, 0, is_change)
    };
    let stops = end(usize::MAX);
    assert!(stops > 5, "{stops}");
    guardian::wait_restored(&fresh);
    for stop in (1..=stops).step_by(step()) {
        end(stop);
        restore_all(&fresh, &format!("killed at {stop} of {stops}"));
    }
    println!("killed at {stops} steps");
}
