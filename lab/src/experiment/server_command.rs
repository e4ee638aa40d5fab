//! Servers of other projects: how they are started, and how long their replies are.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::Error;
use crate::fleet::FleetRequests;
use crate::testbed::{SERVER_ADDRESS, Testbed};

/// The port of the servers, of which each has a network namespace to itself.
const PORT: u16 = 11211;
/// A server that sends nothing for this long has sent its whole reply.
const REPLY_ENDS: Duration = Duration::from_millis(200);
/// The longest reply that is read to find out its length, in bytes.
const LONGEST_REPLY: usize = 1 << 20;

/// How a server of another project is started: on one core, in the testbed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ServerCommand {
    pub name: String,
    pub program: PathBuf,
    pub arguments: Vec<String>,
}

impl ServerCommand {
    /// With so many worker threads, and 256 MiB for items.
    pub fn memcached(program: PathBuf, threads: usize) -> Self {
        let (ip, port, threads) = (SERVER_ADDRESS.to_string(), PORT.to_string(), threads.to_string());
        let arguments = ["-u", "root", "-l", &ip, "-p", &port, "-t", &threads, "-m", "256", "-c", "10100"];
        Self { name: "memcached".to_owned(), program, arguments: arguments.map(str::to_owned).into() }
    }

    /// A command of the shell, in which `{address}` and `{port}` stand for where the server is to
    /// listen: 198.18.0.1 and 11211. It has to stay in the foreground.
    pub fn shell(command: &str) -> Result<Self, Error> {
        let first = command.split_whitespace().next();
        let first = first.ok_or("--server: the command is empty")?;
        let name = Path::new(first).file_name().unwrap_or(OsStr::new(first)).to_string_lossy().into_owned();
        let command =
            command.replace("{address}", &SERVER_ADDRESS.to_string()).replace("{port}", &PORT.to_string());
        // Replaced by the server, so that the process is the server's.
        let arguments = vec!["-c".to_owned(), format!("exec {command}")];
        Ok(Self { name, program: PathBuf::from("/bin/sh"), arguments })
    }

    /// The server's address on the testbed, and memcached's port.
    pub(crate) fn address() -> SocketAddrV4 {
        SocketAddrV4::new(SERVER_ADDRESS, PORT)
    }

    /// Checks that the program is there: at its path, or in a folder of `PATH`.
    pub fn check_installed(&self, hint: &'static str) -> Result<(), Error> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = if self.program.components().count() > 1 {
            self.program.is_file()
        } else {
            std::env::split_paths(&path).any(|folder| folder.join(&self.program).is_file())
        };
        if found {
            Ok(())
        } else {
            Err(format!("{} is not installed: {hint}", self.program.display()).into())
        }
    }
}

/// The requests, with the length of the reply if that is still to be found out. Asks the server
/// twice, from the client's kernel.
pub(super) fn with_reply_length(
    requests: &FleetRequests,
    testbed: &Testbed,
    server: SocketAddrV4,
) -> Result<FleetRequests, Error> {
    let FleetRequests::Text { request, reply: None } = requests else { return Ok(requests.clone()) };
    let (first, second) = testbed.client.run(|| {
        let mut stream = TcpStream::connect(server)?;
        stream.set_read_timeout(Some(REPLY_ENDS))?;
        Ok((ask(&mut stream, request), ask(&mut stream, request)))
    })?;
    match (first, second) {
        (first, second) if first == second && first > 0 => {
            Ok(FleetRequests::Text { request: request.clone(), reply: Some(first) })
        }
        (0, _) => Err("--server: the server does not answer the request".into()),
        (first, 0) => Err(format!(
            "--server: the server answers a request of a connection with {first} bytes, and the next one with none; a fleet needs \
             connections that stay open"
        )
        .into()),
        (first, second) => Err(format!(
            "--server: the server answers with {first} bytes, then with {second}; a fleet tells replies by their length, which has \
             to be the same"
        )
        .into()),
    }
}

/// The length of the reply in bytes; 0 if the connection is closed.
fn ask(stream: &mut TcpStream, request: &str) -> usize {
    if stream.write_all(request.as_bytes()).is_err() {
        return 0;
    }
    let mut buffer = [0; 4096];
    let mut length = 0;
    while length < LONGEST_REPLY {
        // A timeout ends the reply, too.
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(received) => length += received,
        }
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_its_address_and_port_and_the_name_of_its_program() {
        let command = ServerCommand::shell("/usr/bin/redis-server --bind {address} --port {port}").unwrap();
        assert_eq!(command.name, "redis-server");
        assert_eq!(
            command.arguments,
            ["-c", "exec /usr/bin/redis-server --bind 198.18.0.1 --port 11211"].map(str::to_owned)
        );
        let error = ServerCommand::shell(" ").unwrap_err().to_string();
        assert!(error.contains("empty"), "{error}");
    }

    #[test]
    fn a_program_that_is_not_installed_is_an_error_that_says_what_to_do() {
        for program in ["lull-nonesuch", "/nonesuch/memcached"] {
            let command = ServerCommand::memcached(PathBuf::from(program), 1);
            let error = command.check_installed("install it").unwrap_err().to_string();
            assert_eq!(error, format!("{program} is not installed: install it"));
        }
        for program in ["sh", "/bin/sh"] {
            ServerCommand::memcached(PathBuf::from(program), 1).check_installed("").unwrap();
        }
    }
}
