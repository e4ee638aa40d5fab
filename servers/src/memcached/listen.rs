//! Listening on an address or a path, and the checks before that.

use std::fs::Metadata;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use net::{BindOptions, TcpListener};

use super::config::Config;
use super::context::StartError;

/// How long a killed server's socket may stay open: until a kernel thread has closed its io_uring
/// instance, which took 5 to 9 ms and may have to wait for its core.
const FREE_WITHIN: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(2);

/// Listens on an address, as soon as it is free. An IPv6 address takes IPv6 only, as memcached's do.
pub async fn bind(address: SocketAddr, backlog: i32) -> io::Result<TcpListener> {
    let options = BindOptions::new().backlog(backlog).only_v6(true);
    TcpListener::bind_within(address, &options, FREE_WITHIN).await
}

/// Refuses a publicly reachable address if clients need not authenticate.
pub fn check_address(config: &Config, ip: IpAddr) -> Result<(), StartError> {
    match config.requires_authentication() || config.listen_unauthenticated || !is_public(ip) {
        true => Ok(()),
        false => Err(StartError::Unprotected(ip)),
    }
}

fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            let [first, second, ..] = ip.octets();
            // Benchmark networks (RFC 2544), which the Internet does not route.
            let is_benchmarking = first == 198 && second & 0xfe == 18;
            !(ip.is_loopback() || ip.is_private() || ip.is_link_local() || is_benchmarking)
        }
        IpAddr::V6(ip) => !(ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local()),
    }
}

/// Removes a Unix socket that no server listens on, as a killed server leaves it behind. Anything
/// else at the path is an error.
pub async fn remove_stale_socket(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the path exists and is not a socket"));
        }
        Ok(_) => {}
    }
    let deadline = Instant::now() + FREE_WITHIN;
    while UnixStream::connect(path).is_ok() {
        if Instant::now() >= deadline {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another server listens on it"));
        }
        runtime::sleep(RETRY).await;
    }
    std::fs::remove_file(path)
}

#[derive(Debug)]
pub struct BoundPath {
    path: PathBuf,
    identity: (u64, u64, i64, i64),
}

/// Device, inode and time of creation: inode numbers are used again, and a socket's modification
/// time never changes.
fn identity(metadata: &Metadata) -> (u64, u64, i64, i64) {
    (metadata.dev(), metadata.ino(), metadata.mtime(), metadata.mtime_nsec())
}

impl BoundPath {
    pub fn of(path: &Path) -> io::Result<Self> {
        let identity = identity(&std::fs::symlink_metadata(path)?);
        Ok(Self { path: path.to_owned(), identity })
    }

    pub fn remove(&self) {
        if std::fs::symlink_metadata(&self.path).is_ok_and(|found| identity(&found) == self.identity) {
            // Fails if the user may not write to the directory. The next server there replaces the
            // socket.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_private_and_benchmark_addresses_are_not_public() {
        for public in ["0.0.0.0", "8.8.8.8", "198.20.0.1", "::", "2001:4860:4860::8888"] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
        for private in
            ["127.0.0.1", "10.1.2.3", "192.168.0.1", "169.254.1.1", "198.18.0.1", "::1", "fd00::1", "fe80::1"]
        {
            assert!(!is_public(private.parse().unwrap()), "{private}");
        }
    }
}
