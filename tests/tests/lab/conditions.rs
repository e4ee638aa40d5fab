//! What is measured, and under which conditions: settings of the kernel, receivers, idle cores.

use std::fs;

use lab::testbed::{INTERRUPT_THREAD_PRIORITY, Receiver, SERVER_INTERFACE};
use policies::host::scheduler::fifo_priority;
use policies::netlink::netdev::Netdev;
use policies::{Cpus, Pid, host};
use serial_test::serial;
use tests::isolated;
use tests::testbed::enter;

use super::reports::{array, lab};

/// Linux 6.13 has the per-NAPI settings, and interrupt suspension with them.
#[test]
#[isolated(root)]
#[serial]
fn settings_of_the_kernel_are_read_back_and_the_verdicts_row_is_measured_under_each_condition() {
    let arguments = ["--quick", "--rounds", "2", "--rates", "500"];
    let contenders =
        ["--contenders", "suspend20,defer20,napibusy,busypoll50,vanilla:epoll", "--receiver", "rps,thread"];
    let (_folder, report) = lab(&[&arguments[..], &contenders].concat());
    let ran: Vec<&str> = array(&report["servers"]).iter().map(|it| it["ran"].as_str().unwrap()).collect();
    let napi = |defer: u32, gro: u32, suspend: u32| {
        format!("defer-hard-irqs {defer}, gro-flush-timeout {gro} ns, irq-suspend-timeout {suspend} ns")
    };
    let epoll = |usecs: u32, budget: u32, prefer: u32| {
        format!("; busy_poll_usecs {usecs}, busy_poll_budget {budget}, prefer_busy_poll {prefer}")
    };
    // The cover letter's. Of the sysctl an epoll instance has its time alone.
    let expected = [
        napi(100, 20_000, 20_000_000) + &epoll(0, 64, 1),
        napi(100, 20_000, 0),
        napi(100, 200_000, 0) + &epoll(64, 64, 1),
        napi(0, 0, 0) + &epoll(50, 0, 0),
        "vanilla".to_owned(),
    ];
    assert_eq!(ran, expected);
    let turns = array(&report["results"]["measurements"]).iter().flat_map(|load| array(&load["turns"]));
    let mut with_wakes = Vec::new();
    for turn in turns {
        // No thread is woken under packet steering, and yet the server's core receives. One that
        // was at work when steering began may go on for as long as it finds packets, on a core that
        // is busy otherwise.
        with_wakes.extend((turn["figures"]["wakes"].as_f64() != Some(0.0)).then_some(turn));
        assert!(turn["figures"]["received-share"].as_f64().unwrap() > 90.0, "{turn}");
    }
    assert!(with_wakes.len() <= 1, "{with_wakes:?}");
    let receivers: Vec<&str> =
        array(&report["variations"]).iter().filter_map(|it| it["receiver"].as_str()).collect();
    // The machine may have disturbed the rounds of the second.
    assert!(["rps", "thread"].starts_with(&receivers) && !receivers.is_empty(), "{report}");
    assert_eq!(report["experiment"]["receiver"], "rps");
}

#[test]
#[isolated(root)]
#[serial]
fn each_receiver_is_what_it_is_called() {
    let testbed = enter(1);
    // This thread alone is in the server's namespace.
    let server = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    let queue = || host::interface(SERVER_INTERFACE).unwrap().queues.remove(0);
    let steered =
        || fs::read_to_string(format!("/sys/class/net/{SERVER_INTERFACE}/queues/rx-0/rps_cpus")).unwrap();
    for (receiver, priority) in [
        (Receiver::Fifo, Some(INTERRUPT_THREAD_PRIORITY)),
        (Receiver::Thread, Some(0)),
        (Receiver::Rps, None),
    ] {
        receiver.receive(&testbed, server, 0).unwrap();
        for other in [Receiver::Fifo, Receiver::Thread, Receiver::Rps] {
            let receives = other.receives(&testbed, server, 0).unwrap();
            assert_eq!(receives, other == receiver, "{other} after {receiver}");
        }
        let napi = Netdev::open().unwrap().napi(queue().napi.unwrap().id).unwrap();
        let thread = napi.pid.map(|pid| Pid::from_raw(pid.try_into().unwrap()).unwrap());
        assert_eq!(thread.map(|thread| fifo_priority(thread).unwrap()), priority, "{receiver}");
        let cores = thread.map(|thread| Cpus::of_thread(Some(thread)).unwrap());
        assert_eq!(cores, priority.map(|_| Cpus::one(0)), "{receiver}");
        assert_eq!(Cpus::from_mask(&steered()).unwrap().contains(0), receiver == Receiver::Rps);
    }
}
