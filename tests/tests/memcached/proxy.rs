//! Servers behind a proxy that spreads keys over them.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use serial_test::parallel;
use tests::KillOnDrop;
use tests::memcached::{Memcached, expect, free_port, wait_until};

/// twemproxy with ketama over the servers. It leaves out a server that failed for a moment.
fn twemproxy(folder: &std::path::Path, port: u16, servers: &[Memcached]) -> Option<KillOnDrop> {
    // Debian installs it outside of the path of users other than root.
    let usual = std::path::PathBuf::from("/usr/sbin/nutcracker");
    let program = if usual.is_file() { usual } else { tests::program("nutcracker")? };
    let mut config = format!(
        "pool:\n  listen: 127.0.0.1:{port}\n  hash: fnv1a_64\n  distribution: ketama\n  timeout: 20000\n  auto_eject_hosts: true\n  server_retry_timeout: 500\n  server_failure_limit: 1\n  servers:\n"
    );
    for (number, server) in servers.iter().enumerate() {
        config.push_str(&format!("   - {}:1 server{number}\n", server.address));
    }
    let path = folder.join("nutcracker.yml");
    std::fs::write(&path, config).unwrap();
    let child = Command::new(program)
        .arg("-c")
        .arg(path)
        .args(["-s", &free_port().to_string(), "-a", "127.0.0.1"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Some(child.into())
}

const KEYS: usize = 600;

fn value(key: usize) -> String {
    format!("value-{key}")
}

#[test]
#[parallel]
fn when_a_server_behind_twemproxy_is_killed_only_its_items_are_lost() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let mut servers: Vec<Memcached> = (0..3).map(|_| Memcached::start(&[])).collect();
    let Some(_proxy) = twemproxy(folder.path(), port, &servers) else { return };
    let proxy = SocketAddr::from(([127, 0, 0, 1], port));
    wait_until("the proxy listens", || TcpStream::connect(proxy).is_ok());
    let connect = || {
        let stream = TcpStream::connect(proxy).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    };
    let mut client = connect();
    for key in 0..KEYS {
        let value = value(key);
        client.write_all(format!("set key-{key} 7 0 {}\r\n{value}\r\n", value.len()).as_bytes()).unwrap();
        expect(&mut client, b"STORED\r\n").unwrap();
    }
    let held: Vec<u64> = servers.iter().map(|server| server.stat("curr_items")).collect();
    assert_eq!(held.iter().sum::<u64>(), KEYS as u64);
    assert!(held.iter().all(|items| *items > 60), "ketama spread them {held:?}");
    // A multiget over all three servers.
    client.write_all(b"get key-1 key-2 key-3 key-4 key-5 nosuch\r\n").unwrap();
    let mut answer = String::new();
    while !answer.ends_with("END\r\n") {
        let mut part = [0; 1024];
        let length = std::io::Read::read(&mut client, &mut part).unwrap();
        assert!(length > 0, "{answer}");
        answer.push_str(std::str::from_utf8(&part[..length]).unwrap());
    }
    assert_eq!(answer.matches("VALUE ").count(), 5, "{answer}");

    let port = servers[1].address.port();
    drop(servers.remove(1));
    servers.insert(1, Memcached::start_on(port, &[]));
    // The proxy leaves the server out at the first error, and tries it again after its retry timeout.
    wait_until("the proxy uses all three servers again", || {
        let mut client = connect();
        (0..KEYS).all(|key| {
            client.write_all(format!("get key-{key}\r\n").as_bytes()).unwrap();
            let found = format!("VALUE key-{key} 7 {}\r\n{}\r\nEND\r\n", value(key).len(), value(key));
            let mut head = [0; 5];
            if std::io::Read::read_exact(&mut client, &mut head).is_err() {
                return false;
            }
            match &head {
                b"VALUE" => expect(&mut client, &found.as_bytes()[5..]).is_ok(),
                b"END\r\n" => true,
                _ => false,
            }
        }) && servers[1].stat("get_misses") >= held[1]
    });
    let mut client = connect();
    let mut lost = 0;
    for key in 0..KEYS {
        client.write_all(format!("get key-{key}\r\n").as_bytes()).unwrap();
        let found = format!("VALUE key-{key} 7 {}\r\n{}\r\nEND\r\n", value(key).len(), value(key));
        let mut head = [0; 5];
        std::io::Read::read_exact(&mut client, &mut head).unwrap();
        match &head {
            b"VALUE" => expect(&mut client, &found.as_bytes()[5..]).unwrap(),
            _ => lost += 1,
        }
    }
    assert_eq!(lost, held[1], "only what the killed one held is gone");
    for key in 0..KEYS {
        let value = value(key);
        client.write_all(format!("set key-{key} 7 0 {}\r\n{value}\r\n", value.len()).as_bytes()).unwrap();
        expect(&mut client, b"STORED\r\n").unwrap();
    }
    assert_eq!(servers.iter().map(|server| server.stat("curr_items")).collect::<Vec<_>>(), held);
}
