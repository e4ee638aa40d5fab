//! A folder that a test has served, and programs that it runs.

use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tests::KillOnDrop;
use tests::web::{RawResponse, Web};

/// How long another program may take.
const LIMIT: Duration = Duration::from_secs(120);

/// A folder that is served, `served`, in one that is not.
pub struct Site {
    folder: TempDir,
}

impl Site {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("served")).unwrap();
        Self { folder }
    }

    /// The root folder of the server.
    pub fn root(&self) -> PathBuf {
        self.beside("served")
    }

    /// A file that is not served.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The path of a file that is served.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    /// Makes a file that is served, and the folders above it.
    pub fn with(self, name: &str, content: impl AsRef<[u8]>) -> Self {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
        self
    }

    pub fn serve(&self, arguments: &[&str]) -> Web {
        Web::serve(&self.root(), arguments)
    }

    /// Writes the configuration. `files`: lines of its table `[files]`; `rest`: other tables.
    pub fn configure(&self, files: &str, rest: &str) -> PathBuf {
        let path = self.beside("web.toml");
        std::fs::write(&path, format!("[files]\nroot = 'served'\n{files}\n{rest}\n")).unwrap();
        path
    }

    /// Serves with a configuration, see [`configure`](Self::configure).
    pub fn serve_configured(&self, files: &str, rest: &str) -> Web {
        let config = self.configure(files, rest);
        self.serve(&["--config", text(&config)])
    }
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Bytes of which no two parts are the same.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length.div_ceil(8) as u64)
        .flat_map(|number| (number * 0x9e37_79b9 + 1).to_le_bytes())
        .take(length)
        .collect()
}

/// Separates responses on one connection by their lengths. The last one may have a shorter body
/// than it said.
pub fn responses(answer: &[u8]) -> Vec<RawResponse> {
    let (mut rest, mut responses) = (answer.to_vec(), Vec::new());
    while !rest.is_empty() {
        let mut response = tests::web::split(&rest);
        assert!(response.head.starts_with("HTTP/1."), "no response: {:?}", response.head);
        let length = response.header("content-length").map_or(0, |length| length.parse().unwrap());
        rest = response.body.split_off(response.body.len().min(length));
        responses.push(response);
    }
    responses
}

/// What a program printed.
#[derive(Debug)]
pub struct Printed {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

/// Runs a program until it ends.
pub fn run(command: &mut Command) -> Printed {
    let (mut stdout, mut stderr) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    command.stdin(Stdio::null()).stdout(stdout.try_clone().unwrap()).stderr(stderr.try_clone().unwrap());
    let mut child: KillOnDrop = command.spawn().unwrap().into();
    let give_up = Instant::now() + LIMIT;
    let ended = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if Instant::now() > give_up => break None,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let read = |file: &mut std::fs::File| {
        let mut bytes = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (stdout, stderr) = (read(&mut stdout), read(&mut stderr));
    let status = ended.unwrap_or_else(|| panic!("{command:?} does not end:\n{stdout}{stderr}"));
    Printed { status, stdout, stderr }
}

/// Runs a program that has to succeed, and returns its standard output.
pub fn succeed(command: &mut Command) -> String {
    let printed = run(command);
    assert!(printed.status.success(), "{command:?}: {printed:?}");
    printed.stdout
}

/// curl, which prints errors but no progress.
pub fn curl() -> Option<Command> {
    let mut command = Command::new(tests::program("curl")?);
    command.args(["--silent", "--show-error", "--noproxy", "*", "--max-time", "60"]);
    Some(command)
}
