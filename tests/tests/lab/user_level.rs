//! The memcached on a network stack in user space, as `lab paper` starts it.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddrV4, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lab::experiment_process::{ProcessRole, SUBCOMMAND};
use lab::fleet::{FleetLoad, FleetPacing};
use lab::testbed::{CLIENT_ADDRESS, PREFIX_LENGTH, SERVER_ADDRESS, SERVER_INTERFACE, SERVER_MAC, Testbed};
use lab::user_level_server::{PORT, UserLevelServerReady, UserLevelServerSpec};
use policies::counters::busy_poll_rx_packets;
use rustix::process::{Pid, Signal, kill_process};
use serial_test::serial;
use tests::isolated;

use super::server::{connect, on_client_side};

const ADDRESS: SocketAddrV4 = SocketAddrV4::new(SERVER_ADDRESS, PORT);

/// The server's process, which ends with this value.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the server in the testbed. Returns what became of it.
fn start(testbed: &Testbed, interface: &str) -> (Server, UserLevelServerReady) {
    let role = ProcessRole::UserLevelServer(UserLevelServerSpec {
        interface: interface.to_owned(),
        hardware: SERVER_MAC,
        address: SERVER_ADDRESS,
        prefix_length: PREFIX_LENGTH,
        core: 0,
        memory: 0,
    });
    let namespace = format!("/proc/{}/fd/{}", std::process::id(), testbed.server.file().as_raw_fd());
    let mut child = Command::new(tests::own_program("lab"))
        .args([SUBCOMMAND, &serde_json::to_string(&role).unwrap(), &namespace])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut messages = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str(&messages.next().unwrap().unwrap()).unwrap();
    let mut ready = next();
    if matches!(ready, UserLevelServerReady::Listens) {
        let send = || UdpSocket::bind((CLIENT_ADDRESS, 0))?.send_to(&[0], ADDRESS);
        testbed.client.run(send).unwrap();
        ready = next();
    }
    (Server(child), ready)
}

fn serves(testbed: &Testbed) -> Server {
    let (server, ready) = start(testbed, SERVER_INTERFACE);
    assert!(matches!(ready, UserLevelServerReady::Serves), "{ready:?}");
    server
}

/// Segments that the kernel of the server's namespace has received, and sockets for the server's port that it has.
fn kernel_tcp(testbed: &Testbed) -> (u64, usize) {
    let read = || {
        let snmp = fs::read_to_string("/proc/thread-self/net/snmp")?;
        Ok((snmp, fs::read_to_string("/proc/thread-self/net/tcp")?))
    };
    let (snmp, sockets) = testbed.server.run(read).unwrap();
    let mut lines = snmp.lines().filter(|line| line.starts_with("Tcp:"));
    let names = lines.next().unwrap().split_whitespace();
    let values = lines.next().unwrap().split_whitespace();
    let (_, received) = names.zip(values).find(|(name, _)| *name == "InSegs").unwrap();
    (received.parse().unwrap(), sockets.matches(&format!(":{PORT:04X} ")).count())
}

/// Packets that busy polling has received, and all that the server's interface has.
fn received(testbed: &Testbed) -> (f64, f64) {
    let read = || Ok((busy_poll_rx_packets()?, fs::read_to_string("/proc/thread-self/net/dev")?));
    let (polled, interfaces) = testbed.server.run(read).unwrap();
    let interface = interfaces.lines().find(|line| line.trim().starts_with(SERVER_INTERFACE)).unwrap();
    (polled as f64, interface.split_whitespace().nth(2).unwrap().parse().unwrap())
}

/// The value of each record: its own, of several packets for some.
fn value(record: usize) -> Vec<u8> {
    (0..(record * 211) % 5000).map(|at| b'a' + ((record + at) % 26) as u8).collect()
}

fn ask(stream: &mut TcpStream, request: &[u8], reply: &[u8]) {
    stream.write_all(request).unwrap();
    let mut received = vec![0; reply.len()];
    stream.read_exact(&mut received).unwrap();
    assert!(received == reply, "{:?}", String::from_utf8_lossy(&received));
}

fn open() -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&ADDRESS.into(), Duration::from_secs(60))?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    Ok(stream)
}

#[test]
#[isolated(root)]
#[serial]
fn values_come_back_as_they_were_stored_and_the_servers_kernel_sees_no_tcp() {
    const CONNECTIONS: usize = 60;
    let testbed = Testbed::new(1).unwrap();
    let server = serves(&testbed);
    assert_eq!(kernel_tcp(&testbed), (0, 0));
    on_client_side(&testbed, || {
        let mut streams: Vec<TcpStream> = (0..CONNECTIONS).map(|_| open().unwrap()).collect();
        for (record, stream) in streams.iter_mut().enumerate() {
            let value = value(record);
            let set = format!("set key-{record} {record} 0 {}\r\n", value.len());
            ask(stream, &[set.as_bytes(), &value, b"\r\n"].concat(), b"STORED\r\n");
        }
        // Another connection than the one that has stored it, twice in one packet.
        for (at, stream) in streams.iter_mut().enumerate() {
            let record = (at + 1) % CONNECTIONS;
            let value = value(record);
            let head = format!("VALUE key-{record} {record} {}\r\n", value.len());
            let reply = [head.as_bytes(), &value, b"\r\nEND\r\n"].concat();
            let get = format!("get key-{record}\r\n");
            ask(stream, get.repeat(2).as_bytes(), &reply.repeat(2));
        }
        // Connections that close make room, and `quit` closes.
        drop(streams);
        let mut stream = open().unwrap();
        ask(&mut stream, b"get none\r\nquit\r\n", b"END\r\n");
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    });
    assert_eq!(kernel_tcp(&testbed), (0, 0), "the kernel of the server has received TCP");

    let pid = Pid::from_raw(server.0.id() as i32).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let mut server = server;
    server.0.wait().unwrap();
    // Nobody else is there: the packets go to the kernel again, which has no such server.
    let error = on_client_side(&testbed, || open().unwrap_err());
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{error}");
    assert!(kernel_tcp(&testbed).0 > 0);
}

#[test]
#[isolated(root)]
#[serial]
fn a_fleet_loads_it_again_and_again_and_its_own_thread_receives_the_packets() {
    let testbed = Testbed::new(1).unwrap();
    let server = serves(&testbed);
    let (polled_before, all_before) = received(&testbed);
    for connections in [8, 200] {
        on_client_side(&testbed, || {
            let mut fleet = connect(ADDRESS, connections).unwrap();
            let load = FleetLoad { pacing: FleetPacing::Open { rate: 500.0 }, warm_up: 0.1, duration: 0.5 };
            let mut replies = 0;
            // Where other work has both cores, few replies come within one run.
            for _ in 0..20 {
                let run = fleet.run(&load).unwrap();
                assert_eq!((run.errors, run.misses), (0, 0), "{run:?}");
                replies += run.all_replies;
                if replies > 20 {
                    break;
                }
            }
            assert!(replies > 20, "{replies}");
            fleet.close().unwrap();
        });
    }
    assert_eq!(kernel_tcp(&testbed), (0, 0));
    let (polled, all) = received(&testbed);
    let share = (polled - polled_before) / (all - all_before);
    // Where other work has the core, the kernel receives what has come meanwhile.
    assert!(share > 0.0, "{share} of {} packets", all - all_before);
    drop(server);
}

#[test]
#[isolated(root)]
#[serial]
fn where_the_driver_runs_no_xdp_programs_it_says_which_step_failed_and_what_it_needs() {
    let testbed = Testbed::new(1).unwrap();
    let (_server, ready) = start(&testbed, "lo");
    let UserLevelServerReady::Refused { reason } = ready else { panic!("{ready:?}") };
    for expected in ["can't attach the XDP program in native mode", "needs a driver"] {
        assert!(reason.contains(expected), "no {expected:?} in {reason}");
    }
}
