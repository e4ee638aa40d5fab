//! Kills a command before one of its system calls.

use std::collections::HashSet;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use nix::sys::ptrace::{self, Event};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::seccomp;

/// Calls that name files, in older forms, which some architectures lack.
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
    /// All of the first thread. For commands with threads that change their user: the C library
    /// does that by a signal to each thread that [`nix`] has no name for.
    FirstThread,
    /// These numbers only: the others cost nothing. Needs python3, for the
    /// [filter](crate::seccomp).
    Only(&'a [i64]),
}

const OPTIONS: ptrace::Options =
    ptrace::Options::PTRACE_O_EXITKILL.union(ptrace::Options::PTRACE_O_TRACESYSGOOD);

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
        Traced::All | Traced::FirstThread => Vec::new(),
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
    waitpid(pid, Some(WaitPidFlag::WUNTRACED)).expect("the shell stops");
    let of_threads = ptrace::Options::PTRACE_O_TRACESECCOMP | ptrace::Options::PTRACE_O_TRACECLONE;
    if let Traced::FirstThread = traced {
        ptrace::seize(pid, OPTIONS).expect("the shell can be traced");
        // Else threads that it starts would be stopped, too.
        kill(pid, Signal::SIGCONT).expect("the shell runs");
    } else {
        ptrace::seize(pid, OPTIONS | of_threads).expect("the shell can be traced");
    }
    trace_until(pid, traced, stop, status, counts)
}

/// Stops a process that runs already, and has one thread, to be [traced](trace_until). It is killed
/// if the tracer ends.
pub fn seize(pid: u32) -> Pid {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a process id"));
    ptrace::seize(pid, OPTIONS).expect("the process can be traced");
    // It may be waiting in a call.
    ptrace::interrupt(pid).expect("the process runs");
    pid
}

/// Lets a process that was [seized](seize) go on, and kills it before its `stop`-th system call
/// that `counts`. Returns the number of such calls that it reached. An exit status above `status`
/// fails the test.
pub fn trace_until(
    pid: Pid,
    traced: Traced<'_>,
    stop: usize,
    status: i32,
    counts: impl Fn(&SystemCall) -> bool,
) -> usize {
    let (whose, flags) = match traced {
        Traced::FirstThread => (pid, None),
        // By its group.
        Traced::All | Traced::Only(_) => (Pid::from_raw(-pid.as_raw()), Some(WaitPidFlag::__WALL)),
    };
    let (mut stops, mut inside) = (0, HashSet::new());
    loop {
        let (thread, signal, enters) = match waitpid(whose, flags).expect("the process runs") {
            // A thread stops before each call and after it.
            WaitStatus::PtraceSyscall(thread) => {
                (thread, None, inside.insert(thread) || !inside.remove(&thread))
            }
            WaitStatus::PtraceEvent(thread, _, ptrace_event) => {
                (thread, None, ptrace_event == Event::PTRACE_EVENT_SECCOMP as i32)
            }
            WaitStatus::Stopped(thread, signal) => (thread, Some(signal), false),
            WaitStatus::Exited(thread, code) if thread == pid => {
                assert!((0..=status).contains(&code), "{code}");
                return stops;
            }
            WaitStatus::Signaled(thread, signal, _) if thread == pid => {
                assert_eq!((signal, stops >= stop), (Signal::SIGKILL, true));
                return stops;
            }
            // Another thread has ended.
            _ => continue,
        };
        if enters && SystemCall::of(thread).is_some_and(|call| counts(&call)) {
            stops += 1;
            if stops == stop {
                kill(pid, Signal::SIGKILL).expect("the process runs");
            }
        }
        // Fails if it was just killed.
        let _ = match traced {
            Traced::Only(_) => ptrace::cont(thread, signal),
            Traced::All | Traced::FirstThread => ptrace::syscall(thread, signal),
        };
    }
}
