//! What ends a worker's polls: its supervisor hangs or has ended, or the polls fail. Interrupts
//! drive the queue then.

use std::collections::BTreeSet;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use lab::testbed::{SERVER_ADDRESS, Testbed};
use policies::controller::{QueueMode, Reason};
use policies::{Change, Policy};
use runtime::Builder;
use rustix::event::epoll;
use tests::isolated::{HungThread, stop_if_asked};
use tests::memcached::wait_until;
use tests::testbed::{enter, is_deferred, server_builder};
use tests::testbed_test;

use super::echo::server::{ECHO, EchoServer, Load};

/// A server and its load, which begins.
fn start(testbed: &Testbed, builder: Builder) -> (EchoServer, Load) {
    let server = EchoServer::start(builder, SERVER_ADDRESS, Duration::ZERO);
    let load = Load::open(testbed, server.address, 4, ECHO);
    load.on();
    (server, load)
}

fn wait_for(server: &mut EchoServer, mode: QueueMode, why: Option<Reason>) {
    wait_until(&format!("{mode}, {why:?}"), || {
        let queue = server.report().queue.unwrap();
        queue.mode == mode && why.is_none_or(|why| queue.why == why)
    });
}

#[testbed_test(drivers = "epoll, uring")]
fn a_queue_whose_supervisor_hangs_is_polled_while_packets_come_and_left_to_interrupts_else() {
    if stop_if_asked() {
        return;
    }
    let testbed = enter(1);
    let (mut server, load) = start(&testbed, server_builder(Policy::KernelPolling, 1));
    let hung = loop {
        wait_for(&mut server, QueueMode::Timed, None);
        let hung = HungThread::start("lull-supervisor");
        // The controller may have chosen others before the thread was stopped.
        if server.report().queue.unwrap().mode == QueueMode::Timed && is_deferred() {
            break hung;
        }
    };
    load.off();
    wait_for(&mut server, QueueMode::Interrupts, Some(Reason::Unsupervised));
    assert!(is_deferred(), "nobody has set others");
    load.on();
    wait_for(&mut server, QueueMode::Timed, None);
    load.off();
    wait_for(&mut server, QueueMode::Interrupts, None);
    drop(hung);
    wait_until("the queue has the values of interrupts", || !is_deferred());
    wait_for(&mut server, QueueMode::Interrupts, Some(Reason::FewPackets));
    load.on();
    wait_for(&mut server, QueueMode::Timed, Some(Reason::ManyPackets));
    assert!(load.end() > 0);
}

#[testbed_test(drivers = "epoll, uring")]
fn a_queue_whose_supervisor_has_ended_is_left_to_interrupts() {
    let testbed = enter(1);
    let builder = server_builder(Policy::KernelPolling, 1).on_host_change(|change| {
        let is_timed =
            matches!(change, Change::QueueSettings { settings, .. } if settings.mode == QueueMode::Timed);
        assert!(!is_timed, "a test ends the supervisor");
    });
    let (mut server, load) = start(&testbed, builder);
    // Under load.
    wait_for(&mut server, QueueMode::Interrupts, Some(Reason::Unsupervised));
    wait_until("the queue has the values from before", || !is_deferred());
    assert!(load.end() > 0);
}

#[testbed_test(drivers = "epoll, uring")]
fn a_queue_whose_supervisor_ends_as_polling_does_is_left_to_interrupts() {
    let testbed = enter(1);
    let was_timed = AtomicBool::new(false);
    let builder = server_builder(Policy::KernelPolling, 1).on_host_change(move |change| {
        let Change::QueueSettings { settings, .. } = change else { return };
        let is_timed = settings.mode == QueueMode::Timed;
        assert!(is_timed || !was_timed.load(Relaxed), "a test ends the supervisor");
        was_timed.fetch_or(is_timed, Relaxed);
    });
    let (mut server, load) = start(&testbed, builder);
    wait_for(&mut server, QueueMode::Timed, None);
    load.off();
    wait_for(&mut server, QueueMode::Interrupts, Some(Reason::Unsupervised));
    wait_until("the queue has the values from before", || !is_deferred());
    load.on();
    wait_for(&mut server, QueueMode::Interrupts, Some(Reason::Unsupervised));
    assert!(load.end() > 0);
}

/// The epoll instances of this process in which nothing is.
fn empty_epolls() -> Vec<RawFd> {
    let numbers = std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
    let is_empty = |number: &RawFd| {
        let link = std::fs::read_link(format!("/proc/self/fd/{number}"));
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}"));
        link.is_ok_and(|link| link.to_string_lossy().contains("[eventpoll]"))
            && info.is_ok_and(|info| !info.contains("tfd:"))
    };
    numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_empty).collect()
}

/// Makes the worker's polls fail: its poller can't take in sockets that it has. `server`: the
/// address of the server's connections. `instances`: those that were found empty, this time or before.
fn break_poller(server: std::net::SocketAddr, instances: &mut BTreeSet<RawFd>) {
    instances.extend(empty_epolls());
    let sockets = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let numbers: Vec<RawFd> = sockets.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    // SAFETY: nobody closes what is borrowed here before the load ends; another descriptor is
    // refused.
    let borrow = |number: RawFd| unsafe { BorrowedFd::borrow_raw(number) };
    let is_connection = |number: &RawFd| {
        let address = rustix::net::getsockname(borrow(*number)).ok();
        let address = address.and_then(|address| std::net::SocketAddr::try_from(address).ok());
        address == Some(server) && rustix::net::getpeername(borrow(*number)).is_ok()
    };
    for &instance in instances.iter() {
        for socket in numbers.iter().copied().filter(is_connection) {
            // The poller may have it in at this moment: the next attempt has it.
            let _ = epoll::add(
                borrow(instance),
                borrow(socket),
                epoll::EventData::new_u64(0),
                epoll::EventFlags::empty(),
            );
        }
    }
}

#[testbed_test(drivers = "epoll")]
fn a_queue_whose_polls_fail_is_left_to_interrupts() {
    let testbed = enter(1);
    let (mut server, load) = start(&testbed, server_builder(Policy::KernelPolling, 1));
    wait_for(&mut server, QueueMode::Timed, None);
    let mut instances = BTreeSet::new();
    wait_until("the polls have failed", || {
        break_poller(server.address, &mut instances);
        server.report().queue.unwrap().why == Reason::Failed
    });
    wait_for(&mut server, QueueMode::Interrupts, Some(Reason::Failed));
    wait_until("the queue has the values of interrupts", || !is_deferred());
    assert!(load.end() > 0);
}
