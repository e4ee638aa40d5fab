//! `policies apply`, killed before each of its system calls that changes something.

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
    ptrace::seize(pid, ptrace::Options::PTRACE_O_EXITKILL | ptrace::Options::PTRACE_O_TRACESYSGOOD).unwrap();
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
                assert!((0..=status).contains(&code), "{command:?}: {code}");
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
fn settings() -> serde_json::Value {
    let mut interface = serde_json::json!(host::interface(SERVER_INTERFACE).unwrap());
    for queue in interface["queues"].as_array_mut().unwrap() {
        // The id of a thread that is started and ended.
        queue["napi"]["pid"].take();
    }
    interface["notes"].take();
    interface
}

#[test]
#[isolated(root)]
#[serial]
fn wherever_an_apply_is_killed_restore_puts_everything_back() {
    let _testbed = enter(1);
    // This thread and the process that it traces take turns, thousands of times. On one core no wake-up crosses cores,
    // which on a virtual machine takes most of the time.
    Cpus::one(1).pin(None).unwrap();
    // Values of an operator, which only a restore brings back.
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
    let fresh = settings();
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
            let restored = Command::new(policies).arg("restore").output().unwrap();
            let stdout = String::from_utf8_lossy(&restored.stdout).into_owned();
            assert!(restored.status.success(), "{policy} killed at {stop}: {stdout} {restored:?}");
            assert!(restored.status.signal().is_none());
            assert_eq!(settings(), fresh, "{policy} killed at {stop} of {stops}: {stdout}");
            assert!(!std::path::Path::new("/run/lull").exists(), "{policy} killed at {stop}: {stdout}");
        }
        println!("{policy}: killed at {stops} steps");
    }
}
