//! What the tests over loopback share.
#![allow(dead_code, reason = "each test binary uses its part of this")]

use futures_util::{AsyncReadExt, AsyncWriteExt};
use net::{TcpListener, TcpStream};
use runtime::{Builder, DriverKind};

/// Any free port.
pub fn local() -> std::net::SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// A connection to itself.
///
/// # Panics
/// Where there is no loopback.
pub async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(local()).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (server, _) = listener.accept().await.unwrap();
    (client, server)
}

/// All drivers.
pub const DRIVERS: [DriverKind; 3] = [DriverKind::Epoll, DriverKind::Uring, DriverKind::Hybrid];

/// A runtime on a driver.
///
/// # Panics
/// Where the driver cannot be had.
pub fn one_worker(driver: DriverKind) -> runtime::Runtime {
    Builder::new().ignore_environment().workers(1).driver(driver).build().unwrap()
}

/// Serves what it gets.
///
/// # Panics
/// Where it cannot listen.
pub fn serve_echo(listener: TcpListener) -> net::Serving {
    listener
        .serve(|mut stream: TcpStream| async move {
            let mut buffer = [0; 256];
            while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                if stream.write_all(&buffer[..length]).await.is_err() {
                    break;
                }
            }
        })
        .unwrap()
}

/// Descriptors of this process.
///
/// # Panics
/// Without /proc.
pub fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// A command that runs the calling test, which is isolated, in one more process.
pub fn once_more() -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    // An isolated process is started with the arguments that select its test.
    command.args(std::env::args_os().skip(1));
    command
}

/// What a test needs, or `None`, with the reason printed, where it is missing. With `LULL_REQUIRE_ALL` set a
/// missing one fails the test.
pub fn require<T>(what: &str, found: Option<T>) -> Option<T> {
    if found.is_none() {
        assert!(
            std::env::var_os("LULL_REQUIRE_ALL").is_none(),
            "LULL_REQUIRE_ALL is set, and there is no {what}"
        );
        eprintln!("skipped: no {what}");
    }
    found
}
