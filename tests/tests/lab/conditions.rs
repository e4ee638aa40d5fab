//! What stands in for the interrupt of a server's queue.

use std::fs;

use lab::testbed::{INTERRUPT_THREAD_PRIORITY, Receiver, SERVER_INTERFACE};
use policies::host::scheduler::fifo_priority;
use policies::netlink::netdev::Netdev;
use policies::{Cpus, Pid, host};
use serial_test::serial;
use tests::isolated;
use tests::testbed::enter;

use super::reports::{array, lab};

#[test]
#[isolated(root)]
#[serial]
fn under_packet_steering_no_thread_is_woken_and_the_servers_core_receives() {
    let asked = ["--quick", "--rounds", "2", "--rates", "500", "--receiver", "rps"];
    let (_folder, report) = lab(&[&asked[..], &["--contenders", "suppression:epoll,vanilla:epoll"]].concat());
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
    assert_eq!(report["experiment"]["receivers"], serde_json::json!(["rps"]));
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
        receiver.receive(&testbed, server, &[0]).unwrap();
        for other in [Receiver::Fifo, Receiver::Thread, Receiver::Rps] {
            let receives = other.receives(&testbed, server, &[0]).unwrap();
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
