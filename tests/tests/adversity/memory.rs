//! A server whose control group has little more memory than its limit (`-m`), and one whose memory is locked.

use std::io::Write;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use serial_test::serial;
use tests::KillOnDrop;
use tests::control_group::ControlGroup;
use tests::memcached::{Memcached, binary, expect, free_port, wait_until};

const LIMIT_MIB: u64 = 64;
/// For the program, which is larger without optimizations, and for what the connections need.
const OTHER_MIB: u64 = 96;
const CLIENTS: usize = 1024;

fn set_large(stream: &mut TcpStream, index: usize, length: usize) {
    let value = vec![b'a' + (index % 26) as u8; length];
    stream
        .write_all(&[format!("set large{index} 0 0 {length}\r\n").as_bytes(), &value, b"\r\n"].concat())
        .unwrap();
    expect(stream, b"STORED\r\n").unwrap();
}

#[test]
#[ignore = "timing"]
#[serial]
fn a_thousand_greedy_clients_do_not_exhaust_a_memory_group_just_above_the_limit() {
    // The first are sent from the store's memory, the second copied.
    for value in [1_000_000, 32_000] {
        greedy_clients_ask_for(value);
    }
}

fn greedy_clients_ask_for(value: usize) {
    let group = ControlGroup::of_memory((LIMIT_MIB + OTHER_MIB) << 20);
    let Some(group) = tests::require("a control group with a memory limit (root)", group) else { return };
    let Some(()) = tests::descriptors(4000) else { return };
    let port = free_port();
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{}; exec \"$0\" \"$@\"", group.enter_command())]).arg(binary());
    shell.args(["-u", "root", "-t", "2", "-p", &port.to_string(), "-m", &LIMIT_MIB.to_string()]);
    shell.args(["-c", "4000"]);
    let server = Memcached::run(&mut shell, port);
    let mut stream = server.connect();
    // More than the limit.
    let values = 80_000_000 / value;
    for index in 0..values {
        set_large(&mut stream, index, value);
    }
    let mut most = 0;
    let mut measure = || most = most.max(server.resident_kib());
    // Values of which many are in flight at once, more than the limit in all, to clients that do not read.
    let mut greedy: Vec<TcpStream> = (0..CLIENTS).map(|_| server.connect()).collect();
    for (index, client) in greedy.iter_mut().enumerate() {
        // Evicted ones among them are no replies.
        let gets = (0..20_000_000 / value)
            .map(|more| format!("get large{}\r\n", values - 1 - (index + more) % (values / 2)));
        let request: String = gets.collect();
        client.write_all(request.as_bytes()).unwrap();
        measure();
    }
    // Values that are announced and half sent.
    let mut halves: Vec<TcpStream> = (0..CLIENTS / 2).map(|_| server.connect()).collect();
    for half in &mut halves {
        half.write_all(format!("set half 0 0 {value}\r\n").as_bytes()).unwrap();
        half.set_write_timeout(Some(Duration::from_millis(1))).unwrap();
        // Fails where it is refused.
        let _ = half.write(&vec![b'h'; value / 2]);
        measure();
    }
    // Dumps that are not read: one is allowed at a time.
    let mut dumps: Vec<TcpStream> = (0..CLIENTS / 4).map(|_| server.connect()).collect();
    for dump in &mut dumps {
        dump.write_all(b"lru_crawler metadump all\r\n").unwrap();
        measure();
    }
    // All of them hold on for a moment, and sets go on.
    for index in 0..100 {
        let set = [format!("set new{index} 0 0 10000\r\n").as_bytes(), &[b'n'; 10_000], b"\r\n"].concat();
        stream.write_all(&set).unwrap();
        let stored = expect(&mut stream, b"STORED\r\n");
        assert!(stored.is_ok(), "{stored:?}, {} processes killed for lack of memory", group.killed());
        measure();
    }
    println!(
        "values of {value} bytes: {most} KiB resident at most, {} KiB in the group",
        group.memory() >> 10
    );
    assert_eq!(group.killed(), 0, "the kernel has killed the server for lack of memory");
    drop((greedy, halves, dumps));
    wait_until("the clients are gone", || server.stat("curr_connections") <= 2);
    set_large(&mut stream, 5, value);
    let request = b"get large5\r\n";
    stream.write_all(request).unwrap();
    let stored = vec![b'f'; value];
    expect(
        &mut stream,
        &[format!("VALUE large5 0 {value}\r\n").as_bytes(), &stored, b"\r\nEND\r\n"].concat(),
    )
    .unwrap();
    assert!(server.stat("bytes") <= LIMIT_MIB << 20);
    assert_eq!(group.killed(), 0);
}

/// With `-k` all memory is locked, which a limit may forbid. Nothing must be half locked, or end later.
#[test]
#[serial]
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
        set_large(&mut stream, index, 1_000_000);
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
    let locked: u64 = locked.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(locked >= LIMIT_MIB << 10, "only {locked} KiB are locked");
}
