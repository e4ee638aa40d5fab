//! Starts Redis and PostgreSQL on free ports of loopback, for tests and examples.
#![allow(dead_code, reason = "each user of this module starts one of them")]

use std::fs::Permissions;
use std::io::{Error, Result};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

/// A server that ends when this is dropped.
pub struct DatabaseServer {
    command: Command,
    process: Child,
    /// Succeeds when the server answers.
    ready: Command,
    pub address: SocketAddr,
    /// Its files, also PostgreSQL's Unix socket. Removed after the process has ended.
    pub folder: TempDir,
}

impl DatabaseServer {
    /// Ends its connections and the process.
    pub fn stop(&mut self) -> Result<()> {
        // PostgreSQL's immediate shutdown; SIGTERM would wait for clients. After SIGKILL its other
        // processes would go on for a while.
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.process), Signal::QUIT)?;
        self.process.wait().map(drop)
    }

    /// Starts it again, with the same address and data.
    pub fn start_again(&mut self) -> Result<()> {
        self.process = self.command.spawn()?;
        self.wait_until_ready()
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let begin = Instant::now();
        while !self.ready.status()?.success() {
            if let Some(status) = self.process.try_wait()? {
                return Err(Error::other(format!("{:?} ended: {status}", self.command)));
            }
            if begin.elapsed() > Duration::from_secs(30) {
                return Err(Error::other(format!("{:?} is not ready on {}", self.command, self.address)));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for DatabaseServer {
    fn drop(&mut self) {
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

fn start(
    mut command: Command,
    mut ready: Command,
    address: SocketAddr,
    folder: TempDir,
) -> Result<DatabaseServer> {
    for command in [&mut command, &mut ready] {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    }
    let process = command.spawn()?;
    let mut server = DatabaseServer { command, process, ready, address, folder };
    server.wait_until_ready()?;
    Ok(server)
}

/// `None` where it is not installed (Debian: `redis-server`).
pub fn redis() -> Result<Option<DatabaseServer>> {
    let [Some(program), Some(cli)] = ["redis-server", "redis-cli"].map(program) else { return Ok(None) };
    let (address, folder) = (free_address(), tempfile::tempdir()?);
    let mut command = Command::new(program);
    command.args(["--bind", "127.0.0.1", "--save", "", "--port", &address.port().to_string(), "--dir"]);
    command.arg(folder.path());
    let mut ready = Command::new(cli);
    // It exits with 0 also where nothing listens, unless this is asked for.
    ready.args(["-e", "-p", &address.port().to_string(), "ping"]);
    start(command, ready, address, folder).map(Some)
}

/// With the superuser `postgres`, whom it trusts. `None` where it is not installed (Debian:
/// `postgresql`).
pub fn postgres() -> Result<Option<DatabaseServer>> {
    postgres_with(None)
}

/// With TLS: its certificate and the private key.
pub fn postgres_with_tls(certificate: &Path, key: &Path) -> Result<Option<DatabaseServer>> {
    postgres_with(Some([certificate, key]))
}

fn postgres_with(tls: Option<[&Path; 2]>) -> Result<Option<DatabaseServer>> {
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
    if let Some(files) = tls {
        for (file, name) in files.into_iter().zip(["server.crt", "server.key"]) {
            // The user `postgres` can't read the test's files, and refuses a key that others can.
            let copied = data.join(name);
            std::fs::copy(file, &copied)?;
            let owner = std::fs::metadata(&data)?;
            std::os::unix::fs::chown(&copied, Some(owner.uid()), Some(owner.gid()))?;
            std::fs::set_permissions(&copied, Permissions::from_mode(0o600))?;
        }
        command.args(["-c", "ssl=on"]);
    }
    let mut ready = Command::new(ready);
    ready.args(["--quiet", "--timeout=30", "-h", "127.0.0.1", "-p", &address.port().to_string()]);
    start(command, ready, address, folder).map(Some)
}
