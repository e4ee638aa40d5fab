//! Real clients against the server: libmemcached's conformance test, pymemcache, and conversations with
//! memcached as they were recorded.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server process that is killed with its test.
struct Running(Child, SocketAddr);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn start(command: &mut Command, port: u16) -> Running {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let child = command.stderr(Stdio::null()).spawn().unwrap();
    let running = Running(child, address);
    let give_up = Instant::now() + Duration::from_secs(10);
    while TcpStream::connect(address).is_err() {
        assert!(Instant::now() < give_up, "the server did not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    running
}

/// Our server, in the path of the test's own build.
fn ours(arguments: &[&str]) -> Running {
    let test = std::env::current_exe().unwrap();
    let binary = test.parent().unwrap().parent().unwrap().join("memcached");
    assert!(binary.is_file(), "build the memcached command first: cargo build --workspace");
    let port = free_port();
    start(Command::new(binary).args(["-t", "2", "-p", &port.to_string()]).args(arguments), port)
}

/// Sends all, says that it is all, and reads until the server closes.
fn talk(address: SocketAddr, input: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(input).unwrap();
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

#[test]
fn memccapable_passes_its_tests_of_both_protocols() {
    let Some(memccapable) = tests::program("memccapable") else { return };
    let server = ours(&[]);
    let output = Command::new(memccapable)
        .args(["-h", "127.0.0.1", "-p", &server.1.port().to_string()])
        .output()
        .unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("ascii") && text.contains("binary"), "{text}");
    assert!(text.contains("[pass]") && !text.contains("[FAIL]"), "{text}");
}

#[test]
fn pymemcache_stores_reads_counts_and_deletes() {
    let Some(python) = tests::program("python3") else { return };
    let importable =
        Command::new(&python).args(["-c", "import pymemcache"]).output().unwrap().status.success();
    if tests::require("Python module pymemcache (pip install pymemcache)", importable.then_some(())).is_none()
    {
        return;
    }
    let server = ours(&[]);
    let script = r#"
import sys
from pymemcache.client.base import Client
client = Client(("127.0.0.1", int(sys.argv[1])), default_noreply=False, timeout=5)
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
    let output = Command::new(python).args(["-c", script, &server.1.port().to_string()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// `\\n`, `\\r`, `\\\\` and `\\xhh` for what can't be shown.
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

/// What may differ: versions, numbers of items, sizes of classes, and how long ago something was.
fn comparable(answer: &[u8]) -> String {
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
fn answers_are_those_of_memcached_1_6_45() {
    let recorded = include_str!("../conversations.txt");
    let lines: Vec<&str> = recorded.lines().filter(|line| !line.starts_with('#')).collect();
    let server = ours(&[]);
    let mut wrong = Vec::new();
    for pair in lines.chunks(2) {
        let question = unescape(pair[0].strip_prefix("> ").unwrap());
        let expected = unescape(pair[1].strip_prefix("< ").unwrap());
        // Deleting by name would miss keys in base64.
        talk(server.1, b"cache_memlimit 64\r\nflush_all\r\n");
        let answer = talk(server.1, &question);
        if comparable(&answer) != comparable(&expected) {
            let (asked, got) = (pair[0], comparable(&answer));
            wrong.push(format!("{asked}\n  ours:\n{got}\n  theirs:\n{}", comparable(&expected)));
        }
    }
    assert!(lines.len() > 400);
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), lines.len() / 2, wrong.join("\n"));
}

#[test]
fn random_bytes_never_stop_the_server() {
    let server = ours(&["-c", "64"]);
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let words = [
        "get ",
        "set ",
        "k ",
        "0 ",
        "1 ",
        "noreply",
        "\r\n",
        "\n",
        "cas ",
        "-5 ",
        "\0",
        "gat ",
        "99999999999 ",
        "incr ",
        "flush_all ",
    ];
    for _ in 0..300 {
        let mut input = Vec::new();
        for _ in 0..40 {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            match seed % 4 {
                0 => input.extend_from_slice(&seed.to_le_bytes()),
                _ => input.extend_from_slice(words[seed as usize / 4 % words.len()].as_bytes()),
            }
        }
        talk(server.1, &input);
    }
    assert_eq!(talk(server.1, b"set k 0 0 1\r\nx\r\nget k\r\n"), b"STORED\r\nVALUE k 0 1\r\nx\r\nEND\r\n");
}

#[test]
fn a_client_that_never_reads_is_held_and_the_others_served() {
    let server = ours(&[]);
    let value = [b"set k 0 0 500000\r\n".to_vec(), vec![b'v'; 500_000], b"\r\n".to_vec()].concat();
    assert_eq!(talk(server.1, &value), b"STORED\r\n");
    let mut greedy = TcpStream::connect(server.1).unwrap();
    greedy.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let requests = b"get k\r\n".repeat(1000);
    let mut sent = 0;
    // 500 MB of answers for each round: without backpressure this would be the end of the memory.
    while sent < 64 << 20 {
        match greedy.write(&requests) {
            Ok(length) => sent += length,
            Err(_) => break,
        }
    }
    assert!(sent < 64 << 20, "the server went on reading");
    assert_eq!(talk(server.1, b"get nosuch\r\n"), b"END\r\n");
    let resident = resident_kib(server.0.id());
    assert!(resident < 100 << 10, "{resident} KiB");
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn the_memory_limit_holds_in_resident_memory() {
    let server = ours(&["-m", "32"]);
    let mut stream = TcpStream::connect(server.1).unwrap();
    let before = resident_kib(server.0.id());
    for size in [100usize, 1000, 30] {
        let mut batch = Vec::new();
        for index in 0..(96 << 20) / (size + 100) {
            batch.extend_from_slice(format!("set key-{size}-{index} 0 0 {size} noreply\r\n").as_bytes());
            batch.resize(batch.len() + size, b'v');
            batch.extend_from_slice(b"\r\n");
            if batch.len() > 1 << 20 {
                stream.write_all(&batch).unwrap();
                batch.clear();
            }
        }
        stream.write_all(&batch).unwrap();
    }
    let answer = talk(server.1, b"stats\r\n");
    let stats = String::from_utf8_lossy(&answer).into_owned();
    let stat = |name: &str| -> u64 {
        stats
            .lines()
            .find_map(|line| line.strip_prefix(&format!("STAT {name} "))?.trim().parse().ok())
            .unwrap()
    };
    assert!(stat("evictions") > 0 && stat("bytes") <= 32 << 20, "{stats}");
    let grown = resident_kib(server.0.id()) - before;
    assert!(grown < 48 << 10, "{grown} KiB for a limit of 32 MiB");
}

#[test]
fn one_connection_too_many_is_told_so_and_there_is_room_again_later() {
    let server = ours(&["-c", "3"]);
    // The start-up probe's connection may still be counted for a moment.
    std::thread::sleep(Duration::from_millis(100));
    let mut held: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(server.1).unwrap()).collect();
    for stream in &mut held {
        stream.write_all(b"version\r\n").unwrap();
        let mut buffer = [0; 64];
        assert!(stream.read(&mut buffer).unwrap() > 0 && buffer.starts_with(b"VERSION"));
    }
    let mut refused = TcpStream::connect(server.1).unwrap();
    let mut answer = Vec::new();
    let _ = refused.read_to_end(&mut answer);
    assert_eq!(answer, b"ERROR Too many open connections\r\n");
    drop(held);
    std::thread::sleep(Duration::from_millis(100));
    assert!(talk(server.1, b"version\r\n").starts_with(b"VERSION"));
}

#[test]
fn sigterm_lets_the_server_finish_and_exit_cleanly() {
    let mut server = ours(&[]);
    let idle = TcpStream::connect(server.1).unwrap();
    let pid = rustix::process::Pid::from_child(&server.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let give_up = Instant::now() + Duration::from_secs(4);
    let status = loop {
        if let Some(status) = server.0.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < give_up, "still running");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(status.success(), "{status}");
    drop(idle);
}

#[test]
fn a_killed_server_can_be_started_again_at_once() {
    let test = std::env::current_exe().unwrap();
    let binary = test.parent().unwrap().parent().unwrap().join("memcached");
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().port()
    };
    for _ in 0..5 {
        let mut child = Command::new(&binary).args(["-p", &port.to_string()]).spawn().unwrap();
        let give_up = Instant::now() + Duration::from_secs(10);
        let ask = || {
            let mut stream = std::net::TcpStream::connect(("127.0.0.1", port))?;
            stream.write_all(b"version\r\n")?;
            let mut answer = [0; 8];
            stream.read_exact(&mut answer)?;
            std::io::Result::Ok(answer)
        };
        while ask().is_err() {
            assert!(child.try_wait().unwrap().is_none(), "the server gave up");
            assert!(Instant::now() < give_up, "the server did not start");
            std::thread::sleep(Duration::from_millis(2));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn a_unix_socket_serves_and_is_taken_over_from_a_killed_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let test = std::env::current_exe().unwrap();
    let binary = test.parent().unwrap().parent().unwrap().join("memcached");
    for _ in 0..2 {
        let mut child = Command::new(&binary).arg("-s").arg(&path).spawn().unwrap();
        let give_up = Instant::now() + Duration::from_secs(10);
        // A server that was just killed still accepts for some milliseconds, and never answers.
        let ask = || {
            let mut stream = std::os::unix::net::UnixStream::connect(&path)?;
            stream.write_all(b"set k 0 0 1\r\nx\r\n")?;
            let mut answer = [0; 8];
            stream.read_exact(&mut answer)?;
            std::io::Result::Ok(answer)
        };
        let answer = loop {
            match ask() {
                Ok(answer) => break answer,
                Err(_) => assert!(Instant::now() < give_up, "the server did not start"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(&answer, b"STORED\r\n");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
