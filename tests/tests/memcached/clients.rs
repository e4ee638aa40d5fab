//! Real clients against the server: libmemcached's conformance test, pymemcache, and recorded
//! conversations with memcached.

use std::io::{Read, Write};
use std::process::Command;

use serial_test::parallel;
use tests::memcached::{Memcached, wait_until};

#[test]
#[parallel]
fn memccapable_passes_its_tests_of_both_protocols() {
    let Some(memccapable) = tests::program("memccapable") else { return };
    let server = Memcached::start(&[]);
    let output = Command::new(memccapable)
        .args(["-h", "127.0.0.1", "-p", &server.address.port().to_string()])
        .output()
        .unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("ascii") && text.contains("binary"), "{text}");
    assert!(text.contains("[pass]") && !text.contains("[FAIL]"), "{text}");
}

#[test]
#[parallel]
fn pymemcache_stores_reads_counts_and_deletes() {
    let Some(python) = tests::program("python3") else { return };
    let importable =
        Command::new(&python).args(["-c", "import pymemcache"]).output().unwrap().status.success();
    if tests::require("Python module pymemcache (pip install pymemcache)", importable.then_some(())).is_none()
    {
        return;
    }
    let server = Memcached::start(&[]);
    let script = r#"
import sys
from pymemcache.client.base import Client
client = Client(("127.0.0.1", int(sys.argv[1])), default_noreply=False, timeout=60)
assert client.set("key", b"value", expire=60)
assert client.get("key") == b"value"
assert client.add("key", b"other") is False
assert client.append("key", b"!") and client.prepend("key", b">")
value, cas = client.gets("key")
assert value == b">value!"
assert client.cas("key", b"new", cas) is True
assert client.cas("key", b"newer", cas) is False
assert client.set_many({"a%d" % i: b"x" * i for i in range(200)}) == []
assert len(client.get_many(["a%d" % i for i in range(200)])) == 200
assert client.set("n", b"10") and client.incr("n", 5) == 15 and client.decr("n", 20) == 0
assert client.touch("key", 100) is True and client.get("key") == b"new"
assert client.delete("key") is True and client.delete("key") is False
client.set("large", b"z" * 900000)
assert client.get("large") == b"z" * 900000
assert b"lull" in client.version()
assert client.stats()[b"curr_items"] > 0
assert client.flush_all() and client.get("large") is None
client.quit()
"#;
    let output =
        Command::new(python).args(["-c", script, &server.address.port().to_string()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Decodes `\\n`, `\\r`, `\\\\` and `\\xhh`.
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match rest.next().unwrap() {
            b'n' => b'\n',
            b'r' => b'\r',
            b'x' => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            other => other,
        });
    }
    bytes
}

/// Leaves out what may differ: versions, CAS numbers, sizes of classes, and ages.
pub fn comparable(answer: &[u8]) -> String {
    if answer.first() == Some(&0x81) {
        return comparable_packets(answer);
    }
    let text: String = answer.iter().map(|&byte| byte as char).collect();
    let lines = text.split("\r\n").map(|line| {
        let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        match words[0].as_str() {
            "VERSION" => words.truncate(1),
            "VALUE" => words.truncate(4),
            "VA" | "HD" | "ME" => {
                for word in &mut words[1..] {
                    // A second may begin between two of the requests.
                    if let Some(seconds) = word.strip_prefix("exp=").and_then(|it| it.parse::<u64>().ok()) {
                        *word = format!("exp={}", (seconds + 5) / 10 * 10);
                    }
                    let unstable = ["c", "l", "la=", "cas=", "cls=", "size="];
                    if let Some(name) = unstable.iter().find(|name| {
                        word.strip_prefix(**name).is_some_and(|number| number.parse::<u64>().is_ok())
                    }) {
                        *word = format!("{name}#");
                    }
                }
            }
            _ => {}
        }
        words.join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn comparable_packets(mut answer: &[u8]) -> String {
    let mut shown = String::new();
    while answer.len() >= 24 {
        let body = u32::from_be_bytes(answer[8..12].try_into().unwrap()) as usize;
        let (packet, rest) = answer.split_at((24 + body).min(answer.len()));
        answer = rest;
        let has_number = packet[16..24] != [0; 8];
        let is_version = packet[1] == 0x0b;
        let (header, body) = (&packet[..if is_version { 8 } else { 16 }], &packet[24..]);
        let body = if is_version { &[] } else { body };
        shown.push_str(&format!("{header:02x?} {has_number} {}\n", String::from_utf8_lossy(body)));
    }
    shown + &format!("{answer:02x?}")
}

#[test]
#[parallel]
fn responses_are_those_of_memcached_1_6_45() {
    let recorded = include_str!("conversations.txt");
    let lines: Vec<&str> = recorded.lines().filter(|line| !line.starts_with('#')).collect();
    let server = Memcached::start(&[]);
    let mut wrong = Vec::new();
    for pair in lines.chunks(2) {
        let question = unescape(pair[0].strip_prefix("> ").unwrap());
        let expected = unescape(pair[1].strip_prefix("< ").unwrap());
        // Deleting keys by name would miss those in base64.
        server.talk(b"cache_memlimit 64\r\nflush_all\r\n");
        let answer = server.talk(&question);
        if comparable(&answer) != comparable(&expected) {
            let (asked, got) = (pair[0], comparable(&answer));
            wrong.push(format!("{asked}\n  ours:\n{got}\n  theirs:\n{}", comparable(&expected)));
        }
    }
    assert!(lines.len() > 400);
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), lines.len() / 2, wrong.join("\n"));
}

/// Large values are received into their item's memory; in the binary protocol no line end follows
/// them.
#[test]
#[parallel]
fn large_values_are_stored_and_returned_whole_in_both_protocols() {
    let server = Memcached::start(&["-I", "8m"]);
    let mut stream = server.connect();
    for size in [100_000usize, 1_000_000, 8_000_000] {
        let value: Vec<u8> = (0..size).map(|index| (index * 7 + index / 251) as u8).collect();
        let mut set = vec![0x80, 0x01, 0, 1, 8, 0, 0, 0];
        set.extend_from_slice(&(9 + size as u32).to_be_bytes());
        set.extend_from_slice(&[1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0]);
        set.extend_from_slice(&[0, 0, 0, 9, 0, 0, 0, 0, b'k']);
        set.extend_from_slice(&value);
        // A second request behind it.
        set.extend_from_slice(&[
            0x80, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0,
        ]);
        stream.write_all(&set).unwrap();
        let mut answers = [0; 48];
        stream.read_exact(&mut answers).unwrap();
        assert_eq!((answers[1], answers[7], &answers[12..16]), (0x01, 0, &[1, 2, 3, 4][..]));
        assert_eq!((answers[25], answers[31], &answers[36..40]), (0x0a, 0, &[5, 6, 7, 8][..]));
        let answer = server.talk(b"get k\r\n");
        assert_eq!(answer, [format!("VALUE k 9 {size}\r\n").as_bytes(), &value, b"\r\nEND\r\n"].concat());
    }
}

/// The server waits until several pieces have arrived. A client that sends them slowly, or stops,
/// must not wait for ever, nor keep its connection.
#[test]
#[parallel]
fn a_large_value_may_come_in_pieces_slowly_and_without_its_end() {
    let server = Memcached::start(&["-o", "idle_timeout=1"]);
    let without_limits = Memcached::start(&[]);
    let value = vec![b'v'; 200_000];
    let send_all_but_the_end = |server: &Memcached| {
        let mut stream = server.connect();
        stream.set_nodelay(true).unwrap();
        stream.write_all(b"set k 0 0 200000\r\n").unwrap();
        for piece in value[..199_999].chunks(30_000) {
            stream.write_all(piece).unwrap();
            // In all for longer than a client may be idle.
            std::thread::sleep(std::time::Duration::from_millis(300));
        }
        stream
    };
    for server in [&server, &without_limits] {
        let mut stream = send_all_but_the_end(server);
        assert_eq!(server.talk(b"get k\r\n"), b"END\r\n");
        stream.write_all(b"v\r\nget k\r\n").unwrap();
        let expected = [&b"STORED\r\nVALUE k 0 200000\r\n"[..], &value, b"\r\nEND\r\n"].concat();
        let mut answer = vec![0; expected.len()];
        stream.read_exact(&mut answer).unwrap();
        assert!(answer == expected, "{}", String::from_utf8_lossy(&answer[..40]));
    }
    drop(send_all_but_the_end(&without_limits));
    let is_gone = || without_limits.stat("curr_connections") <= 1;
    wait_until("the connection has ended", is_gone);
}
