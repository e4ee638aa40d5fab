//! Clients that do not read, or take their time, on TCP, TLS and Unix sockets.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adapters::tls::rustls::pki_types::ServerName;
use adapters::tls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, crypto};
use serial_test::parallel;
use tempfile::TempDir;
use tests::KillOnDrop;
use tests::memcached::{command, expect, free_port, read_some, set_request, wait_until};

const VALUE: usize = 500_000;
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Tcp,
    Tls,
    Unix,
}

trait Client: Read + Write {
    /// Says that no more requests come.
    fn finish(&mut self);
}

impl Client for TcpStream {
    fn finish(&mut self) {
        self.shutdown(Shutdown::Write).unwrap();
    }
}

impl Client for UnixStream {
    fn finish(&mut self) {
        self.shutdown(Shutdown::Write).unwrap();
    }
}

impl Client for StreamOwned<ClientConnection, TcpStream> {
    fn finish(&mut self) {
        self.conn.send_close_notify();
        self.flush().unwrap();
    }
}

struct Server {
    process: KillOnDrop,
    transport: Transport,
    port: u16,
    socket: PathBuf,
    roots: RootCertStore,
    _folder: TempDir,
}

impl Server {
    /// Starts a server that asks for a login if there are `users`.
    fn start(transport: Transport, users: Option<&str>, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let (socket, port, mut roots) = (path("socket"), free_port(), RootCertStore::empty());
        let mut command = command();
        command.args(["-t", "2"]).args(arguments);
        if let Some(users) = users {
            std::fs::write(path("users"), users).unwrap();
            command.arg("-Y").arg(path("users"));
        }
        match transport {
            Transport::Unix => command.arg("-s").arg(&socket),
            Transport::Tcp => command.args(["-p", &port.to_string()]),
            Transport::Tls => {
                let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
                roots.add(made.cert.der().clone()).unwrap();
                std::fs::write(path("chain.pem"), made.cert.pem()).unwrap();
                std::fs::write(path("key.pem"), made.signing_key.serialize_pem()).unwrap();
                let (chain, key) = (path("chain.pem"), path("key.pem"));
                let files = format!("ssl_chain_cert={},ssl_key={}", chain.display(), key.display());
                command.args(["-Z", "-o", &files, "-p", &port.to_string()])
            }
        };
        let process = command.spawn().unwrap().into();
        let server = Self { process, transport, port, socket, roots, _folder: folder };
        wait_until("the server listens", || match transport {
            Transport::Unix => UnixStream::connect(&server.socket).is_ok(),
            _ => TcpStream::connect(("127.0.0.1", port)).is_ok(),
        });
        server
    }

    /// A connection whose system buffers hold little.
    fn connect(&self) -> Box<dyn Client> {
        if self.transport == Transport::Unix {
            let stream = UnixStream::connect(&self.socket).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            return Box::new(stream);
        }
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(64 << 10).unwrap();
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], self.port));
        socket.connect(&address.into()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let stream = TcpStream::from(socket);
        if self.transport == Transport::Tcp {
            return Box::new(stream);
        }
        let provider = Arc::new(crypto::ring::default_provider());
        let config =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(self.roots.clone()).with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        Box::new(StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), stream))
    }

    fn request(&self, request: &[u8], reply: &[u8]) {
        let mut client = self.connect();
        client.write_all(request).unwrap();
        expect(&mut client, reply).unwrap();
    }

    fn stat(&self, name: &str) -> u64 {
        let mut client = self.connect();
        client.write_all(b"stats\r\n").unwrap();
        let mut answer = String::new();
        let mut buffer = [0; 4096];
        while !answer.ends_with("END\r\n") {
            let length = read_some(&mut client, &mut buffer).unwrap();
            assert!(length > 0, "{answer}");
            answer.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
        }
        let prefix = format!("STAT {name} ");
        let value = answer.lines().find_map(|line| line.strip_prefix(&prefix)?.trim().parse().ok());
        value.unwrap_or_else(|| panic!("no {name} in {answer}"))
    }

    fn sockets(&self) -> usize {
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", self.process.id())).unwrap();
        let targets = descriptors.flatten().flat_map(|descriptor| std::fs::read_link(descriptor.path()));
        targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
    }
}

/// Reads this many bytes every 20 ms for some time, then everything. The kernel lets the server
/// write again when a third of its send buffer is free, up to 1.3 MiB. That must not take as long
/// as the idle timeout.
fn read_slowly(client: &mut dyn Client, bytes: usize, time: Duration) -> u64 {
    let (start, mut taken) = (Instant::now(), 0);
    let mut buffer = vec![0; bytes];
    while start.elapsed() < time {
        client.read_exact(&mut buffer).unwrap_or_else(|error| panic!("{error} after {:?}", start.elapsed()));
        taken += bytes as u64;
        std::thread::sleep(Duration::from_millis(20));
    }
    taken + std::io::copy(client, &mut std::io::sink()).unwrap()
}

/// Runs `check` with each transport at the same time.
fn with_each(check: impl Fn(Transport) + Sync) {
    std::thread::scope(|scope| {
        let check = &check;
        let running = [Transport::Tcp, Transport::Tls, Transport::Unix]
            .map(|transport| (transport, scope.spawn(move || check(transport))));
        for (transport, thread) in running {
            assert!(thread.join().is_ok(), "failed on {transport:?}");
        }
    });
}

#[test]
#[parallel]
fn a_client_that_is_disconnected_while_it_does_not_read_holds_no_descriptor() {
    with_each(|transport| {
        for driver in tests::drivers(["uring", "epoll"]) {
            let server = Server::start(transport, None, &["-o", "idle_timeout=3", "--driver", driver]);
            server.request(&set_request("k", VALUE), b"STORED\r\n");
            wait_until("the other connections are gone", || server.stat("curr_connections") <= 1);
            let before = server.sockets();
            let mut stalled: Vec<_> = (0..4).map(|_| server.connect()).collect();
            for client in &mut stalled {
                client.write_all(&b"get k\r\n".repeat(20)).unwrap();
            }
            wait_until("they are disconnected", || server.stat("idle_kicks") >= 4);
            wait_until(&format!("their descriptors are closed on {driver}"), || {
                server.sockets() <= before + 1
            });
            wait_until("they do not count", || server.stat("curr_connections") <= 1);
            for mut client in stalled {
                let taken = std::io::copy(&mut client, &mut std::io::sink());
                assert!(
                    taken.is_err() || taken.is_ok_and(|bytes| bytes < 20 * VALUE as u64),
                    "it got everything"
                );
            }
        }
    });
}

#[test]
#[parallel]
fn a_client_that_ends_its_requests_counts_until_it_has_taken_the_replies() {
    with_each(|transport| {
        for driver in tests::drivers(["uring", "epoll"]) {
            let server = Server::start(transport, None, &["--driver", driver]);
            server.request(&set_request("k", VALUE), b"STORED\r\n");
            wait_until("the other connections are gone", || server.stat("curr_connections") <= 1);
            let mut slow = server.connect();
            slow.write_all(&b"get k\r\n".repeat(20)).unwrap();
            slow.finish();
            std::thread::sleep(Duration::from_millis(300));
            wait_until(&format!("it counts on {driver}"), || server.stat("curr_connections") == 2);
            let reply =
                [format!("VALUE k 0 {VALUE}\r\n").as_bytes(), &[b'v'; VALUE], b"\r\nEND\r\n"].concat();
            expect(&mut slow, &reply.repeat(20)).unwrap();
            wait_until("it does not count any more", || server.stat("curr_connections") <= 1);
        }
    });
}

#[test]
#[ignore = "long"]
#[parallel]
fn a_client_that_has_logged_in_may_take_longer_than_the_login_for_its_replies() {
    with_each(|transport| {
        let server = Server::start(transport, Some("ann:secret\n"), &[]);
        let login = b"set a 0 0 10\r\nann secret\r\n";
        server.request(&[&login[..], &set_request("k", VALUE)].concat(), b"STORED\r\nSTORED\r\n");
        let mut client = server.connect();
        // All in one piece, so that the first reply cannot be sent without those that are not read.
        let gets = 200;
        client.write_all(&[&login[..], &b"get k\r\n".repeat(gets), b"quit\r\n"].concat()).unwrap();
        let taken = read_slowly(&mut *client, 128 << 10, Duration::from_secs(12));
        assert!(taken > (gets * VALUE) as u64, "{taken} bytes");
    });
}

#[test]
#[ignore = "timing"]
#[parallel]
fn a_list_of_keys_that_is_taken_slowly_is_not_cut_at_the_idle_timeout() {
    with_each(|transport| {
        let server = Server::start(transport, None, &["-o", "idle_timeout=1"]);
        let (keys, long) = (60_000, "k".repeat(230));
        let mut sets = String::new();
        for index in 0..keys {
            sets.push_str(&format!("set {long}{index} 0 0 1 noreply\r\nv\r\n"));
        }
        server.request((sets + "mn\r\n").as_bytes(), b"MN\r\n");
        let mut client = server.connect();
        client.write_all(b"lru_crawler metadump all\r\nquit\r\n").unwrap();
        let taken = read_slowly(&mut *client, 48 << 10, Duration::from_secs(4));
        assert!(taken > keys * 300, "{taken} bytes");
        assert_eq!(server.stat("idle_kicks"), 0);
    });
}
