//! The `memcached` binary as a process.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

pub use ::requirements::free_port;

use super::KillOnDrop;

/// A server's process, which is killed when this is dropped.
#[derive(Debug)]
pub struct Memcached {
    pub child: KillOnDrop,
    pub address: SocketAddr,
    /// Checked after the child has ended.
    log: ServerLog,
}

/// How long conditions, and reads from a server, are waited for.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn binary() -> PathBuf {
    crate::own_program("memcached")
}

/// A command that starts the binary. Started as root it stays root, unless another `-u` follows.
pub fn command() -> Command {
    let mut command = Command::new(binary());
    command.args(["-u", "root"]);
    command
}

/// A request that stores a value of `length` bytes `v` for ever.
pub fn set_request(key: &str, length: usize) -> Vec<u8> {
    [format!("set {key} 0 0 {length}\r\n").as_bytes(), &vec![b'v'; length], b"\r\n"].concat()
}

/// Waits until a condition holds, for 60 seconds at most.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < give_up, "timed out waiting for: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Memcached {
    /// Starts one with two workers on a free port, and waits until it listens.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_on(free_port(), arguments)
    }

    /// Starts one with two workers on a port, and waits until it listens.
    pub fn start_on(port: u16, arguments: &[&str]) -> Self {
        let mut command = command();
        command.args(["-t", "2", "-p", &port.to_string()]).args(arguments);
        Self::run(&mut command, port)
    }

    /// Runs a command that starts a server on a port, and waits until it listens.
    pub fn run(command: &mut Command, port: u16) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let log = ServerLog::new().expect("a file in memory");
        let stderr = log.file().expect("a descriptor");
        let child = command.stderr(stderr).spawn().expect("the server's command").into();
        let server = Self { child, address, log };
        wait_until("the server listens", || TcpStream::connect(address).is_ok());
        server
    }

    /// The server's standard error so far.
    pub fn log(&self) -> String {
        self.log.read()
    }

    /// Connects, with a read timeout of 60 seconds.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream
    }

    /// As [`connect`](Self::connect), with system buffers that hold little, so that the server
    /// holds what is not read.
    pub fn connect_with_small_buffer(&self, bytes: usize) -> TcpStream {
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
        socket.set_recv_buffer_size(bytes).expect("a size");
        socket.connect(&self.address.into()).expect("a connection");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        socket.into()
    }

    /// Sends `input`, shuts down writing, and reads until the server closes the connection.
    pub fn talk(&self, input: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        stream.write_all(input).expect("the server takes it");
        // Fails if the server has closed the connection already.
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    }

    /// The value of a number in `stats`.
    pub fn stat(&self, name: &str) -> u64 {
        let answer = String::from_utf8_lossy(&self.talk(b"stats\r\n")).into_owned();
        let prefix = format!("STAT {name} ");
        let value = answer.lines().find_map(|line| line.strip_prefix(&prefix)?.trim().parse().ok());
        value.unwrap_or_else(|| panic!("no {name} in {answer}"))
    }

    pub fn standard_error(&self) -> String {
        self.log.read()
    }

    pub fn descriptors(&self) -> u64 {
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.child.id()));
        open.expect("descriptors of the server").count() as u64
    }

    /// The CPU time that it has used, in user space and in the kernel.
    pub fn cpu_time(&self) -> Duration {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // Fields 14 and 15 of proc_pid_stat(5); the second field, a name, may contain spaces.
        let after_name = text.rsplit_once(')').expect("stat of the server").1;
        let field = |number: usize| -> u64 {
            let word = after_name.split_whitespace().nth(number - 3);
            word.and_then(|word| word.parse().ok()).expect("a field of stat")
        };
        // Each tick is 10 ms (USER_HZ is 100 on every architecture that Lull runs on).
        Duration::from_millis((field(14) + field(15)) * 10)
    }

    /// Its resident memory in KiB.
    pub fn resident_kib(&self) -> u64 {
        requirements::resident_kib(self.child.id())
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("the process is there");
    }

    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the server exits", || {
            status = self.child.try_wait().expect("a child");
            status.is_some()
        });
        status.expect("waited for")
    }
}

/// What a server writes to standard error. A test fails at its end if the server has panicked:
/// panics of a connection are contained, and could not be seen otherwise. So it does if
/// ThreadSanitizer, with which the server may be built, has reported a race.
#[derive(Debug)]
struct ServerLog(File);

impl ServerLog {
    fn new() -> io::Result<Self> {
        let file = rustix::fs::memfd_create("stderr", rustix::fs::MemfdFlags::CLOEXEC)?;
        Ok(Self(file.into()))
    }

    /// For the server's process.
    fn file(&self) -> io::Result<File> {
        self.0.try_clone()
    }

    fn read(&self) -> String {
        let length = self.0.metadata().map_or(0, |metadata| metadata.len());
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        // The file's own position is the server's.
        let _ = self.0.read_exact_at(&mut bytes, 0);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for ServerLog {
    fn drop(&mut self) {
        let text = self.read();
        let has_panicked = text.contains("panicked");
        let has_raced = text.contains("WARNING: ThreadSanitizer");
        let what = match (has_panicked, has_raced) {
            (true, _) => "the server has panicked",
            (false, true) => "the server has a data race",
            (false, false) => "the server's standard error",
        };
        if std::thread::panicking() {
            eprintln!("{what}:\n{text}");
        } else {
            assert!(!has_panicked && !has_raced, "{what}:\n{text}");
        }
    }
}

/// Reads as many bytes as are expected, and compares them. The error is what came instead.
pub fn expect(stream: &mut impl Read, expected: &[u8]) -> Result<(), String> {
    let mut got = vec![0; expected.len()];
    let mut filled = 0;
    while filled < got.len() {
        match read_some(stream, &mut got[filled..]) {
            Ok(0) => break,
            Ok(length) => filled += length,
            Err(error) => return Err(format!("{:?}, then {error}", String::from_utf8_lossy(&got[..filled]))),
        }
    }
    if &got[..filled] == expected {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&got[..filled]).into_owned())
}

/// Reads what there is.
pub fn read_some(stream: &mut (impl Read + ?Sized), buffer: &mut [u8]) -> io::Result<usize> {
    uninterrupted(|| stream.read(buffer))
}

/// Repeats a call that a signal interrupts. A read with a time limit is interrupted also by signals
/// that are ignored.
pub fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
