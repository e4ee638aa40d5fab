//! Servers that restart or reload, and links that go down and up, while they are attached.

use std::process::Command;

use lab::testbed::SERVER_INTERFACE;
use policies::attach::{AttachEvent, Target};
use policies::netlink::route;
use rustix::process::{Pid, Signal, kill_process};
use serial_test::serial;
use tests::memcached::wait_until;
use tests::testbed::enter_plain;
use tests::{isolated, program};

use super::attached::{CONNECTIONS, Observed, epolls, family, nothing_is_left, state};
use super::load::Load;
use super::servers;

fn detached(event: &AttachEvent) -> bool {
    matches!(event, AttachEvent::Detached { .. })
}

#[test]
#[isolated(root)]
#[serial]
fn a_worker_that_nginx_starts_on_reload_is_attached_in_place_of_the_old_one() {
    let testbed = enter_plain(1);
    let Some(server) = servers::nginx(1, "") else { return };
    let load = Load::start(&testbed, server.address, server.exchange, CONNECTIONS);
    let attached = Observed::start(Target::Process(server.pid()));
    attached.wait_attached(1);
    let old = family(server.pid());
    kill_process(Pid::from_child(&server.child), Signal::HUP).unwrap();
    wait_until("nginx has another worker", || family(server.pid()).iter().any(|pid| !old.contains(pid)));
    // The old worker serves its connections until they are closed, and closes those that it finds
    // idle.
    load.end_with_closed_connections();
    wait_until("the old worker has ended", || {
        let now = family(server.pid());
        old.iter().filter(|pid| now.contains(pid)).count() == 1
    });
    let load = Load::start(&testbed, server.address, server.exchange, CONNECTIONS);
    attached.wait_attached(2);
    wait_until("the old worker is detached", || attached.count(detached) > 0);
    attached.end(load);
}

#[test]
#[isolated(root)]
#[serial]
fn a_server_that_is_restarted_is_attached_again() {
    let testbed = enter_plain(1);
    let Some(server) = servers::memcached(&["-t", "1"]) else { return };
    let fresh = state(&[]);
    let attached = Observed::start(Target::DescendantsOf(std::process::id()));
    let load = Load::start(&testbed, server.address, server.exchange, CONNECTIONS);
    attached.wait_polls();
    load.end();
    drop(server);
    wait_until("the ended server is detached", || attached.count(detached) > 0);
    wait_until("the queue is given back", || state(&[]) == fresh);
    let server = servers::memcached(&["-t", "1"]).unwrap();
    let load = Load::start(&testbed, server.address, server.exchange, CONNECTIONS);
    attached.wait_attached(2);
    attached.attachment.detach();
    load.end();
    assert!(epolls(server.pid()).iter().all(|(.., params)| params.prefer_busy_poll == 0));
    nothing_is_left();
}

#[test]
#[isolated(root)]
#[serial]
fn a_link_that_goes_down_and_up_is_polled_again_and_left_as_it_was() {
    let testbed = enter_plain(1);
    let Some(ip) = program("ip") else { return };
    let Some(server) = servers::memcached(&["-t", "1"]) else { return };
    let before = state(&[server.pid()]);
    let load = Load::start(&testbed, server.address, server.exchange, CONNECTIONS);
    let attached = Observed::start(Target::Process(server.pid()));
    attached.wait_polls();
    for state in ["down", "up"] {
        let done = Command::new(&ip).args(["link", "set", SERVER_INTERFACE, state]).status().unwrap();
        assert!(done.success());
        wait_until("the link changes", || {
            let links = route::links().unwrap();
            links.iter().any(|link| link.name == SERVER_INTERFACE && link.up == (state == "up"))
        });
    }
    let served = load.requests();
    wait_until("the server serves again", || load.requests() > served + 200);
    wait_until("busy polls bring packets again", || {
        attached.attachment.status().queues.iter().any(|queue| queue.busy_poll_share > 0.2)
    });
    attached.attachment.detach();
    assert_eq!(state(&[server.pid()]), before);
    load.end();
    nothing_is_left();
}
