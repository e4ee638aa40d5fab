//! Where servers are.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use crate::by_text::by_text;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// By TCP.
    Tcp(SocketAddr),
    /// On a Unix domain socket.
    Unix(PathBuf),
}

/// memcached's port.
const PORT: u16 = 11211;

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => write!(f, "{address}"),
            Address::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    /// `HOST`, `HOST:PORT`, or a path, which has a slash.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.contains('/') {
            return Ok(Address::Unix(text.into()));
        }
        let hint = "write HOST, HOST:PORT or /PATH, for example 127.0.0.1:11211";
        resolve(text, PORT).map(Address::Tcp).map_err(|error| format!("{error}; {hint}"))
    }
}

/// The address of `HOST` or `HOST:PORT`.
///
/// # Errors
/// The resolver's, or that there is none.
pub fn resolve(text: &str, port: u16) -> io::Result<SocketAddr> {
    // A bare IPv6 address has colons of its own.
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok((ip, port).into());
    }
    let mut found = text.to_socket_addrs().or_else(|_| (text, port).to_socket_addrs())?;
    let none = || io::Error::new(io::ErrorKind::NotFound, format!("{text:?} has no address"));
    found.next().ok_or_else(none)
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Address::Tcp(address)
    }
}

by_text!(Address);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_ports_and_paths_are_told_apart() {
        let tcp = |text: &str| Address::Tcp(text.parse().unwrap());
        assert_eq!("127.0.0.1".parse(), Ok(tcp("127.0.0.1:11211")));
        assert_eq!("127.0.0.1:7".parse(), Ok(tcp("127.0.0.1:7")));
        assert_eq!("2001:db8::1:2".parse(), Ok(tcp("[2001:db8::1:2]:11211")));
        assert_eq!("[::1]:7".parse(), Ok(tcp("[::1]:7")));
        assert_eq!("/run/memcached.sock".parse(), Ok(Address::Unix("/run/memcached.sock".into())));
        assert_eq!("./here".parse::<Address>().unwrap().to_string(), "./here");
        for text in ["", "127.0.0.1:99999", "no such host"] {
            assert!(text.parse::<Address>().unwrap_err().contains("HOST:PORT"), "{text}");
        }
    }
}
