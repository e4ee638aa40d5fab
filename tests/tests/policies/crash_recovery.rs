//! `policies apply`, `policies restore`, the memcached server and its guardian, killed before each of their system calls
//! that changes something.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use lab::testbed::SERVER_INTERFACE;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use policies::netlink::netdev::{NapiSetting, Netdev};
use policies::{Cpus, Policy, host};
use serial_test::serial;
use tests::isolated;
use tests::testbed::enter;

use super::guardian::{self, Guarded};

/// System calls with a lasting effect: wherever a process is killed between two of them, the outcome is the
/// same. Messages to the kernel are among them, including requests that only read. Opening is not: a file
/// that it creates exists when the next call comes.
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

/// Older forms, which some architectures lack.
#[cfg(target_arch = "x86_64")]
const OLDER: [i64; 5] =
    [libc::SYS_rename, libc::SYS_unlink, libc::SYS_mkdir, libc::SYS_rmdir, libc::SYS_link];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: [i64; 0] = [];

/// Runs a command, and kills it before its `stop`-th such call. Returns the number of calls it reached. If it is not
/// killed, its exit status must be at most `status`.
#[expect(clippy::zombie_processes, reason = "it is waited for by its number")]
fn run_until(command: &[&str], stop: usize, status: i32) -> usize {
    // The shell stops itself until it is traced, so that nothing has to run between fork and exec.
    let child = Command::new("sh")
        .args(["-c", "kill -STOP $$; exec \"$@\"", "sh"])
        .args(command)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    waitpid(pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
    seize(pid);
    // Else threads that it starts would be stopped, too.
    nix::sys::signal::kill(pid, Signal::SIGCONT).unwrap();
    trace_until(pid, stop, status)
}

fn seize(pid: Pid) {
    ptrace::seize(pid, ptrace::Options::PTRACE_O_EXITKILL | ptrace::Options::PTRACE_O_TRACESYSGOOD).unwrap();
}

/// Lets a process that was seized go on, and kills it before its `stop`-th call that changes something; see
/// [`run_until`].
fn trace_until(pid: Pid, stop: usize, status: i32) -> usize {
    let (mut stops, mut enters) = (0, false);
    loop {
        match waitpid(pid, None).unwrap() {
            // The process stops before each call and after it.
            WaitStatus::PtraceSyscall(_) => {
                enters = !enters;
                if enters && is_change(pid) {
                    stops += 1;
                    if stops == stop {
                        nix::sys::signal::kill(pid, Signal::SIGKILL).unwrap();
                    }
                }
            }
            WaitStatus::Exited(_, code) => {
                assert!((0..=status).contains(&code), "{code}");
                return stops;
            }
            WaitStatus::Signaled(_, signal, _) => {
                assert_eq!((signal, stops), (Signal::SIGKILL, stop));
                return stops;
            }
            _ => {}
        }
        // Fails if it was just killed.
        let _ = ptrace::syscall(pid, None);
    }
}

fn is_change(pid: Pid) -> bool {
    let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    let number = call.split(' ').next().and_then(|number| number.parse().ok());
    number.is_some_and(|number| CHANGES.contains(&number) || OLDER.contains(&number))
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
    let steering = format!("/sys/class/net/{SERVER_INTERFACE}/queues/rx-0/rps_cpus");
    std::fs::write(&steering, "2").unwrap();
    settings()
}

/// Restores, and checks that everything is as it was.
fn restore_all(policies: &str, fresh: &serde_json::Value, when: &str) {
    let restored = Command::new(policies).arg("restore").output().unwrap();
    let stdout = String::from_utf8_lossy(&restored.stdout).into_owned();
    assert!(restored.status.success(), "{when}: {stdout} {restored:?}");
    assert!(restored.status.signal().is_none());
    assert_eq!(settings(), *fresh, "{when}: {stdout}");
    assert!(!std::path::Path::new("/run/lull").exists(), "{when}: {stdout}");
}

#[test]
#[isolated(root)]
#[serial]
fn wherever_an_apply_is_killed_restore_puts_everything_back() {
    let _testbed = enter(1);
    // This thread and the process that it traces take turns, thousands of times. On one core no wake-up crosses cores,
    // which on a virtual machine takes most of the time.
    Cpus::one(1).pin(None).unwrap();
    let fresh = set_by_operator();
    let policies = tests::own_program("policies");
    let policies = policies.to_str().unwrap();
    for policy in Policy::ALL {
        let apply = [policies, "apply", SERVER_INTERFACE, "--policy", policy.name(), "--worker-cores", "0"];
        // Where the kernel has no threads that poll all the time, vanilla is applied, and the command fails.
        let status = i32::from(policy == Policy::KernelThread);
        let stops = run_until(&apply, usize::MAX, status);
        assert_ne!(settings(), fresh, "{policy} sets nothing");
        assert!(stops > 15, "{policy}: {stops}");
        for stop in 0..=stops {
            if stop > 0 {
                run_until(&apply, stop, status);
            }
            restore_all(policies, &fresh, &format!("{policy} killed at {stop} of {stops}"));
        }
        println!("{policy}: killed at {stops} steps");
    }
}

#[test]
#[isolated(root)]
#[serial]
fn wherever_a_restore_is_killed_the_next_one_puts_everything_back() {
    let _testbed = enter(1);
    Cpus::one(1).pin(None).unwrap();
    let fresh = set_by_operator();
    let policies = tests::own_program("policies");
    let policies = policies.to_str().unwrap();
    let apply = || {
        let policy = ["--policy", Policy::KernelPolling.name(), "--worker-cores", "0"];
        let applied = Command::new(policies).args(["apply", SERVER_INTERFACE]).args(policy).output().unwrap();
        assert!(applied.status.success(), "{applied:?}");
        assert_ne!(settings(), fresh);
    };
    apply();
    let stops = run_until(&[policies, "restore"], usize::MAX, 0);
    assert!(stops > 5, "{stops}");
    for stop in 1..=stops {
        apply();
        run_until(&[policies, "restore"], stop, 0);
        restore_all(policies, &fresh, &format!("killed at {stop} of {stops}"));
    }
    println!("killed at {stops} steps");
}

#[test]
#[isolated(root)]
#[serial]
fn wherever_a_servers_start_is_killed_restore_puts_everything_back() {
    let _testbed = enter(1);
    Cpus::one(1).pin(None).unwrap();
    let fresh = set_by_operator();
    let policies = tests::own_program("policies");
    let policies = policies.to_str().unwrap();
    // It applies the policy, and then ends by itself because it can't listen.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let program = tests::memcached::binary();
    let policy = ["--interface", SERVER_INTERFACE, "--policy", Policy::KernelPolling.name()];
    let mut server = vec![program.to_str().unwrap(), "-u", "root", "-t", "1", "--cores", "0"];
    server.extend(["-l", "127.0.0.1", "-p", &port]);
    server.extend(policy);
    let stops = run_until(&server, usize::MAX, 127);
    assert_eq!(settings(), fresh, "it restores them itself");
    assert!(stops > 15, "{stops}");
    let mut killed_with_settings = 0;
    // All of them would take half a minute.
    for stop in (1..=stops).step_by(3) {
        run_until(&server, stop, 127);
        killed_with_settings += usize::from(settings() != fresh);
        restore_all(policies, &fresh, &format!("killed at {stop} of {stops}"));
    }
    assert!(killed_with_settings > 5, "{killed_with_settings} of {stops}");
    println!("killed at {stops} steps, {killed_with_settings} of them with settings");
}

#[test]
#[isolated(root)]
#[serial]
fn wherever_the_guardian_is_killed_the_next_restore_puts_everything_back() {
    let _testbed = enter(1);
    let fresh = set_by_operator();
    let policies = tests::own_program("policies");
    let policies = policies.to_str().unwrap();
    let end = |stop: usize| {
        let mut guarded = Guarded::start(Policy::KernelPolling);
        let pid = Pid::from_raw(i32::try_from(guarded.guardian).unwrap());
        seize(pid);
        // It waits for requests of the server.
        ptrace::interrupt(pid).unwrap();
        guarded.kill_server();
        trace_until(pid, stop, 0)
    };
    let stops = end(usize::MAX);
    assert!(stops > 5, "{stops}");
    guardian::wait_restored(&fresh);
    for stop in 1..=stops {
        end(stop);
        restore_all(policies, &fresh, &format!("killed at {stop} of {stops}"));
    }
    println!("killed at {stops} steps");
}
