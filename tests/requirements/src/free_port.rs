//! Ports of loopback for the servers of tests.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::{AddressFamily, SocketType, bind, socket, sockopt};

/// A TCP port of 127.0.0.1 that nobody listens on, another one each time.
///
/// # Panics
/// If none is free.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Each process has its own range, below the kernel's ephemeral ports (`ip_local_port_range`).
    let mut ports = (0..22_000).map(|_| {
        let number = std::process::id().wrapping_mul(101).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        10_000 + (number % 22_000) as u16
    });
    ports.find(|port| can_be_bound(*port).is_ok()).expect("a free port")
}

/// Fails if another socket listens on the port. This one does not listen: a process that another
/// thread starts holds a copy of it until its `execve`, and would accept connections that the
/// port's server is to get.
fn can_be_bound(port: u16) -> rustix::io::Result<()> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    // The server binds the port while such a copy is there.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::process::Command;

    use super::*;

    #[test]
    fn nobody_listens_on_a_free_port_while_other_threads_start_processes() {
        let start_processes = || {
            for _ in 0..200 {
                let _ = Command::new("true").status();
            }
        };
        let mut accepted = 0;
        std::thread::scope(|scope| {
            let starting = scope.spawn(start_processes);
            while !starting.is_finished() {
                accepted += u32::from(TcpStream::connect(("127.0.0.1", free_port())).is_ok());
            }
        });
        assert_eq!(accepted, 0, "connections were accepted on a free port");
    }
}
