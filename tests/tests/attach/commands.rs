//! `policies attach`, `policies run` and `policies explain --pid` as commands: what they print, and
//! that they change nothing where a permission or a kernel feature is missing.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use lab::testbed::SERVER_ADDRESS;
use rustix::process::Signal;
use tests::closed_loop::Load;
use tests::control_group::ControlGroup;
use tests::memcached::wait_until;
use tests::testbed::{enter_plain, is_deferred};
use tests::{KillOnDrop, policies_command, program, seccomp, testbed_test};

use super::attached::{AttachCommand, CONNECTIONS, epolls, family, nothing_is_left, state};
use super::servers::{self, MEMCACHED, MISS, PORT, memcached_program};

#[testbed_test]
fn an_interrupted_attach_prints_what_it_did_and_leaves_nothing() {
    let testbed = enter_plain(1);
    let Some(server) = servers::memcached() else { return };
    let load = server.load(&testbed);
    let before = state(&[server.pid()]);
    for signal in [Signal::INT, Signal::TERM] {
        let command = AttachCommand::to(&server);
        command.wait_printed("by busy polling");
        let (code, text) = command.end(signal);
        assert_eq!(code, Some(0), "{text}");
        for expected in [
            "can be attached",
            "polled for",
            "attached memcached",
            "is now driven by",
            "by busy polling",
            "detached;",
        ] {
            assert!(text.contains(expected), "no {expected:?} in {text}");
        }
        assert_eq!(state(&[server.pid()]), before, "{signal:?}");
        nothing_is_left();
    }
    load.end();
}

/// By the rule, and not whenever packets come: two come in an interval of 1 ms.
#[testbed_test]
fn a_queue_is_deferred_while_packets_come_and_driven_by_interrupts_while_none_do() {
    let testbed = enter_plain(1);
    let Some(server) = servers::memcached() else { return };
    let pid = server.pid().to_string();
    let load = server.load(&testbed);
    let command = AttachCommand::start(&["attach", "--pid", &pid, "--poll-interval", "1000"]);
    wait_until("the queue is deferred", is_deferred);
    load.end();
    wait_until("interrupts drive the queue", || !is_deferred());
    let load = server.load(&testbed);
    wait_until("the queue is deferred again", is_deferred);
    let (code, text) = command.end(Signal::INT);
    load.end();
    assert_eq!(code, Some(0), "{text}");
    nothing_is_left();
}

#[testbed_test]
fn a_dry_run_says_what_attaching_would_change_and_changes_nothing() {
    let testbed = enter_plain(1);
    let Some(server) = servers::memcached() else { return };
    let pid = server.pid().to_string();
    let dry_run = ["attach", "--pid", &pid, "--poll-interval", "100", "--dry-run", "1"];
    let before = state(&[server.pid()]);
    // Without connections there is nothing to foresee.
    let output = policies_command(&dry_run).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("packets/s"), "{output:?}");
    let load = server.load(&testbed);
    let output = policies_command(&[&dry_run[..], &["--format", "json"]].concat()).output().unwrap();
    load.end();
    assert!(output.status.success(), "{output:?}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let forecast = &json["forecast"][0];
    let number = |name: &str| forecast[name].as_f64().unwrap();
    // The load is closed: some thousand requests a second at least.
    assert!(number("packets_per_second") > 1_000.0 && number("cores") > 0.0, "{json}");
    assert!(number("wakeups_left_per_second") <= number("wakeups_per_second"), "{json}");
    assert!(number("wakeups_left_per_second") <= 10_000.0 || number("polled") < 1.0, "{json}");
    assert_eq!(state(&[server.pid()]), before);
    nothing_is_left();
}

#[testbed_test]
fn what_came_of_an_attachment_is_printed_beside_what_was_foreseen() {
    let testbed = enter_plain(1);
    let Some(server) = servers::memcached() else { return };
    let load = server.load(&testbed);
    let pid = server.pid().to_string();
    let attach = ["attach", "--pid", &pid, "--interval", "0", "--duration", "5"];
    let output = policies_command(&attach).output().unwrap();
    load.end();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let last: Vec<&str> = text.lines().rev().take(4).collect();
    let [detached, attached, foreseen, before] = last[..] else { panic!("{text}") };
    assert!(detached.contains("detached;") && before.contains("before"), "{text}");
    assert!(foreseen.contains("foreseen") && attached.contains("attached, "), "{text}");
    // The load is closed: some thousand requests a second at least.
    let rate = |row: &str, word: usize| row.split_whitespace().nth(word).unwrap().parse::<f64>().unwrap();
    assert!(rate(before, 3) > 1_000.0 && rate(attached, 3) > 1_000.0, "{text}");
    nothing_is_left();
}

const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(SERVER_ADDRESS), PORT);

#[testbed_test]
fn a_command_that_is_run_is_attached_and_its_exit_code_is_passed_on() {
    let testbed = enter_plain(1);
    for (script, code) in [("exit 7", 7), ("kill -9 $$", 128 + 9), ("exit 0", 0)] {
        let status = policies_command(&["run", "--", "sh", "-c", script]).status().unwrap();
        assert_eq!(status.code(), Some(code), "{script}");
    }
    let Some(program) = memcached_program() else { return };
    let start = ["run", "--polls-always", "--", program.to_str().unwrap(), "-t", "1"];
    let command = AttachCommand::start(&[&start[..], &MEMCACHED].concat());
    wait_until("the server listens", || TcpStream::connect(ADDRESS).is_ok());
    let load = Load::start(&testbed, ADDRESS, CONNECTIONS, MISS, Duration::ZERO);
    wait_until("the server is polled", || {
        let children = family(command.child.id());
        children.into_iter().flat_map(epolls).any(|(.., params)| params.prefer_busy_poll == 1)
    });
    load.end();
    // memcached exits with 0 on SIGTERM.
    assert_eq!(command.end(Signal::TERM).0, Some(0));
    nothing_is_left();
}

#[testbed_test]
fn a_control_group_is_attached_to_although_its_server_has_only_begun_to_start() {
    let testbed = enter_plain(1);
    let (Some(program), Some(group)) = (memcached_program(), ControlGroup::new()) else { return };
    let path = group.path().to_str().unwrap();
    let start = format!("{} -t 1 {}", program.display(), MEMCACHED.join(" "));
    let script = format!("echo $$ >{path}/cgroup.procs; sleep 1; exec taskset -c 0 {start}");
    let server: KillOnDrop = Command::new("sh").args(["-c", &script]).spawn().unwrap().into();
    wait_until("the service has a process", || !group.is_empty());
    let command = AttachCommand::start(&["attach", "--cgroup", path, "--polls-always"]);
    wait_until("the server listens", || TcpStream::connect(ADDRESS).is_ok());
    let load = Load::start(&testbed, ADDRESS, CONNECTIONS, MISS, Duration::ZERO);
    command.wait_printed("attached memcached");
    let (code, text) = command.end(Signal::INT);
    assert_eq!(code, Some(0), "{text}");
    load.end();
    nothing_is_left();
    drop((server, group));
}

#[testbed_test]
fn explain_names_the_processes_and_needs_one_target() {
    let _testbed = enter_plain(1);
    let own = std::process::id().to_string();
    let output = policies_command(&["explain", "--pid", &own, "--format", "json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "a test waits in no epoll instance: {output:?}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["processes"][0]["pid"].to_string(), own, "{json}");
    let output = policies_command(&["explain"]).output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    let output = policies_command(&["attach", "--unit", "lull-nonesuch"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("unit lull-nonesuch"), "{output:?}");
}

/// `EPIOCGPARAMS` and `EPIOCSPARAMS` of `linux/eventpoll.h`.
const EPOLL_PARAMS: [u32; 2] = [0x8008_8a02, 0x4008_8a01];

#[testbed_test]
fn without_a_permission_or_kernel_feature_attach_says_which_and_changes_nothing() {
    let testbed = enter_plain(1);
    let Some(server) = servers::memcached() else { return };
    let load = server.load(&testbed);
    let before = state(&[server.pid()]);
    let namespace = "Could not open the network namespace of process";
    // As on a kernel that doesn't know them.
    let old_kernel = seccomp::failing(libc::SYS_ioctl, &EPOLL_PARAMS, libc::ENOTTY as u16);
    let old_kernel: Vec<&str> = old_kernel.iter().map(String::as_str).collect();
    for (wrapper, expected) in [
        (
            // Another user.
            &["setpriv", "--reuid", "1234", "--regid", "1234", "--clear-groups"][..],
            &[namespace, "CAP_SYS_PTRACE", "CAP_NET_ADMIN"][..],
        ),
        (
            &["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"],
            &[namespace, "CAP_SYS_PTRACE"],
        ),
        (
            &["setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin"],
            &["may not set NAPIs", "CAP_NET_ADMIN"],
        ),
        (&["unshare", "--user", "--map-root-user"], &[namespace, "user namespace", "on the host"]),
        (&old_kernel, &["no parameters of epoll instances", "Linux 6.13"]),
    ] {
        let Some(first) = program(wrapper[0]) else { continue };
        let mut command = Command::new(first);
        command.args(&wrapper[1..]).arg(tests::own_program("policies"));
        command.args(["attach", "--pid", &server.pid().to_string(), "--duration", "2"]);
        let output = command.output().unwrap();
        let text =
            [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).concat();
        println!("{text}");
        assert_eq!(output.status.code(), Some(1), "{wrapper:?}: {text}");
        for expected in expected.iter().chain(&["nothing was changed"]) {
            assert!(text.contains(expected), "{wrapper:?}: no {expected:?} in {text}");
        }
        assert_eq!(state(&[server.pid()]), before, "{wrapper:?}");
        assert!(!std::path::Path::new("/run/lull").exists(), "{wrapper:?}");
    }
    load.end();
}
