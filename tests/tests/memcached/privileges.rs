//! A server that is started by root: the user that it runs as, and what it can still do as that
//! user.

use std::io::Write;
use std::process::{Command, Stdio};

use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;
use serial_test::parallel;
use tests::KillOnDrop;
use tests::memcached::{Memcached, binary, command, expect, free_port, set_request, wait_until};

#[test]
#[parallel]
fn a_server_started_by_root_runs_as_the_user_of_its_flag() {
    let Some(()) = tests::root() else { return };
    let server = Memcached::start(&["-u", "nobody"]);
    assert_eq!(server.talk(b"set k 0 0 1\r\nx\r\n"), b"STORED\r\n");
    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap();
    for task in tasks {
        // One that waited for work of the ring may have ended meanwhile.
        let Ok(status) = std::fs::read_to_string(task.unwrap().path().join("status")) else { continue };
        let words = |name: &str| -> Vec<String> {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().map(str::to_owned).collect()
        };
        assert_eq!(
            words("Uid:"),
            std::array::from_fn::<_, 4, _>(|_| nobody.uid.to_string()),
            "real, effective, saved, file system"
        );
        assert_eq!(words("Gid:"), std::array::from_fn::<_, 4, _>(|_| nobody.gid.to_string()));
        assert!(!words("Groups:").contains(&"0".to_owned()), "it is still in root's group");
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            assert_eq!(words(set)[0].trim_start_matches('0'), "", "capabilities are left in {set}");
        }
    }
}

#[test]
#[parallel]
fn root_is_refused_without_a_user() {
    let Some(()) = tests::root() else { return };
    let child = Command::new(binary()).args(["-p", "-1"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut child = KillOnDrop::from(child);
    wait_until("the server refuses to run", || child.try_wait().unwrap().is_some());
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && stderr.contains("can't run as root without the -u switch"),
        "{stderr}"
    );
}

/// With `-k` each allocation counts against the limit of locked memory once root is given up.
#[test]
#[parallel]
fn locked_memory_is_enough_after_the_switch_to_another_user_or_refused_at_the_start() {
    let Some(()) = tests::root() else { return };
    let port = free_port();
    let mut started = command();
    started.args(["-t", "2", "-p", &port.to_string(), "-k", "-u", "nobody"]);
    let unlimited = getrlimit(Resource::Memlock).maximum.is_none();
    let held = rustix::thread::capabilities(None).unwrap().effective;
    if unlimited || held.contains(CapabilitySet::SYS_RESOURCE) {
        let server = Memcached::run(&mut started, port);
        let mut stream = server.connect();
        for index in 0..1000 {
            let set = format!("set k{index} 0 0 100000\r\n{}\r\n", "v".repeat(100_000));
            stream.write_all(set.as_bytes()).unwrap();
            expect(&mut stream, b"STORED\r\n").unwrap();
        }
        return;
    }
    let mut child = KillOnDrop::from(started.stderr(Stdio::piped()).spawn().unwrap());
    wait_until("the server refuses to run", || child.try_wait().unwrap().is_some());
    let stderr = child.wait_with_output().unwrap().stderr;
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(stderr.contains("-k: up to ") && stderr.contains("ulimit -l"), "{stderr}");
}

/// With `-k` all memory is locked, which a limit may forbid. Nothing must be half locked, or end
/// later.
#[test]
#[parallel]
fn too_little_locked_memory_is_refused_at_the_start_and_root_needs_no_limit() {
    let Some(()) = tests::root() else { return };
    let Some(setpriv) = tests::program("setpriv") else { return };
    let with_limit = || {
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -l 1024; exec \"$0\" \"$@\""]);
        shell
    };
    let mut refused = with_limit();
    refused.arg(setpriv).args(["--reuid=65534", "--clear-groups"]).arg(binary()).args(["-k", "-p", "-1"]);
    let child = KillOnDrop::from(refused.stderr(Stdio::piped()).spawn().unwrap());
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("-k: ") && text.contains("ulimit -l") && !text.contains("panicked"), "{text}");
    assert_eq!(output.status.code(), Some(1), "{text}");
    let port = free_port();
    let mut accepted = with_limit();
    accepted.arg(binary()).args(["-k", "-u", "root", "-t", "2", "-p", &port.to_string()]);
    let server = Memcached::run(&mut accepted, port);
    let mut stream = server.connect();
    for index in 0..80 {
        stream.write_all(&set_request(&format!("k{index}"), 1_000_000)).unwrap();
        expect(&mut stream, b"STORED\r\n").unwrap();
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
    let locked: u64 = locked.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(locked >= 64 << 10, "only {locked} KiB are locked");
}
