//! A server in another network namespace than the one who attaches, as in a container.

use std::path::Path;

use lab::testbed::{Namespace, SERVER_INTERFACE, Testbed};
use policies::JournalDir;
use policies::attach::{AttachConfig, Target, observe};
use serial_test::serial;
use tests::isolated;
use tests::memcached::wait_until;

use super::attached::{CONNECTIONS, Observed, epolls, is_aligned};
use super::load::Load;
use super::servers;

/// Moves the calling thread to a network namespace of its own.
fn enter_another_namespace() -> Namespace {
    let own = Namespace::new().unwrap();
    let file = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(own.file()));
    Namespace::open(&file).unwrap().enter_process().unwrap();
    own
}

#[test]
#[isolated(root)]
#[serial]
fn a_server_in_another_network_namespace_is_attached_there_and_recovered_from_outside() {
    let _own = enter_another_namespace();
    let testbed = Testbed::new(1).unwrap();
    let Some(server) = testbed.server.run(|| Ok(servers::memcached(&["-t", "1"]))).unwrap() else { return };
    assert!(!Path::new("/sys/class/net").join(SERVER_INTERFACE).exists(), "it must not be here");
    let load = Load::start(&testbed, server.address, server.exchange, CONNECTIONS);
    wait_until("the server serves", || load.requests() > 100);
    let target = Target::Process(server.pid());
    let observation = observe(&target, Some(SERVER_INTERFACE), &JournalDir::default()).unwrap();
    assert!(is_aligned(&observation), "{observation:?}");
    let attached = Observed::start_with(AttachConfig {
        interface: Some(SERVER_INTERFACE.to_owned()),
        ..AttachConfig::new(target)
    });
    attached.wait_polls();
    wait_until("the server is polled", || {
        epolls(server.pid()).iter().any(|(.., params)| params.prefer_busy_poll == 1)
    });
    let recovery = policies::recover(&JournalDir::default()).unwrap();
    assert!(recovery.reports.is_empty() && !recovery.failed(), "it runs: {recovery:?}");
    attached.attachment.detach();
    assert!(epolls(server.pid()).iter().all(|(.., params)| params.prefer_busy_poll == 0));

    // Killed, and recovered from this namespace.
    let policies = tests::own_program("policies");
    let mut command = std::process::Command::new(&policies);
    command.args(["attach", "--pid", &server.pid().to_string(), "--latency-budget", "1000"]);
    let mut child: tests::KillOnDrop = command.stdout(std::process::Stdio::null()).spawn().unwrap().into();
    wait_until("the server is polled", || {
        epolls(server.pid()).iter().any(|(.., params)| params.prefer_busy_poll == 1)
    });
    child.kill().unwrap();
    child.wait().unwrap();
    let recovery = policies::recover(&JournalDir::default()).unwrap();
    assert!(recovery.reports.iter().any(|report| report.interface == SERVER_INTERFACE), "{recovery:?}");
    assert!(!recovery.failed(), "{recovery:?}");
    assert!(epolls(server.pid()).iter().all(|(.., params)| params.prefer_busy_poll == 0));
    let left: Vec<_> =
        testbed.server.run(|| policies::netlink::netdev::Netdev::open()?.napis(interface_index()?)).unwrap();
    assert!(left.iter().all(|napi| napi.gro_flush_timeout == Some(0)), "{left:?}");
    load.end();
}

fn interface_index() -> std::io::Result<u32> {
    let links = policies::netlink::route::links()?;
    let index = links.iter().find(|link| link.name == SERVER_INTERFACE).map(|link| link.index);
    Ok(index.ok_or(std::io::ErrorKind::NotFound)?)
}
