//! What systemd passes: listening sockets, and where readiness is sent to.

use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serial_test::parallel;
use tests::memcached::{Memcached, binary, expect, free_port, uninterrupted};

/// A command by which `python` passes a listening socket as descriptor 3 to the server.
fn with_socket(python: &Path, port: u16, arguments: &[&str]) -> Command {
    let pass = "import os, socket, sys\n\
        listener = socket.create_server(('127.0.0.1', int(sys.argv[2])))\n\
        os.dup2(listener.fileno(), 3)\n\
        os.set_inheritable(3, True)\n\
        os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()))\n\
        os.execv(sys.argv[1], [sys.argv[1], *sys.argv[3:]])";
    let mut command = Command::new(python);
    command.args(["-c", pass]).arg(binary()).arg(port.to_string()).args(arguments);
    command
}

#[test]
#[parallel]
fn a_socket_from_systemd_is_served_and_readiness_notified() {
    let Some(python) = tests::program("python3") else { return };
    let folder = tempfile::tempdir().unwrap();
    let notices = UnixDatagram::bind(folder.path().join("notify")).unwrap();
    notices.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let port = free_port();
    let mut command = with_socket(&python, port, &["-u", "root"]);
    command.env("NOTIFY_SOCKET", folder.path().join("notify"));
    let mut server = Memcached::run(&mut command, port);
    let mut notice = [0; 100];
    let length = uninterrupted(|| notices.recv(&mut notice)).unwrap();
    assert!(String::from_utf8_lossy(&notice[..length]).contains("READY=1"));
    assert_eq!(server.talk(b"mn\r\n"), b"MN\r\n");
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    let length = uninterrupted(|| notices.recv(&mut notice)).unwrap();
    assert!(String::from_utf8_lossy(&notice[..length]).contains("STOPPING=1"));
}

/// systemd makes the socket as root, and the kernel lets only sockets of one user share an address.
#[test]
#[parallel]
fn a_socket_of_root_is_served_by_all_workers_of_another_user() {
    let Some(python) = tests::program("python3") else { return };
    let Some(()) = tests::root() else { return };
    for driver in tests::drivers(["epoll", "uring"]) {
        let port = free_port();
        let mut command = with_socket(&python, port, &["-u", "nobody", "-t", "2", "--driver", driver]);
        let mut server = Memcached::run(&mut command, port);
        let mut held: Vec<_> = (0..8).map(|_| server.connect()).collect();
        let connections = || -> Vec<u64> {
            let policy = String::from_utf8_lossy(&server.talk(b"stats policy\r\n")).into_owned();
            let workers = policy.lines().filter_map(|line| line.split_once(" without_napi="));
            workers.map(|(_, rest)| rest.split(' ').next().unwrap().parse().unwrap()).collect()
        };
        for stream in &mut held {
            stream.write_all(b"mn\r\n").unwrap();
            expect(stream, b"MN\r\n").unwrap();
        }
        let each = connections();
        assert!(each.len() == 2 && each.iter().all(|count| *count >= 3), "{each:?} on {driver}");
        drop(held);
        server.signal(Signal::TERM);
        assert!(server.wait().success());
    }
}

fn unit(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../contrib").join(name);
    std::fs::read_to_string(path).unwrap()
}

fn setting<'a>(unit: &'a str, name: &str) -> &'a str {
    let mut values = unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    values.rfind(|value| !value.is_empty()).unwrap_or_else(|| panic!("no {name}= in {unit}"))
}

#[test]
#[parallel]
fn the_units_give_flags_that_the_server_takes_and_room_for_its_journal() {
    for name in ["memcached.service", "memcached-policy.conf"] {
        let unit = unit(name);
        let mut words = setting(&unit, "ExecStart").split(' ');
        assert_eq!(words.next(), Some("/usr/local/bin/lull-memcached"));
        let output = Command::new(binary()).args(words).arg("-V").output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
    // ProtectSystem=strict lets the service write nowhere else.
    assert_eq!(setting(&unit("memcached.service"), "ProtectSystem"), "strict");
    let policy = unit("memcached-policy.conf");
    let journals = Path::new("/run").join(setting(&policy, "RuntimeDirectory"));
    assert_eq!(journals, policies::JournalDir::default().path());
    assert_eq!(setting(&policy, "RuntimeDirectoryPreserve"), "yes");
    // What policies-apply@.service has set stays.
    assert!(setting(&policy, "ExecStopPost").contains("lull-policies restore --ended "));
}
