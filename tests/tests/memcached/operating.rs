//! Operating the server: starting and stopping it in every way, and reading its statistics.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serial_test::parallel;
use tests::KillOnDrop;
use tests::memcached::{Memcached, binary, command, expect, free_port, uninterrupted, wait_until};

#[test]
#[parallel]
fn sigterm_and_sigusr1_let_the_server_finish_and_exit_cleanly() {
    for signal in [Signal::TERM, Signal::USR1] {
        let mut server = Memcached::start(&[]);
        let idle = server.connect();
        server.signal(signal);
        let status = server.wait();
        assert!(status.success(), "{signal:?}: {status}");
        drop(idle);
    }
}

#[test]
#[parallel]
fn a_killed_server_can_be_started_again_at_once() {
    let port = free_port();
    for _ in 0..5 {
        let mut child: KillOnDrop = command().args(["-p", &port.to_string()]).spawn().unwrap().into();
        let give_up = Instant::now() + Duration::from_secs(60);
        let ask = || {
            let mut stream = TcpStream::connect(("127.0.0.1", port))?;
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
#[parallel]
fn a_unix_socket_serves_and_is_taken_over_from_a_killed_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    for _ in 0..2 {
        let mut child: KillOnDrop = command().arg("-s").arg(&path).spawn().unwrap().into();
        let give_up = Instant::now() + Duration::from_secs(60);
        // The socket of a killed server still accepts connections for some milliseconds.
        let ask = || {
            let mut stream = UnixStream::connect(&path)?;
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

#[test]
#[parallel]
fn the_unix_socket_has_the_requested_mode() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let mut child: KillOnDrop = command().arg("-s").arg(&path).args(["-a", "770"]).spawn().unwrap().into();
    wait_until("the socket accepts connections", || UnixStream::connect(&path).is_ok());
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o770);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
#[parallel]
fn a_server_that_ends_leaves_its_successors_socket_and_pid_file() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, pidfile) = (folder.path().join("socket"), folder.path().join("pid"));
    let child = command().arg("-s").arg(&socket).arg("-P").arg(&pidfile).spawn().unwrap();
    let mut first = KillOnDrop::from(child);
    let has_written =
        |pid: u32| std::fs::read_to_string(&pidfile).is_ok_and(|text| text == format!("{pid}\n"));
    let pid = first.id();
    wait_until("the server has written its pid", || has_written(pid));
    // A successor takes both over, as after a deployment that does not wait.
    std::fs::remove_file(&socket).unwrap();
    let successor = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    std::fs::write(&pidfile, format!("{}\n", std::process::id())).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_child(&first), Signal::TERM).unwrap();
    wait_until("the first server exits", || first.try_wait().unwrap().is_some());
    assert!(pidfile.exists(), "the successor's pid file is gone");
    UnixStream::connect(&socket).unwrap();
    drop(successor);
    // And one that has none removes its own.
    let child = command().arg("-s").arg(&socket).arg("-P").arg(&pidfile).spawn().unwrap();
    let mut only = KillOnDrop::from(child);
    let pid = only.id();
    wait_until("it has written its pid", || has_written(pid));
    rustix::process::kill_process(rustix::process::Pid::from_child(&only), Signal::TERM).unwrap();
    wait_until("the second server exits", || only.try_wait().unwrap().is_some());
    assert!(!pidfile.exists() && !socket.exists());
}

/// OpenSSL takes any private key under this label, and so does memcached.
#[test]
#[parallel]
fn a_pkcs8_key_under_the_label_of_another_format_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let (chain, key) = (folder.path().join("chain.pem"), folder.path().join("key.pem"));
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&chain, made.cert.pem()).unwrap();
    let pem = made.signing_key.serialize_pem();
    assert!(pem.contains("-----BEGIN PRIVATE KEY-----"));
    std::fs::write(&key, pem.replace(" PRIVATE KEY", " RSA PRIVATE KEY")).unwrap();
    let options = format!("ssl_chain_cert={},ssl_key={}", chain.display(), key.display());
    let server = Memcached::start(&["-Z", "-o", &options]);
    let mut stream = server.connect();
    // A server with TLS answers plain text with an alert record (type 21); one without TLS answers
    // `END`.
    stream.write_all(b"get nothing\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert_eq!(answer.first(), Some(&21), "{answer:?}");
}

#[test]
#[parallel]
fn a_server_that_serves_has_written_its_ports_and_its_pid() {
    let folder = tempfile::tempdir().unwrap();
    let (pidfile, ports) = (folder.path().join("pid"), folder.path().join("ports"));
    let mut command = command();
    command.args(["-p", "-1", "-U", "0", "-l", "127.0.0.1,::1", "-P"]).arg(&pidfile);
    let mut server = KillOnDrop::from(command.env("MEMCACHED_PORT_FILENAME", &ports).spawn().unwrap());
    wait_until("the pid is written", || {
        std::fs::read_to_string(&pidfile).is_ok_and(|text| text == format!("{}\n", server.id()))
    });
    let written = std::fs::read_to_string(&ports).unwrap();
    let port = |family: &str| -> u16 {
        let line = written.lines().find_map(|line| line.strip_prefix(family)).unwrap();
        line.trim().parse().unwrap()
    };
    for address in [("127.0.0.1", port("TCP INET:")), ("::1", port("TCP INET6:"))] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"mn\r\n").unwrap();
        expect(&mut stream, b"MN\r\n").unwrap();
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&server), Signal::TERM).unwrap();
    wait_until("the server exits", || server.try_wait().unwrap().is_some());
    assert!(!pidfile.exists());
}

/// One of two rings fits into the limit: a worker on each driver would be the worst of both.
#[test]
#[parallel]
fn a_limit_on_locked_memory_takes_the_rings_of_all_workers() {
    let (Some(setpriv), Some(_)) = (tests::program("setpriv"), tests::root()) else { return };
    let drivers = |limit: &str| {
        let port = free_port();
        let mut server = Command::new("sh");
        server.args(["-c", "ulimit -l $1; shift; exec \"$@\"", "sh", limit]).arg(&setpriv);
        server.args(["--bounding-set=-ipc_lock", "--inh-caps=-all"]).arg(binary());
        server.args(["-u", "root", "-t", "2", "-v", "--driver", "auto", "-p", &port.to_string()]);
        let server = Memcached::run(&mut server, port);
        // Each worker says it when it has started; the socket listens before.
        wait_until("both workers say what they run", || {
            let log = server.log();
            (0..2).all(|worker| log.contains(&format!("worker {worker}: vanilla on")))
        });
        server.log()
    };
    let log = drivers("150");
    let why = "the limit on locked memory (ulimit -l) is 150 KiB for all processes of the user, \
               and the rings of 2 workers lock 208 KiB";
    for worker in 0..2 {
        assert!(log.contains(&format!("worker {worker}: vanilla on epoll (no io_uring: {why})")), "{log}");
    }
    let log = drivers("unlimited");
    assert!((0..2).all(|worker| log.contains(&format!("worker {worker}: vanilla on uring"))), "{log}");
}

#[test]
#[parallel]
fn a_server_that_can_not_start_fails_with_a_message() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = command().args(["-p", &port]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && stderr.contains("cannot listen on"), "{stderr}");
}

#[test]
#[parallel]
fn of_equal_flags_the_last_one_counts_and_lists_grow() {
    let flags = ["-m", "64", "-m", "128m", "-C", "-C", "-c", "10", "-c", "20"];
    let lists = ["-l", "127.0.0.1", "-l", "127.0.0.2", "-o", "idle_timeout=500", "-o", "modern"];
    let server = Memcached::start(&[&flags[..], &lists[..]].concat());
    let settings = String::from_utf8(server.talk(b"stats settings\r\n")).unwrap();
    for line in [
        "maxbytes 134217728",
        "cas_enabled no",
        "maxconns 20",
        "inter 127.0.0.1,127.0.0.2",
        "idle_timeout 500",
    ] {
        assert!(settings.contains(&format!("STAT {line}\r\n")), "no {line} in {settings}");
    }
}

/// memcached's tests take an option that its help names for one that is built in.
#[test]
#[parallel]
fn the_help_names_no_option_of_parts_that_are_not_there() {
    let help = command().arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(help.contains("Refused") && !help.contains("ext_path") && !help.contains("proxy_config"));
}

#[test]
#[parallel]
fn flags_that_can_not_be_honoured_are_refused_with_a_reason() {
    for (arguments, reason) in [
        (&["-L"][..], "-L is refused: segments are smaller than large pages"),
        (&["-d"], "-d is refused"),
        (&["-k"], "-k is refused"),
        (&["-e", "/tmp/x"], "-e is refused"),
        (&["-o", "ext_path=/tmp/x:1G"], "there is no storage but memory"),
        (&["-Z"], "ssl_chain_cert"),
        (&["-S"], "MEMCACHED_SASL_PWDB"),
        (&["-Y", "/nonexistent"], "/nonexistent"),
        (&["-m", "64", "-I", "512m"], "at most half of the memory"),
        (&["-l", "0.0.0.0"], "--listen-unauthenticated"),
        (&["-l", "8.8.8.8"], "--listen-unauthenticated"),
        (&["-p", "0"], "nothing to listen on"),
        (&["-u", "no-such-user-here"], "no user"),
        (&["-B", "smoke"], "ascii"),
        (&["-p", "70000"], "port"),
        (&["-o", "bogus"], "no such option"),
        (&["-o", "drop_privileges"], "-o drop_privileges is refused"),
        (&["-U", "11211", "-Y", "/dev/null"], "-U is refused"),
    ] {
        let output = command()
            .args(arguments)
            .env_remove("MEMCACHED_SASL_PWDB")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && stderr.contains(reason), "{arguments:?}: {stderr}");
    }
}

#[test]
#[parallel]
fn clients_must_authenticate_and_sighup_reloads_the_users() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    std::fs::write(&users, "ann:secret\n").unwrap();
    let server = Memcached::start(&["-Y", users.to_str().unwrap()]);
    let login = |token: &str| server.talk(format!("set a 0 0 {}\r\n{token}\r\n", token.len()).as_bytes());
    assert_eq!(server.talk(b"get somekey\r\n"), b"CLIENT_ERROR unauthenticated\r\n");
    assert_eq!(login("ann secret"), b"STORED\r\n");
    assert_eq!(login("bob other"), b"CLIENT_ERROR authentication failure\r\n");
    std::fs::write(&users, "bob:other\n").unwrap();
    server.signal(Signal::HUP);
    wait_until("the new user is known", || login("bob other") == b"STORED\r\n");
    assert_eq!(login("ann secret"), b"CLIENT_ERROR authentication failure\r\n");
}

#[test]
#[parallel]
fn the_shutdown_command_works_where_it_is_enabled() {
    let server = Memcached::start(&[]);
    assert_eq!(server.talk(b"shutdown\r\n"), b"SERVER_ERROR: shutdown not enabled\r\n");
    let mut server = Memcached::start(&["-A"]);
    assert_eq!(server.talk(b"shutdown x\r\n"), b"CLIENT_ERROR invalid shutdown mode\r\n");
    assert_eq!(server.talk(b"shutdown\r\n"), b"");
    assert!(server.wait().success());
}

#[test]
#[parallel]
fn gets_are_answered_by_udp_in_frames() {
    let port = free_port();
    let server = Memcached::start(&["-U", &port.to_string()]);
    let value = vec![b'u'; 5000];
    let set = [b"set k 0 0 5000\r\n".to_vec(), value.clone(), b"\r\n".to_vec()].concat();
    assert_eq!(server.talk(&set), b"STORED\r\n");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    socket.connect(("127.0.0.1", port)).unwrap();
    socket.send(b"\x12\x34\x00\x00\x00\x01\x00\x00get k\r\n").unwrap();
    let mut parts = Vec::new();
    loop {
        let mut datagram = [0; 2000];
        let length = uninterrupted(|| socket.recv(&mut datagram)).unwrap();
        assert!(length <= 1400 && datagram[..2] == [0x12, 0x34]);
        parts.push((datagram[3], datagram[8..length].to_vec()));
        if parts.len() == usize::from(datagram[5]) {
            break;
        }
    }
    parts.sort();
    let answer: Vec<u8> = parts.into_iter().flat_map(|(_, part)| part).collect();
    assert_eq!(answer, [b"VALUE k 0 5000\r\n".to_vec(), value, b"\r\nEND\r\n".to_vec()].concat());
    // A datagram that is no frame, a part of a request, or a bad command gets no response, and does
    // no harm.
    for silent in [&b"short"[..], b"\0\x01\0\0\0\x02\0\0get k\r\n", b"\0\x01\0\0\0\x01\0\0bogus\r\n"] {
        socket.send(silent).unwrap();
    }
    socket.send(b"\0\x02\0\0\0\x01\0\0mn\r\n").unwrap();
    let mut datagram = [0; 2000];
    let length = uninterrupted(|| socket.recv(&mut datagram)).unwrap();
    assert_eq!(&datagram[..length], b"\0\x02\0\0\0\x01\0\0MN\r\n");
}

/// Anybody can forge a datagram's sender.
#[test]
#[parallel]
fn a_datagram_changes_nothing_and_gets_a_short_answer_unless_asked() {
    let number = Cell::new(0_u8);
    // What comes to this request, and not to one before it, within a time.
    let ask_for = |socket: &UdpSocket, request: &[u8], patience: Duration| -> Vec<u8> {
        number.set(number.get() + 1);
        socket.send(&[&[0, number.get()], &b"\0\0\0\x01\0\0"[..], request].concat()).unwrap();
        socket.set_read_timeout(Some(patience)).unwrap();
        let mut datagram = [0; 2000];
        loop {
            match uninterrupted(|| socket.recv(&mut datagram)) {
                Ok(length) if datagram[1] == number.get() => return datagram[8..length].to_vec(),
                Ok(_) => {}
                Err(_) => return Vec::new(),
            }
        }
    };
    let ask = |socket: &UdpSocket, request: &[u8]| ask_for(socket, request, Duration::from_secs(60));
    let ask_in_vain =
        |socket: &UdpSocket, request: &[u8]| ask_for(socket, request, Duration::from_millis(100));
    let start = |flags: &[&str]| {
        let port = free_port();
        let server = Memcached::start(&[&["-A", "-U", &port.to_string()][..], flags].concat());
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(("127.0.0.1", port)).unwrap();
        // It may take TCP connections before datagrams.
        wait_until("it answers datagrams", || !ask_in_vain(&socket, b"get none\r\n").is_empty());
        (server, socket)
    };
    let (server, socket) = start(&[]);
    let value = "v".repeat(20_000);
    let set = format!("set k 0 0 1\r\nx\r\nset long 0 0 20000\r\n{value}\r\n");
    assert_eq!(server.talk(set.as_bytes()), b"STORED\r\nSTORED\r\n");
    for refused in [
        "flush_all",
        "shutdown",
        "set k 0 0 1\r\ny",
        "delete k",
        "gat 1 k",
        "stats",
        "lru_crawler metadump all",
        "mg k T1",
        "ms k 1\r\ny",
        "verbosity 3",
        "get k\r\nflush_all",
    ] {
        let answer = ask_in_vain(&socket, format!("{refused}\r\n").as_bytes());
        assert!(answer.is_empty() || answer.starts_with(b"VALUE k 0 1\r\nx\r\n"), "{refused}: {answer:?}");
    }
    // The binary protocol's flush, opcode 8.
    let flush = [&[0x80, 8][..], &[0; 22]].concat();
    assert!(ask_in_vain(&socket, &flush).is_empty());
    // The k of the text requests is still there.
    assert_eq!(ask(&socket, b"get k\r\n"), b"VALUE k 0 1\r\nx\r\nEND\r\n");
    assert!(ask(&socket, b"mg k v\r\n").starts_with(b"VA 1"));
    assert_eq!(ask(&socket, b"get long\r\n"), b"SERVER_ERROR response too large\r\n");
    let (_asked, socket) = start(&["--udp-all-commands"]);
    assert_eq!(ask(&socket, b"set k 0 0 1\r\ny\r\n"), b"STORED\r\n");
    assert_eq!(ask(&socket, b"flush_all\r\n"), b"OK\r\n");
}
