//! Child processes.

use std::future::Future;
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures_util::{AsyncReadExt, AsyncWriteExt};
use runtime::process::{Child, Command, Stdio};
use runtime::{Builder, timeout};

use crate::drivers::{drivers, one_worker};

const LIMIT: Duration = Duration::from_secs(30);
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

/// A process that runs for longer than any test.
fn endless() -> Command {
    let mut command = Command::new("sleep");
    command.arg("1000");
    command
}

async fn in_time<F: Future>(future: F) -> F::Output {
    timeout(LIMIT, future).await.expect("it takes too long")
}

/// The process's folder in `/proc`, which a zombie has, too.
fn folder(child: &Child) -> PathBuf {
    PathBuf::from(format!("/proc/{}", child.id().expect("the child was waited for")))
}

/// Waits until there is neither a process nor a zombie.
async fn reaped(folder: PathBuf) {
    let begun = Instant::now();
    while folder.exists() {
        assert!(begun.elapsed() < LIMIT, "{} is still there", folder.display());
        runtime::sleep(Duration::from_millis(1)).await;
    }
}

#[runtime::test]
async fn output_that_is_larger_than_the_pipes_is_collected_from_both() {
    let script = "head -c 1000000 /dev/zero; head -c 500000 /dev/zero >&2; head -c 7 /dev/zero; exit 3";
    let output = in_time(shell(script).output()).await.unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert_eq!((output.stdout.len(), output.stderr.len()), (1_000_007, 500_000));
    assert!(output.stdout.iter().chain(&output.stderr).all(|byte| *byte == 0));
}

#[runtime::test]
async fn what_is_written_to_a_child_comes_back_although_it_fills_the_pipes() {
    let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut stdin, mut stdout) = (cat.stdin.take().unwrap(), cat.stdout.take().unwrap());
    let sent: Vec<u8> = (0..1_000_000_u32).map(|number| (number % 251) as u8).collect();
    let expected = sent.clone();
    let writing = runtime::spawn(async move {
        stdin.write_all(&sent).await.unwrap();
        stdin.flush().await.unwrap();
        stdin.close().await.unwrap();
        stdin.write_all(b"more").await.unwrap_err().kind()
    });
    let mut received = Vec::new();
    in_time(stdout.read_to_end(&mut received)).await.unwrap();
    assert!(received == expected);
    assert_eq!(writing.await.unwrap(), ErrorKind::BrokenPipe);
    assert!(in_time(cat.wait()).await.unwrap().success());
}

#[runtime::test]
async fn exit_codes_and_signals_are_those_of_the_child() {
    for code in [0, 1, 77, 255] {
        let status = in_time(shell(&format!("exit {code}")).status()).await.unwrap();
        assert_eq!((status.code(), status.signal()), (Some(code), None));
    }
    let status = in_time(shell("kill -TERM $$").status()).await.unwrap();
    assert_eq!((status.code(), status.signal()), (None, Some(SIGTERM)));
    let missing = Command::new("/nonexistent/program").spawn().unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert_eq!(
        in_time(Command::new("/nonexistent/program").output()).await.unwrap_err().kind(),
        ErrorKind::NotFound
    );
}

#[runtime::test]
async fn arguments_and_environment_reach_the_child() {
    let mut command = shell("echo \"$0 $1 $A $B $C\"; pwd");
    command.as_std_mut().arg("zero");
    assert_eq!(command.as_std().get_program(), "sh");
    command.arg("one").env_clear().env("A", "a").envs([("B", "b"), ("C", "c")]);
    command.env_remove("C").env("PATH", "/usr/bin:/bin").current_dir("/");
    let output = in_time(command.output()).await.unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "zero one a b \n/\n");
}

#[runtime::test]
async fn waiting_closes_the_childs_input_and_may_be_cancelled_and_repeated() {
    let mut waits = endless().spawn().unwrap();
    assert!(timeout(Duration::from_millis(5), waits.wait()).await.is_err());
    assert_eq!(waits.try_wait().unwrap(), None);
    waits.start_kill().unwrap();
    assert_eq!(in_time(waits.wait()).await.unwrap().signal(), Some(SIGKILL));
    assert_eq!(waits.wait().await.unwrap().signal(), Some(SIGKILL));
    assert_eq!(waits.try_wait().unwrap().unwrap().signal(), Some(SIGKILL));
    // It may be another process's number now.
    assert_eq!(waits.id(), None);
    waits.start_kill().unwrap();

    let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    assert!(in_time(cat.wait()).await.unwrap().success());
}

#[runtime::test]
async fn a_child_that_is_killed_is_gone() {
    let mut child = endless().spawn().unwrap();
    let folder = folder(&child);
    assert!(folder.exists());
    in_time(child.kill()).await.unwrap();
    assert!(!folder.exists());
}

#[runtime::test]
async fn kill_on_drop_ends_the_child_and_what_waits_for_it() {
    let child = endless().kill_on_drop(true).spawn().unwrap();
    let killed = folder(&child);
    drop(child);
    reaped(killed).await;

    let mut command = shell("echo $$ >&2; exec sleep 1000");
    let child = command.kill_on_drop(true).stderr(Stdio::piped()).spawn().unwrap();
    let killed = folder(&child);
    assert!(timeout(Duration::from_millis(5), child.wait_with_output()).await.is_err());
    reaped(killed).await;
}

#[runtime::test]
async fn dropped_children_leave_no_zombies() {
    // One has ended before it is dropped, the other ends afterwards.
    let mut ended = shell("echo done").stdout(Stdio::piped()).spawn().unwrap();
    let mut output = String::new();
    in_time(ended.stdout.take().unwrap().read_to_string(&mut output)).await.unwrap();
    let ended_folder = folder(&ended);
    drop(ended);
    let mut later = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let (stdin, later_folder) = (later.stdin.take(), folder(&later));
    drop(later);
    runtime::sleep(Duration::from_millis(5)).await;
    assert!(later_folder.exists(), "the child was killed");
    drop(stdin);
    reaped(ended_folder).await;
    reaped(later_folder).await;
}

#[test]
fn a_child_that_outlives_its_runtime_is_reaped_by_the_next_spawn() {
    for driver in drivers() {
        let first = one_worker(driver);
        // One is dropped while the runtime runs, the other after it.
        let (stdin, dropped, kept) = first.block_on(async {
            let mut dropped = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
            let (stdin, folder) = (dropped.stdin.take(), folder(&dropped));
            drop(dropped);
            runtime::yield_now().await;
            (stdin, folder, endless().kill_on_drop(true).spawn().unwrap())
        });
        drop(first);
        let kept_folder = folder(&kept);
        drop((stdin, kept));
        one_worker(driver).block_on(async {
            let begun = Instant::now();
            while dropped.exists() || kept_folder.exists() {
                assert!(begun.elapsed() < LIMIT, "on {driver}");
                assert!(in_time(shell("exit 0").status()).await.unwrap().success());
            }
        });
    }
}

#[runtime::test]
async fn a_hundred_children_at_once_are_waited_for() {
    let children: Vec<_> = (0..100)
        .map(|number| {
            let mut child =
                shell(&format!("read line; exit {number}")).stdin(Stdio::piped()).spawn().unwrap();
            let stdin = child.stdin.take();
            (folder(&child), stdin, runtime::spawn(async move { child.wait().await }))
        })
        .collect();
    // All of them run by now, and wait for their input.
    let (folders, rest): (Vec<_>, Vec<_>) =
        children.into_iter().map(|(folder, stdin, waiting)| (folder, (stdin, waiting))).unzip();
    for (number, (stdin, waiting)) in rest.into_iter().enumerate() {
        drop(stdin);
        assert_eq!(in_time(waiting).await.unwrap().unwrap().code(), Some(number as i32));
    }
    assert!(folders.iter().all(|folder| !folder.exists()));
}

#[runtime::test]
async fn the_output_of_one_child_is_the_input_of_another() {
    let mut first = shell("echo one; echo two").stdout(Stdio::piped()).spawn().unwrap();
    let pipe = Stdio::try_from(first.stdout.take().unwrap()).unwrap();
    let output = in_time(Command::new("cat").stdin(pipe).output()).await.unwrap();
    assert_eq!(output.stdout, b"one\ntwo\n");
    assert!(in_time(first.wait()).await.unwrap().success());
}

#[test]
fn a_child_of_a_pinned_worker_has_the_cores_and_the_timer_slack_of_the_runtimes_caller() {
    for driver in drivers() {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let slack = rustix::thread::current_timer_slack().unwrap().to_string();
        let cores = |status: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            line.unwrap().trim().to_owned()
        };
        let expected = (cores(&status), slack);
        let first_core = expected.0.split(['-', ',']).next().unwrap().parse().unwrap();
        let builder = Builder::new().ignore_environment().workers(2).cores(first_core).driver(driver);
        let runtime = builder.build().unwrap();
        for worker in [0, 1] {
            let task = runtime.handle().spawn_on(worker, || async {
                let mut command = Command::new("cat");
                command.args(["/proc/self/status", "/proc/self/timerslack_ns"]);
                let output = in_time(command.output()).await.unwrap();
                // The worker has its own again.
                assert_eq!(rustix::thread::current_timer_slack().unwrap(), 1);
                assert_eq!(rustix::thread::sched_getaffinity(None).unwrap().count(), 1);
                String::from_utf8(output.stdout).unwrap()
            });
            let output = runtime.block_on(task).unwrap();
            let child = (cores(&output), output.lines().last().unwrap().to_owned());
            assert_eq!(child, expected, "worker {worker} on {driver}");
        }
    }
}
