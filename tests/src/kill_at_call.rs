//! Kills a command before one of its system calls.

use std::collections::HashSet;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use nix::sys::ptrace::{self, Event};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::seccomp;

/// Older forms of system calls with a lasting effect, which some architectures lack.
#[cfg(target_arch = "x86_64")]
pub const OLDER: [i64; 5] =
    [libc::SYS_rename, libc::SYS_unlink, libc::SYS_mkdir, libc::SYS_rmdir, libc::SYS_link];
#[cfg(not(target_arch = "x86_64"))]
pub const OLDER: [i64; 0] = [];

#[derive(Debug, Clone)]
pub struct SystemCall {
    pub thread: Pid,
    /// Its number, as in `libc::SYS_write`.
    pub number: i64,
    /// Its arguments, as in the registers; unused ones have any value.
    pub arguments: [u64; 6],
}

impl SystemCall {
    /// As `/proc/TID/syscall` shows it: `1 0x2 0x7ffd8 0x5 0x0 0x0 0x0 0x7ffd0 0x7f2c1`.
    fn of(thread: Pid) -> Option<Self> {
        // The thread may have been killed.
        let text = std::fs::read_to_string(format!("/proc/{thread}/syscall")).ok()?;
        let mut words = text.split_whitespace();
        let number = words.next()?.parse().ok()?;
        let mut arguments = [0; 6];
        for (argument, word) in arguments.iter_mut().zip(words) {
            *argument = u64::from_str_radix(word.trim_start_matches("0x"), 16).ok()?;
        }
        Some(Self { thread, number, arguments })
    }
}

#[derive(Debug, Clone, Copy)]
pub enum Traced<'a> {
    /// All. Each call stops its thread twice, so a command that makes many of them takes long.
    All,
    /// These numbers only: the others cost nothing. Needs python3, for the
    /// [filter](crate::seccomp).
    Only(&'a [i64]),
}

/// Runs a command, and kills it before the `stop`-th system call of its threads that `counts`.
/// Returns the number of such calls that it reached. Processes that it starts are not followed. An
/// exit status above `status` fails the test.
#[expect(clippy::zombie_processes, reason = "it is waited for by its number")]
pub fn run_until(
    command: &[&str],
    traced: Traced<'_>,
    stop: usize,
    status: i32,
    counts: impl Fn(&SystemCall) -> bool,
) -> usize {
    let filter = match traced {
        Traced::All => Vec::new(),
        Traced::Only(numbers) => seccomp::traced(numbers),
    };
    // The shell stops itself until it is traced, so that nothing has to run between fork and exec.
    let child = Command::new("sh")
        .args(["-c", "kill -STOP $$; exec \"$@\"", "sh"])
        .args(filter)
        .args(command)
        .stdout(Stdio::null())
        // All its threads can be waited for by the group, and no other child.
        .process_group(0)
        .spawn()
        .expect("sh");
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process id"));
    let group = Pid::from_raw(-pid.as_raw());
    waitpid(pid, Some(WaitPidFlag::WUNTRACED)).expect("the shell stops");
    let options = ptrace::Options::PTRACE_O_EXITKILL
        | ptrace::Options::PTRACE_O_TRACESYSGOOD
        | ptrace::Options::PTRACE_O_TRACESECCOMP
        | ptrace::Options::PTRACE_O_TRACECLONE;
    ptrace::seize(pid, options).expect("the shell can be traced");
    let (mut stops, mut inside) = (0, HashSet::new());
    loop {
        let (thread, signal, enters) =
            match waitpid(group, Some(WaitPidFlag::__WALL)).expect("the command runs") {
                // A thread stops before each call and after it.
                WaitStatus::PtraceSyscall(thread) => {
                    (thread, None, inside.insert(thread) || !inside.remove(&thread))
                }
                WaitStatus::PtraceEvent(thread, _, ptrace_event) => {
                    (thread, None, ptrace_event == Event::PTRACE_EVENT_SECCOMP as i32)
                }
                WaitStatus::Stopped(thread, signal) => (thread, Some(signal), false),
                WaitStatus::Exited(thread, code) if thread == pid => {
                    assert!((0..=status).contains(&code), "{command:?}: {code}");
                    return stops;
                }
                WaitStatus::Signaled(thread, signal, _) if thread == pid => {
                    assert_eq!((signal, stops >= stop), (Signal::SIGKILL, true), "{command:?}");
                    return stops;
                }
                // Another thread has ended.
                _ => continue,
            };
        if enters && SystemCall::of(thread).is_some_and(|call| counts(&call)) {
            stops += 1;
            if stops == stop {
                kill(pid, Signal::SIGKILL).expect("the command runs");
            }
        }
        // Fails if it was just killed.
        let _ = match traced {
            Traced::All => ptrace::syscall(thread, signal),
            Traced::Only(_) => ptrace::cont(thread, signal),
        };
    }
}

/// As [`run_until`], but traces all calls of the first thread only. For commands with threads that
/// change their user: the C library does that by a signal to each thread that [`nix`] has no name
/// for.
#[expect(clippy::zombie_processes, reason = "it is waited for by its number")]
pub fn run_first_thread_until(
    command: &[&str],
    stop: usize,
    status: i32,
    counts: impl Fn(&SystemCall) -> bool,
) -> usize {
    let child = Command::new("sh")
        .args(["-c", "kill -STOP $$; exec \"$@\"", "sh"])
        .args(command)
        .stdout(Stdio::null())
        .spawn()
        .expect("sh");
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process id"));
    waitpid(pid, Some(WaitPidFlag::WUNTRACED)).expect("the shell stops");
    let options = ptrace::Options::PTRACE_O_EXITKILL | ptrace::Options::PTRACE_O_TRACESYSGOOD;
    ptrace::seize(pid, options).expect("the shell can be traced");
    // Else threads that it starts would be stopped, too.
    kill(pid, Signal::SIGCONT).expect("the shell runs");
    trace_until(pid, stop, status, counts)
}

/// Stops a process that runs already, and has one thread, to be [traced](trace_until). It is killed
/// if the tracer ends.
pub fn seize(pid: u32) -> Pid {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a process id"));
    let options = ptrace::Options::PTRACE_O_EXITKILL | ptrace::Options::PTRACE_O_TRACESYSGOOD;
    ptrace::seize(pid, options).expect("the process can be traced");
    // It may be waiting in a call.
    ptrace::interrupt(pid).expect("the process runs");
    pid
}

/// Lets a process that was [seized](seize) go on, and kills it before its `stop`-th system call
/// that `counts`. Returns the number of such calls that it reached. An exit status above `status`
/// fails the test.
pub fn trace_until(pid: Pid, stop: usize, status: i32, counts: impl Fn(&SystemCall) -> bool) -> usize {
    let (mut stops, mut enters) = (0, false);
    loop {
        match waitpid(pid, None).expect("the process runs") {
            // It stops before each call and after it.
            WaitStatus::PtraceSyscall(_) => {
                enters = !enters;
                if enters && SystemCall::of(pid).is_some_and(|call| counts(&call)) {
                    stops += 1;
                    if stops == stop {
                        kill(pid, Signal::SIGKILL).expect("the process runs");
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
