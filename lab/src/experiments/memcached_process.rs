//! External programs on a core, and a memcached server among them.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Error;
use crate::experiment_process::process_cpu_seconds;

/// How long a server may take until it accepts connections.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts a program on a core: a child inherits its parent's affinity.
pub(super) fn spawn_on_core(core: u32, command: &mut Command) -> Result<Child, Error> {
    let before = sched_getaffinity(None).map_err(io::Error::from)?;
    let mut one = CpuSet::new();
    one.set(core as usize);
    sched_setaffinity(None, &one).map_err(io::Error::from)?;
    let spawned = command.spawn();
    sched_setaffinity(None, &before).map_err(io::Error::from)?;
    spawned.map_err(|error| Error::program(Path::new(command.get_program()), error))
}

/// A memcached server on a port of loopback. Dropping it kills the process.
#[derive(Debug)]
pub(super) struct MemcachedProcess {
    child: Child,
    address: SocketAddr,
}

impl MemcachedProcess {
    /// Starts the server on a core, and waits until it accepts connections.
    pub(super) fn start(program: &Path, arguments: &[&str], core: u32) -> Result<Self, Error> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut command = Command::new(program);
        command.args(arguments).args(["-p", &address.port().to_string()]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = Self { child: spawn_on_core(core, &mut command)?, address };
        await_listening(program, || TcpStream::connect(address).is_ok(), || server.child.try_wait())?;
        Ok(server)
    }

    /// The address it listens on.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The sum of these counters of the server's statistics (`stats`).
    pub(super) fn counters(&self, names: &[&str]) -> Result<u64, Error> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.write_all(b"stats\r\n")?;
        let mut left = names.to_vec();
        let mut sum = 0;
        for line in BufReader::new(stream).lines() {
            let line = line?;
            if line == "END" {
                break;
            }
            let Some((name, value)) = line.strip_prefix("STAT ").and_then(|line| line.split_once(' ')) else {
                continue;
            };
            if let Some(index) = left.iter().position(|left| *left == name) {
                left.swap_remove(index);
                sum += value.trim().parse::<u64>().map_err(|_| Error::Reply(line))?;
            }
        }
        if left.is_empty() { Ok(sum) } else { Err(Error::Reply(format!("no {}", left.join(", ")))) }
    }

    /// CPU time of all the server's threads so far, in seconds (`/proc/<pid>/task/*/schedstat`).
    pub(super) fn cpu_seconds(&self) -> io::Result<f64> {
        process_cpu_seconds(self.child.id())
    }
}

/// Waits until a server accepts connections. `exited` returns its exit status once it has exited.
pub(super) fn await_listening(
    program: &Path,
    connects: impl Fn() -> bool,
    mut exited: impl FnMut() -> io::Result<Option<ExitStatus>>,
) -> Result<(), Error> {
    let deadline = Instant::now() + START_TIMEOUT;
    while !connects() {
        if let Some(status) = exited()? {
            return Err(Error::program(program, format!("exited before it listened ({status})")));
        }
        if Instant::now() > deadline {
            let seconds = START_TIMEOUT.as_secs();
            return Err(Error::program(program, format!("does not listen after {seconds} s")));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

impl Drop for MemcachedProcess {
    fn drop(&mut self) {
        // Both fail if the process has exited, which is what they are for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
