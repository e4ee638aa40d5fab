//! Servers of other projects, as processes on the testbed's server side.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab::peers::{EchoServerSpec, Peer, RequestShape};
use lab::testbed::{SERVER_ADDRESS, Testbed};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tests::closed_loop::{ECHO, Exchange, Load};
use tests::memcached::wait_until;
use tests::{KillOnDrop, isolated, program};

use super::attached::{CONNECTIONS, epolls, family};

const HTTP: Exchange = Exchange { request: b"GET / HTTP/1.1\r\nHost: lull\r\n\r\n", end: b"\r\n\r\nhello\n" };
pub const MISS: Exchange = Exchange { request: b"get lull\r\n", end: b"END\r\n" };
/// The servers' port, of a network namespace in which nothing else listens.
pub const PORT: u16 = 7000;
/// Set for a test that is run once more as a server.
const SERVES: &str = "LULL_TEST_SERVES";

pub struct Server {
    pub child: KillOnDrop,
    pub address: SocketAddr,
    pub exchange: Exchange,
    /// Its configuration.
    _folder: TempDir,
}

impl Server {
    fn start(command: &mut Command, exchange: Exchange, folder: TempDir) -> Self {
        let child = command.stdout(Stdio::null()).spawn().expect("the server's command").into();
        let address = SocketAddr::from((SERVER_ADDRESS, PORT));
        let server = Self { child, address, exchange, _folder: folder };
        wait_until("the server listens", || TcpStream::connect(address).is_ok());
        server
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Loads the server from the testbed's client side. It serves when this returns.
    pub fn load(&self, testbed: &Testbed) -> Load {
        self.load_by(testbed, CONNECTIONS, Duration::ZERO)
    }

    /// As [`load`](Self::load), by clients that pause after each response.
    pub fn load_by(&self, testbed: &Testbed, connections: usize, pause: Duration) -> Load {
        let load = Load::start(testbed, self.address, connections, self.exchange, pause);
        wait_until("the server serves", || connections == 0 || load.serves_all() && load.requests() > 100);
        load
    }

    /// Whether an epoll instance of the server or of its children polls.
    pub fn polls(&self) -> bool {
        family(self.pid()).into_iter().flat_map(epolls).any(|(.., params)| params.prefer_busy_poll == 1)
    }

    pub fn wait_polls(&self) {
        wait_until("the server is polled", || self.polls());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Children of a killed server would stay. Fails if it has ended.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let end = Instant::now() + Duration::from_secs(2);
        while Instant::now() < end && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    // Servers that give up root have to read it.
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(folder.path(), everybody).unwrap();
    folder
}

/// A command on the server's core.
fn on_core_0(program: &Path) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", "0"]).arg(program);
    command
}

/// memcached with a worker, which is not Lull's.
pub fn memcached() -> Option<Server> {
    memcached_with(&["-t", "1"])
}

pub fn memcached_with(arguments: &[&str]) -> Option<Server> {
    let mut command = on_core_0(&memcached_program()?);
    command.args(MEMCACHED).args(arguments);
    Some(Server::start(&mut command, MISS, folder()))
}

/// On [`PORT`].
pub const MEMCACHED: [&str; 6] = ["-u", "nobody", "-p", "7000", "-l", "198.18.0.1"];

pub fn memcached_program() -> Option<PathBuf> {
    // Lull's has the same name, in another folder.
    let program = Path::new("/usr/bin/memcached");
    tests::require("memcached of Debian (/usr/bin/memcached)", program.is_file().then(|| program.to_owned()))
}

pub fn nginx(workers: u32, listen: &str) -> Option<Server> {
    let nginx = tests::require("nginx", Some(Path::new("/usr/sbin/nginx")).filter(|path| path.is_file()))?;
    let folder = folder();
    let path = folder.path().display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|name| format!("{name}_temp_path {path}/{name};\n"))
        .collect();
    let config = format!(
        "daemon off; pid {path}/pid; error_log {path}/error.log;\n\
         worker_processes {workers};\n\
         events {{ worker_connections 256; }}\n\
         http {{ access_log off; keepalive_requests 100000000; {temporary}\n\
         server {{ listen {SERVER_ADDRESS}:{PORT} {listen}; location / {{ return 200 \"hello\\n\"; }} }} }}\n"
    );
    fs::write(folder.path().join("nginx.conf"), config).unwrap();
    let mut command = on_core_0(nginx);
    command.arg("-c").arg(folder.path().join("nginx.conf")).arg("-e").arg(folder.path().join("error.log"));
    let server = Server::start(&mut command, HTTP, folder);
    // Its master listens before it starts them.
    wait_until("the workers have begun", || family(server.pid()).len() > workers as usize);
    Some(server)
}

pub fn redis() -> Option<Server> {
    let program = program("redis-server")?;
    let mut command = on_core_0(&program);
    command.args(["--bind", &SERVER_ADDRESS.to_string(), "--port", &PORT.to_string(), "--save", ""]);
    command.args(["--protected-mode", "no"]);
    let exchange = Exchange { request: b"PING\r\n", end: b"+PONG\r\n" };
    Some(Server::start(&mut command, exchange, folder()))
}

pub fn haproxy() -> Option<Server> {
    let haproxy =
        tests::require("haproxy", Some(Path::new("/usr/sbin/haproxy")).filter(|path| path.is_file()))?;
    let folder = folder();
    let config = format!(
        "global\n  nbthread 1\ndefaults\n  mode http\n  timeout client 1m\n  timeout connect 1s\n  timeout server 1m\n\
         frontend lull\n  bind {SERVER_ADDRESS}:{PORT}\n\
         \x20 http-request return status 200 content-type text/plain string \"hello\\n\"\n"
    );
    fs::write(folder.path().join("haproxy.cfg"), config).unwrap();
    let mut command = on_core_0(haproxy);
    command.arg("-db").arg("-f").arg(folder.path().join("haproxy.cfg"));
    Some(Server::start(&mut command, HTTP, folder))
}

const JAVA: &str = r#"
import java.net.*; import java.nio.*; import java.nio.channels.*;
public class Echo { public static void main(String[] a) throws Exception {
  Selector selector = Selector.open();
  ServerSocketChannel listener = ServerSocketChannel.open().bind(new InetSocketAddress(a[0], Integer.parseInt(a[1])));
  listener.configureBlocking(false); listener.register(selector, SelectionKey.OP_ACCEPT);
  ByteBuffer buffer = ByteBuffer.allocateDirect(4096);
  while (true) { selector.select(); var keys = selector.selectedKeys().iterator();
    while (keys.hasNext()) { SelectionKey key = keys.next(); keys.remove();
      if (key.isAcceptable()) { SocketChannel c = listener.accept(); c.configureBlocking(false);
        c.setOption(StandardSocketOptions.TCP_NODELAY, true); c.register(selector, SelectionKey.OP_READ); }
      else { SocketChannel c = (SocketChannel) key.channel(); buffer.clear();
        try { if (c.read(buffer) < 0) { c.close(); continue; } buffer.flip(); c.write(buffer); }
        catch (java.io.IOException e) { c.close(); } } } } } }
"#;

/// An echo server on Java's NIO.
pub fn java() -> Option<Server> {
    let (java, _compiler) = (program("java")?, program("javac")?);
    let folder = folder();
    fs::write(folder.path().join("Echo.java"), JAVA).unwrap();
    let mut command = on_core_0(&java);
    command.arg(folder.path().join("Echo.java")).args([SERVER_ADDRESS.to_string(), PORT.to_string()]);
    Some(Server::start(&mut command, ECHO, folder))
}

const GO: &str = r#"
package main
import ("net"; "os")
func main() {
	listener, err := net.Listen("tcp", os.Args[1])
	if err != nil { panic(err) }
	for {
		connection, err := listener.Accept()
		if err != nil { panic(err) }
		go func() {
			buffer := make([]byte, 4096)
			for {
				length, err := connection.Read(buffer)
				if err == nil { _, err = connection.Write(buffer[:length]) }
				if err != nil { connection.Close(); return }
			}
		}()
	}
}
"#;

/// An echo server with a goroutine for each connection.
pub fn go() -> Option<Server> {
    let go = program("go")?;
    let folder = folder();
    fs::write(folder.path().join("echo.go"), GO).unwrap();
    let built = Command::new(&go)
        .current_dir(folder.path())
        .env("GO111MODULE", "off")
        .env("GOCACHE", folder.path().join("cache"))
        .args(["build", "-o", "echo", "echo.go"])
        .status();
    assert!(built.unwrap().success());
    let mut command = on_core_0(&folder.path().join("echo"));
    command.arg(format!("{SERVER_ADDRESS}:{PORT}"));
    Some(Server::start(&mut command, ECHO, folder))
}

/// The calling test once more, as an echo server; [`serve_if_asked`] is its first statement.
pub fn own(what: &str) -> Server {
    let (child, address) = KillOnDrop::start_until(isolated::once_more().env(SERVES, what), "serves on ");
    Server { child, address: address.parse().unwrap(), exchange: ECHO, _folder: folder() }
}

/// Serves for ever, if this process is to be a server.
pub fn serve_if_asked() {
    let Ok(what) = std::env::var(SERVES) else { return };
    let peer = match what.as_str() {
        "tokio" => Peer::Tokio,
        "io_uring" => Peer::Monoio,
        "own polling" => Peer::Lull,
        other => return serve_by_hand(other),
    };
    let spec = EchoServerSpec {
        peer,
        core: 0,
        service: lab::peers::PeerService::Echo,
        shape: RequestShape { request: 64, reply: 64 },
        address: SERVER_ADDRESS,
        network: (what == "own polling").then(own_network),
        work: Duration::ZERO,
    };
    let ready = |address: SocketAddr, _, _| {
        println!("serves on {address}");
        Ok(())
    };
    lab::peers::serve(&spec, ready).unwrap();
}

fn own_network() -> lab::network::Network {
    let polling = lab::network::PollingConfig { grace_time: "20".parse().unwrap(), ..Default::default() };
    lab::network::Network {
        policy: policies::Policy::KernelPolling,
        driver: runtime::DriverKind::Epoll,
        interface: Some(lab::testbed::SERVER_INTERFACE.to_owned()),
        workers: 1,
        packing_core: Some(1),
        polling,
    }
}

/// Waits in `poll`, or echoes with epoll: with a timeout of 0, or with an instance in another one.
fn serve_by_hand(what: &str) {
    use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
    policies::Cpus::one(0).pin(None).unwrap();
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap();
    println!("serves on {}", SocketAddr::from((SERVER_ADDRESS, PORT)));
    if what == "poll" {
        loop {
            poll(&mut [PollFd::new(&listener, PollFlags::IN)], None).unwrap();
        }
    }
    let flags = epoll::CreateFlags::CLOEXEC;
    let (inner, outer) = (epoll::create(flags).unwrap(), epoll::create(flags).unwrap());
    let watch = |on: &OwnedFd, what: &dyn AsFd, data| {
        epoll::add(on, what.as_fd(), epoll::EventData::new_u64(data), epoll::EventFlags::IN).unwrap();
    };
    watch(&inner, &listener, u64::MAX);
    if what == "nested" {
        watch(&outer, &inner, 0);
    }
    let wait = |instance: &OwnedFd, timeout: Option<&Timespec>| {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        epoll::wait(instance, rustix::buffer::spare_capacity(&mut events), timeout).unwrap();
        events
    };
    let mut streams: Vec<TcpStream> = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        if what == "nested" {
            wait(&outer, None);
        }
        for event in wait(&inner, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            let index = event.data.u64();
            if index == u64::MAX {
                let (stream, _) = listener.accept().unwrap();
                watch(&inner, &stream, streams.len() as u64);
                streams.push(stream);
                continue;
            }
            let mut stream = &streams[index as usize];
            let length = stream.read(&mut buffer).unwrap_or(0);
            if length == 0 || stream.write_all(&buffer[..length]).is_err() {
                // The client has closed the connection.
                epoll::delete(&inner, stream).unwrap();
            }
        }
    }
}
