//! Without a permission or a kernel feature `policies attach` says which, and changes nothing.

use std::process::Command;

use serial_test::serial;
use tests::memcached::wait_until;
use tests::testbed::enter_plain;
use tests::{isolated, program, seccomp};

use super::attached::{CONNECTIONS, state};
use super::load::Load;
use super::servers;

/// `EPIOCGPARAMS` and `EPIOCSPARAMS` of `linux/eventpoll.h`.
const EPOLL_PARAMS: [u32; 2] = [0x8008_8a02, 0x4008_8a01];

/// Attaches to a memcached of another user by a command before `policies`. It has to fail with
/// these words, without having changed anything.
fn is_refused(wrapper: &[&str], expected: &[&str]) {
    let testbed = enter_plain(1);
    let Some(server) = servers::memcached(&["-t", "1"]) else { return };
    let Some(first) = program(wrapper[0]) else { return };
    let load = Load::start(&testbed, server.address, server.exchange, CONNECTIONS);
    wait_until("the server serves", || load.requests() > 100);
    let before = state(&[server.pid()]);
    let mut command = Command::new(first);
    command.args(&wrapper[1..]).arg(tests::own_program("policies"));
    let output =
        command.args(["attach", "--pid", &server.pid().to_string(), "--duration", "2"]).output().unwrap();
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    println!("{text}");
    assert_eq!(output.status.code(), Some(1), "{text}");
    for expected in expected {
        assert!(text.contains(expected), "no {expected:?} in {text}");
    }
    assert_eq!(state(&[server.pid()]), before);
    assert!(!std::path::Path::new("/run/lull").exists());
    load.end();
}

#[test]
#[isolated(root)]
#[serial]
fn another_user_can_not_attach_and_reads_which_step_failed_and_what_is_missing() {
    let nobody = ["setpriv", "--reuid", "1234", "--regid", "1234", "--clear-groups"];
    let expected = [
        "Could not open the network namespace of process",
        "CAP_SYS_PTRACE",
        "CAP_NET_ADMIN",
        "nothing was changed",
    ];
    is_refused(&nobody, &expected);
}

#[test]
#[isolated(root)]
#[serial]
fn root_without_a_capability_can_not_attach_and_reads_which_one() {
    let without_ptrace = ["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"];
    let expected =
        ["Could not open the network namespace of process", "CAP_SYS_PTRACE", "nothing was changed"];
    is_refused(&without_ptrace, &expected);
}

#[test]
#[isolated(root)]
#[serial]
fn root_that_may_not_set_napis_can_not_attach_and_reads_why() {
    let without_net_admin = ["setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin"];
    is_refused(&without_net_admin, &["may not set NAPIs", "CAP_NET_ADMIN", "nothing was changed"]);
}

#[test]
#[isolated(root)]
#[serial]
fn root_of_a_user_namespace_can_not_attach_and_reads_why() {
    let in_user_namespace = ["unshare", "--user", "--map-root-user"];
    let expected = [
        "Could not open the network namespace of process",
        "user namespace",
        "on the host",
        "nothing was changed",
    ];
    is_refused(&in_user_namespace, &expected);
}

#[test]
#[isolated(root)]
#[serial]
fn on_a_kernel_without_parameters_of_epoll_attach_names_the_version_that_has_them() {
    // As on a kernel that doesn't know them.
    let filter = seccomp::failing(libc::SYS_ioctl, &EPOLL_PARAMS, libc::ENOTTY as u16);
    let old_kernel: Vec<&str> = filter.iter().map(String::as_str).collect();
    is_refused(&old_kernel, &["no parameters of epoll instances", "Linux 6.13", "nothing was changed"]);
}
