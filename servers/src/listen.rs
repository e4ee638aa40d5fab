//! Listening on an address.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use net::{BindOptions, TcpListener};

/// How long the address of a killed server may take to become free, as its io_uring instance keeps
/// the socket open: 5 to 9 ms were seen. The kernel's thread that closes it may have to wait for
/// its core.
const ADDRESS_FREE_WITHIN: Duration = Duration::from_secs(1);
const BIND_RETRY: Duration = Duration::from_millis(2);

/// Listens on an address. An IPv6 address takes IPv6 only, as memcached's do. It blocks the thread
/// while the address is in use, which is harmless before the server serves.
pub fn bind(address: SocketAddr, backlog: i32) -> io::Result<TcpListener> {
    let options = BindOptions::new().backlog(backlog).only_v6(true);
    let deadline = Instant::now() + ADDRESS_FREE_WITHIN;
    loop {
        match TcpListener::bind_with(address, &options) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                std::thread::sleep(BIND_RETRY);
            }
            result => return result,
        }
    }
}
