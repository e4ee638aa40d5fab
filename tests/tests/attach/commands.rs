//! `policies attach`, `policies run` and `policies explain --pid` as commands.

use lab::testbed::SERVER_ADDRESS;
use rustix::process::{Pid, Signal, kill_process};
use serial_test::serial;
use tests::memcached::wait_until;
use tests::testbed::enter_plain;
use tests::{KillOnDrop, isolated, policies_command};

use super::attached::{CONNECTIONS, epolls, family, nothing_is_left, state};
use super::load::{Exchange, Load};
use super::servers;

#[test]
#[isolated(root)]
#[serial]
fn an_interrupted_attach_prints_what_it_did_and_leaves_nothing() {
    let testbed = enter_plain(1);
    let Some(server) = servers::memcached(&["-t", "1"]) else { return };
    let load = Load::start(&testbed, server.address, server.exchange, CONNECTIONS);
    wait_until("the server serves", || load.requests() > 100);
    let before = state(&[server.pid()]);
    for signal in [Signal::INT, Signal::TERM] {
        let pid = server.pid().to_string();
        let mut command = policies_command(&["attach", "--pid", &pid, "--latency-budget", "1000"]);
        let printed = tempfile::NamedTempFile::new().unwrap();
        let child: KillOnDrop = command.stdout(printed.reopen().unwrap()).spawn().unwrap().into();
        let text = || std::fs::read_to_string(printed.path()).unwrap();
        wait_until("the server is polled", || {
            epolls(server.pid()).iter().any(|(.., params)| params.prefer_busy_poll == 1)
        });
        wait_until("a line of rates", || text().contains("by busy polling"));
        kill_process(Pid::from_child(&child), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = text();
        assert!(output.status.success(), "{output:?}");
        for expected in
            ["can be attached", "attached memcached", "is now driven by", "by busy polling", "detached;"]
        {
            assert!(text.contains(expected), "no {expected:?} in {text}");
        }
        assert_eq!(state(&[server.pid()]), before, "{signal:?}");
        nothing_is_left();
    }
    load.end();
}

#[test]
#[isolated(root)]
#[serial]
fn a_command_that_is_run_is_attached_and_its_exit_code_is_passed_on() {
    let testbed = enter_plain(1);
    for (script, code) in [("exit 7", 7), ("kill -9 $$", 128 + 9), ("exit 0", 0)] {
        let status = policies_command(&["run", "--", "sh", "-c", script]).status().unwrap();
        assert_eq!(status.code(), Some(code), "{script}");
    }
    if servers::memcached(&["-t", "1"]).is_none() {
        return;
    }
    let address = SERVER_ADDRESS.to_string();
    let server = ["/usr/bin/memcached", "-u", "nobody", "-t", "1", "-p", "7001", "-l", &address];
    let mut command = policies_command(&["run", "--latency-budget", "1000", "--"]);
    let child: KillOnDrop = command.args(server).spawn().unwrap().into();
    let address = std::net::SocketAddr::from((SERVER_ADDRESS, 7001));
    wait_until("the server listens", || std::net::TcpStream::connect(address).is_ok());
    let exchange = Exchange { request: b"get lull\r\n", end: b"END\r\n" };
    let load = Load::start(&testbed, address, exchange, CONNECTIONS);
    wait_until("the server is polled", || {
        let children = family(child.id());
        children.iter().flat_map(|pid| epolls(*pid)).any(|(.., params)| params.prefer_busy_poll == 1)
    });
    load.end();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    // memcached exits with 0 on SIGTERM.
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(0));
    nothing_is_left();
}

#[test]
#[isolated(root)]
#[serial]
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
