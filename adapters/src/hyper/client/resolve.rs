//! Addresses of hosts, by the system's resolver.

use std::io;
use std::net::SocketAddr;

/// A URI's host without the brackets that it has IPv6 addresses in.
pub(super) fn without_brackets(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Looks a host up. Addresses are taken as they are.
pub(super) async fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let found = net::lookup_host((without_brackets(host), port)).await?;
    if found.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("the host {host} has no address")));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[runtime::test]
    async fn addresses_need_no_lookup_and_names_have_one() {
        assert_eq!(resolve("127.0.0.1", 80).await.unwrap(), ["127.0.0.1:80".parse().unwrap()]);
        assert_eq!(resolve("[::1]", 443).await.unwrap(), ["[::1]:443".parse().unwrap()]);
        assert!(resolve("localhost", 80).await.unwrap().iter().all(|address| address.ip().is_loopback()));
        assert!(resolve("no-such-host.invalid", 80).await.is_err());
    }
}
