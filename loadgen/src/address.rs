//! Addresses of servers.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;
use std::{fmt, io};

use serde::{Deserialize, Serialize};

use crate::invalid_value::InvalidValue;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Address {
    /// TCP, or UDP for that protocol.
    Tcp(SocketAddr),
    Unix(PathBuf),
}

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
    type Err = InvalidValue;

    /// Parses `HOST`, `HOST:PORT`, or a path, which contains a slash. Resolves host names.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.contains('/') {
            return Ok(Address::Unix(text.into()));
        }
        const EXPECTED: &str = "write HOST, HOST:PORT or /PATH, for example 127.0.0.1:11211";
        resolve(text, PORT).map(Address::Tcp).map_err(|error| InvalidValue(format!("{error}; {EXPECTED}")))
    }
}

/// Resolves `HOST` or `HOST:PORT` to an address. `port` is the default port.
///
/// # Errors
/// Returns the resolver's error, or [`io::ErrorKind::NotFound`] if the name has no address.
pub fn resolve(text: &str, port: u16) -> io::Result<SocketAddr> {
    // A bare IPv6 address contains colons.
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok((ip, port).into());
    }
    let mut found = text.to_socket_addrs().or_else(|_| (text, port).to_socket_addrs())?;
    let not_found = || io::Error::new(io::ErrorKind::NotFound, format!("{text:?} has no address"));
    found.next().ok_or_else(not_found)
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Address::Tcp(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_ports_and_paths_are_distinguished() {
        let tcp = |text: &str| Address::Tcp(text.parse().unwrap());
        assert_eq!("127.0.0.1".parse(), Ok(tcp("127.0.0.1:11211")));
        assert_eq!("127.0.0.1:7".parse(), Ok(tcp("127.0.0.1:7")));
        assert_eq!("2001:db8::1:2".parse(), Ok(tcp("[2001:db8::1:2]:11211")));
        assert_eq!("[::1]:7".parse(), Ok(tcp("[::1]:7")));
        assert_eq!("/run/memcached.sock".parse(), Ok(Address::Unix("/run/memcached.sock".into())));
        assert_eq!("./here".parse::<Address>().unwrap().to_string(), "./here");
        for text in ["", "127.0.0.1:99999", "no such host"] {
            assert!(text.parse::<Address>().unwrap_err().to_string().contains("HOST:PORT"), "{text}");
        }
    }
}
