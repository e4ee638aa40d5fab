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

/// Runs the calling test again in a process of its own; `true` in there.
///
/// # Panics
/// When it fails there.
pub fn alone(name: &str) -> bool {
    if std::env::var_os("ALONE").is_some() {
        return true;
    }
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    again.args([name, "--exact", "--nocapture", "--test-threads=1"]).env("ALONE", "1");
    assert!(again.status().unwrap().success());
    false
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
