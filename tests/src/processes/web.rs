//! The `web` binary as a process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::KillOnDrop;
use super::server_log::ServerLog;

/// How long reads from a server are waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server's process, which is killed when this is dropped.
#[derive(Debug)]
pub struct Web {
    pub child: KillOnDrop,
    /// Where it listens, as URLs: `http://127.0.0.1:1234`, then those with TLS.
    pub urls: Vec<String>,
    /// Checked after the child has ended.
    log: ServerLog,
}

/// A response as its bytes were read.
#[derive(Debug)]
pub struct RawResponse {
    /// The status line and the headers, with the empty line.
    pub head: String,
    pub body: Vec<u8>,
}

impl RawResponse {
    pub fn status(&self) -> u16 {
        let status = self.head.split(' ').nth(1).and_then(|status| status.parse().ok());
        status.unwrap_or_else(|| panic!("no status in {:?}", self.head))
    }

    /// The value of a header, without regard to case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }
}

pub fn binary() -> PathBuf {
    crate::own_program("web")
}

/// A command that starts the binary. Started as root it stays root, unless another `-u` follows.
pub fn command() -> Command {
    let mut command = Command::new(binary());
    command.args(["-u", "root"]);
    command
}

impl Web {
    /// Serves a folder with two workers on a free port, and waits until it listens.
    pub fn serve(root: &Path, arguments: &[&str]) -> Self {
        Self::run(command().args(["-t", "2", "-l", "127.0.0.1:0"]).args(arguments).arg(root))
    }

    /// Runs a command that starts a server, and waits until it listens.
    pub fn run(command: &mut Command) -> Self {
        let log = ServerLog::new().expect("a file in memory");
        let stderr = log.file().expect("a descriptor");
        let mut child: KillOnDrop =
            command.stdout(Stdio::piped()).stderr(stderr).spawn().expect("the server's command").into();
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut urls = Vec::new();
        let mut line = String::new();
        // The last line says that all are there.
        while lines.read_line(&mut line).expect("text") > 0 && line.trim() != "ready" {
            urls.push(line.trim().to_owned());
            line.clear();
        }
        assert!(!urls.is_empty(), "the server did not start:\n{}", log.read());
        // An access log may go there.
        child.stdout = Some(lines.into_inner());
        Self { child, urls, log }
    }

    pub fn address(&self) -> SocketAddr {
        let (_, address) = self.urls[0].split_once("://").expect("a URL");
        address.parse().expect("an address")
    }

    /// Connects to the first address, with a read timeout of 60 s.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address()).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream
    }

    /// Sends bytes on a new connection, and returns everything that comes until the server closes
    /// it.
    pub fn talk(&self, input: impl AsRef<[u8]>) -> Vec<u8> {
        let mut stream = self.connect();
        // Fails if the server has refused the first of it already.
        let _ = stream.write_all(input.as_ref());
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                panic!("the server keeps the connection open after {:?}", String::from_utf8_lossy(&answer))
            }
            // A reset after the answer, for example.
            _ => answer,
        }
    }

    pub fn get(&self, path: &str, headers: &[&str]) -> RawResponse {
        self.request("GET", path, headers)
    }

    pub fn request(&self, method: &str, path: &str, headers: &[&str]) -> RawResponse {
        let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
        split(
            &self.talk(format!(
                "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n{headers}\r\n"
            )),
        )
    }

    pub fn standard_error(&self) -> String {
        self.log.read()
    }

    /// Its resident memory in KiB.
    pub fn resident_kib(&self) -> u64 {
        requirements::resident_kib(self.child.id())
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("the process is there");
    }
}

pub fn split(answer: &[u8]) -> RawResponse {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no response in {:?}", String::from_utf8_lossy(answer))) + 4;
    RawResponse { head: String::from_utf8_lossy(&answer[..end]).into_owned(), body: answer[end..].to_vec() }
}
