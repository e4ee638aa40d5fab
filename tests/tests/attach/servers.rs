//! Servers of other projects, as processes on the testbed's server side.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab::peers::{EchoServerSpec, Peer, RequestShape};
use lab::testbed::SERVER_ADDRESS;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tests::memcached::wait_until;
use tests::{KillOnDrop, isolated, program};

use super::attached::family;
use super::load::Exchange;

const HTTP: Exchange = Exchange { request: b"GET / HTTP/1.1\r\nHost: lull\r\n\r\n", end: b"\r\n\r\nhello\n" };
pub const ECHO: Exchange = Exchange { request: &[b'a'; 64], end: &[b'a'; 64] };
/// The servers' port, of a network namespace in which nothing else listens.
const PORT: u16 = 7000;
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
}

/// How long a server that was asked to end may take.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

impl Drop for Server {
    fn drop(&mut self) {
        // Children of a killed server would stay. Fails if it has ended.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let end = Instant::now() + ENDS_WITHIN;
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

/// memcached, which is not Lull's.
pub fn memcached(arguments: &[&str]) -> Option<Server> {
    // Lull's has the same name, in another folder.
    let program = tests::require(
        "memcached of Debian (/usr/bin/memcached)",
        Some(Path::new("/usr/bin/memcached")).filter(|path| path.is_file()),
    )?;
    let mut command = on_core_0(program);
    command
        .args(["-u", "nobody", "-p", &PORT.to_string(), "-l", &SERVER_ADDRESS.to_string()])
        .args(arguments);
    let exchange = Exchange { request: b"get lull\r\n", end: b"END\r\n" };
    Some(Server::start(&mut command, exchange, folder()))
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
    let mut command = isolated::once_more();
    command.env(SERVES, what).stdout(Stdio::piped());
    let mut child: KillOnDrop = command.spawn().unwrap().into();
    let output = BufReader::new(child.stdout.take().unwrap());
    let mut lines = output.lines().map_while(Result::ok);
    let address = lines.find_map(|line| line.split_once("serves on ").and_then(|(_, at)| at.parse().ok()));
    // Closing the pipe would end a server that prints.
    std::thread::spawn(move || lines.count());
    Server { child, address: address.expect("the server listens"), exchange: ECHO, _folder: folder() }
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
        packing_core: 1,
        polling,
    }
}

/// Echoes with `poll`, with epoll and a timeout of 0, or with an epoll instance in another one.
fn serve_by_hand(what: &str) {
    use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
    policies::Cpus::one(0).pin(None).unwrap();
    let listener = std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap();
    println!("serves on {}", SocketAddr::from((SERVER_ADDRESS, PORT)));
    let mut streams: Vec<TcpStream> = Vec::new();
    if what == "poll" {
        let mut buffer = [0; 4096];
        listener.set_nonblocking(true).unwrap();
        loop {
            let mut polled: Vec<PollFd<'_>> = vec![PollFd::new(&listener, PollFlags::IN)];
            polled.extend(streams.iter().map(|stream| PollFd::new(stream, PollFlags::IN)));
            poll(&mut polled, None).unwrap();
            let ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
            let ready_streams = streams.iter_mut().zip(&ready[1..]).filter(|(_, ready)| **ready);
            for (stream, _) in ready_streams {
                // A client that has closed its connection stays ready, for as long as the test
                // runs.
                let _ = echo(stream, &mut buffer);
            }
            if ready[0]
                && let Ok((stream, _)) = listener.accept()
            {
                streams.push(stream);
            }
        }
    }
    let flags = epoll::CreateFlags::CLOEXEC;
    let (inner, outer) = (epoll::create(flags).unwrap(), epoll::create(flags).unwrap());
    let watch = |on: &std::os::fd::OwnedFd, what: &dyn std::os::fd::AsFd, data| {
        epoll::add(on, what.as_fd(), epoll::EventData::new_u64(data), epoll::EventFlags::IN).unwrap();
    };
    watch(&inner, &listener, u64::MAX);
    if what == "nested" {
        watch(&outer, &inner, 0);
    }
    let mut events = Vec::with_capacity(64);
    let mut buffer = [0; 4096];
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        if what == "nested" {
            let mut outer_events: Vec<epoll::Event> = Vec::with_capacity(1);
            epoll::wait(&outer, rustix::buffer::spare_capacity(&mut outer_events), None).unwrap();
        }
        events.clear();
        let timeout = (what != "waiting").then_some(&zero);
        epoll::wait(&inner, rustix::buffer::spare_capacity(&mut events), timeout).unwrap();
        for event in &events {
            match event.data.u64() {
                u64::MAX => {
                    let (stream, _) = listener.accept().unwrap();
                    watch(&inner, &stream, streams.len() as u64);
                    streams.push(stream);
                }
                index => {
                    let stream = &mut streams[index as usize];
                    if echo(stream, &mut buffer).is_none() {
                        epoll::delete(&inner, &*stream).unwrap();
                    }
                }
            }
        }
    }
}

/// `None` if the client has closed the connection.
fn echo(stream: &mut TcpStream, buffer: &mut [u8]) -> Option<()> {
    use std::io::{Read, Write};
    let length = stream.read(buffer).ok().filter(|length| *length > 0)?;
    stream.write_all(&buffer[..length]).ok()
}
