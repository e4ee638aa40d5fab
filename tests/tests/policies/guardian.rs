//! The memcached server's guardian: a process that keeps root privileges after the server has dropped them.

use lab::testbed::{SERVER_ADDRESS, SERVER_INTERFACE};
use policies::host::scheduler;
use policies::netlink::netdev::Napi;
use policies::{Pid, host};
use serial_test::serial;
use tests::isolated;
use tests::memcached::{Memcached, command, free_port, wait_until};
use tests::testbed::enter;

use super::echo_server::{Exchange, Load};

/// Eight requests at once, so that the server is busy and the clients are not.
const MISSES: Exchange = Exchange {
    request: b"get k\r\nget k\r\nget k\r\nget k\r\nget k\r\nget k\r\nget k\r\nget k\r\n",
    response: b"END\r\nEND\r\nEND\r\nEND\r\nEND\r\nEND\r\nEND\r\nEND\r\n",
};

/// The queue's NAPI. Its thread has another id each time it is started.
fn napi() -> Napi {
    let mut napi = host::interface(SERVER_INTERFACE).unwrap().queues.remove(0).napi.unwrap();
    napi.pid = None;
    napi
}

fn is_deferred() -> bool {
    napi().defer_hard_irqs != Some(0)
}

/// Whether no thread of the process has an effective capability.
fn is_unprivileged(process: u32) -> bool {
    std::fs::read_dir(format!("/proc/{process}/task")).unwrap().all(|task| {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let capable = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
        capable.trim().trim_start_matches('0').is_empty()
    })
}

#[test]
#[isolated(root)]
#[serial]
fn the_queue_of_an_unprivileged_server_is_adapted_and_after_sigkill_restored() {
    let testbed = enter(1);
    let before = napi();
    let port = free_port();
    let arguments = format!(
        "-t 1 -u nobody --cores 0 -l {SERVER_ADDRESS},127.0.0.1 -p {port} --interface {SERVER_INTERFACE} \
         --policy kernel-polling"
    );
    let mut server = Memcached::run(command().args(arguments.split(' ')), port);
    wait_until("the server has no capabilities", || is_unprivileged(server.child.id()));
    assert!(!is_deferred(), "{:?}", napi());
    // Its only worker: other programs on the core would keep it from being saturated.
    scheduler::set_fifo_priority(Pid::from_raw(server.child.id().try_into().unwrap()).unwrap(), 1).unwrap();
    let load = Load::open(&testbed, (SERVER_ADDRESS, port).into(), 16, MISSES);
    load.on();
    // An idle queue stays as it is, so the load pauses in a mode that polls.
    wait_until("the law defers interrupts", || {
        load.on();
        wait_until("interrupts are deferred", is_deferred);
        load.off();
        std::thread::sleep(std::time::Duration::from_millis(50));
        is_deferred()
    });
    assert!(load.end() > 0);
    server.child.kill().unwrap();
    server.wait();
    wait_until("the guardian restores the queue", || napi() == before);
    wait_until("the guardian removes the journal", || !std::path::Path::new("/run/lull").exists());
}
