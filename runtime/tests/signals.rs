//! Signals as futures and streams, and what becomes of their default actions.

#[path = "suite/drivers.rs"]
mod drivers;

use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use runtime::signal::{SignalKind, ctrl_c, signal, terminated};
use runtime::{Builder, spawn, timeout};
use rustix::process::{Signal, getpid, kill_process};

use drivers::drivers;

const LIMIT: Duration = Duration::from_secs(30);

fn raise(signal: Signal) {
    kill_process(getpid(), signal).unwrap();
}

#[runtime::test]
async fn every_listener_gets_each_signal_of_its_kind() {
    let mut first = signal(SignalKind::user_defined1()).unwrap();
    let mut second = signal(SignalKind::user_defined1()).unwrap();
    let mut other = signal(SignalKind::user_defined2()).unwrap();
    for _ in 0..3 {
        raise(Signal::USR1);
        timeout(LIMIT, first.recv()).await.expect("the first listener waits");
        timeout(LIMIT, second.recv()).await.expect("the second listener waits");
    }
    assert!(timeout(Duration::from_millis(5), other.recv()).await.is_err());
    // With nobody who listens it has no effect any more.
    drop((first, second));
    raise(Signal::USR1);
    let mut again = signal(SignalKind::from_raw(SignalKind::user_defined1().as_raw_value())).unwrap();
    raise(Signal::USR1);
    timeout(LIMIT, again.recv()).await.expect("a later listener waits");
}

#[runtime::test(workers = 2)]
async fn a_signal_wakes_a_task_of_another_worker() {
    let waiting = runtime::spawn_on(1, || async {
        let mut changes = signal(SignalKind::window_change()).unwrap();
        raise(Signal::WINCH);
        changes.recv().await;
    });
    timeout(LIMIT, waiting).await.expect("the task waits").unwrap();
}

#[runtime::test]
async fn hangups_come_one_after_the_other() {
    let mut hangups = signal(SignalKind::hangup()).unwrap();
    for _ in 0..2 {
        raise(Signal::HUP);
        timeout(LIMIT, hangups.recv()).await.expect("the listener waits");
    }
}

#[runtime::test]
async fn signals_that_can_not_be_handled_are_refused() {
    for number in [9, 19, 4, 8, 11, 0, -1, 65, 1000] {
        let refused = signal(SignalKind::from_raw(number)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{number}");
    }
}

/// Runs `child` on each driver in a process of its own, which starts this test again, and gives
/// what it printed and how it ended to `check`.
fn in_children(test: &str, child: impl AsyncFnOnce(), check: impl Fn(&str, ExitStatus)) {
    const DRIVER: &str = "LULL_TEST_SIGNALS";
    if let Ok(driver) = std::env::var(DRIVER) {
        let builder = Builder::new().ignore_environment().workers(1).driver(driver.parse().unwrap());
        return builder.build().unwrap().block_on(child());
    }
    for driver in drivers() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--nocapture"]).env(DRIVER, driver.to_string());
        let output = command.output().unwrap();
        eprintln!("on {driver}: {output:?}");
        check(&String::from_utf8_lossy(&output.stdout), output.status);
    }
}

#[test]
fn the_first_ctrl_c_is_awaited_and_the_second_terminates() {
    let child = async || {
        let waiting = spawn(ctrl_c());
        runtime::yield_now().await;
        raise(Signal::INT);
        timeout(LIMIT, waiting).await.unwrap().unwrap().unwrap();
        println!("stopping");
        raise(Signal::INT);
        std::thread::sleep(LIMIT);
        println!("survived");
    };
    in_children("the_first_ctrl_c_is_awaited_and_the_second_terminates", child, |printed, status| {
        assert!(printed.contains("stopping") && !printed.contains("survived"));
        assert_eq!(status.signal(), Some(SignalKind::interrupt().as_raw_value()));
    });
}

#[test]
fn sigterm_terminates_unless_somebody_listens() {
    let child = async || {
        let mut requests = signal(SignalKind::terminate()).unwrap();
        let graceful = terminated();
        for _ in 0..3 {
            raise(Signal::TERM);
            timeout(LIMIT, requests.recv()).await.unwrap();
        }
        timeout(LIMIT, graceful).await.unwrap().unwrap();
        drop(requests);
        println!("alone");
        raise(Signal::TERM);
        std::thread::sleep(LIMIT);
        println!("survived");
    };
    in_children("sigterm_terminates_unless_somebody_listens", child, |printed, status| {
        assert!(printed.contains("alone") && !printed.contains("survived"));
        assert_eq!(status.signal(), Some(SignalKind::terminate().as_raw_value()));
    });
}
