//! Starts Redis and PostgreSQL on free ports of loopback, for tests and examples.
#![allow(dead_code, reason = "each user of this module starts one of them")]

use std::io::{Error, Result};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A server that ends when this is dropped.
pub struct DatabaseServer {
    process: Child,
    pub address: SocketAddr,
    /// Removed after the process has ended.
    _folder: TempDir,
}

impl Drop for DatabaseServer {
    fn drop(&mut self) {
        // SIGTERM would wait for clients.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A program on the path, or where Debian puts PostgreSQL's.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let debian = versions.map(|version| version.path().join("bin"));
    std::env::split_paths(&path).chain(debian).map(|folder| folder.join(name)).find(|file| file.is_file())
}

fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, requirements::free_port()).into()
}

fn start(mut command: Command, address: SocketAddr, folder: TempDir) -> Result<DatabaseServer> {
    let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let mut server = DatabaseServer { process, address, _folder: folder };
    let begin = Instant::now();
    while TcpStream::connect(address).is_err() {
        if let Some(status) = server.process.try_wait()? {
            return Err(Error::other(format!("{command:?} ended: {status}")));
        }
        if begin.elapsed() > Duration::from_secs(30) {
            return Err(Error::other(format!("{command:?} doesn't listen on {address}")));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(server)
}

/// `None` where it is not installed (Debian: `redis-server`).
pub fn redis() -> Result<Option<DatabaseServer>> {
    let Some(program) = program("redis-server") else { return Ok(None) };
    let (address, folder) = (free_address(), tempfile::tempdir()?);
    let mut command = Command::new(program);
    command.args(["--bind", "127.0.0.1", "--save", "", "--port", &address.port().to_string(), "--dir"]);
    command.arg(folder.path());
    start(command, address, folder).map(Some)
}

/// With the superuser `postgres`, whom it trusts. `None` where it is not installed (Debian:
/// `postgresql`).
pub fn postgres() -> Result<Option<DatabaseServer>> {
    let [Some(initdb), Some(postgres), Some(ready)] = ["initdb", "postgres", "pg_isready"].map(program)
    else {
        return Ok(None);
    };
    let (address, folder) = (free_address(), tempfile::tempdir()?);
    let data = folder.path().join("data");
    // It refuses to run as root.
    let as_user = |program: &Path| match rustix::process::geteuid().is_root() {
        false => Command::new(program),
        true => {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(program);
            command
        }
    };
    if rustix::process::geteuid().is_root() {
        let owned = Command::new("chown").arg("postgres:").arg(folder.path()).status()?;
        if !owned.success() {
            return Err(Error::other("the folder can't be given to the user postgres"));
        }
    }
    let mut command = as_user(&initdb);
    command.args(["--username=postgres", "--auth=trust", "--no-sync", "--pgdata"]).arg(&data);
    let output = command.output()?;
    if !output.status.success() {
        return Err(Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let mut command = as_user(&postgres);
    command.args(["-c", "fsync=off", "-c", "listen_addresses=127.0.0.1", "-k"]).arg(folder.path());
    command.args(["-p", &address.port().to_string(), "-D"]).arg(&data);
    let server = start(command, address, folder)?;
    // It listens before it answers.
    let mut ready = Command::new(ready);
    ready.args(["--quiet", "--timeout=30", "-h", "127.0.0.1", "-p", &address.port().to_string()]);
    for _ in 0..500 {
        if ready.status()?.success() {
            return Ok(Some(server));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(Error::other("PostgreSQL's server is not ready after its start"))
}
