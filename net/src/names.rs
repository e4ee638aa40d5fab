//! Connecting by name.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use runtime::task::JoinSet;
use socket2::Domain;

use crate::stream::generic::{Stream, connect};
use crate::to_socket_addrs::{Target, ToSocketAddrs};

/// After this time the next address is tried, beside those before it (RFC 8305, section 5,
/// *Connection Attempt Delay*).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Looks up the addresses of a name such as `"example.org:80"` or `("example.org", 80)`, with the
/// system's resolver (`getaddrinfo(3)`), on a thread for blocking work. What is an address already
/// is returned at once.
///
/// # Errors
/// The resolver's error; `InvalidInput` for a string without a valid port.
pub async fn lookup_host(host: impl ToSocketAddrs) -> io::Result<Vec<SocketAddr>> {
    addresses(host.to_target()?).await
}

pub(crate) async fn addresses(target: Target) -> io::Result<Vec<SocketAddr>> {
    match target {
        Target::One(address) => Ok(vec![address]),
        Target::Several(addresses) => Ok(addresses),
        Target::Name(host, port) => lookup(host, port).await,
    }
}

async fn lookup(host: String, port: u16) -> io::Result<Vec<SocketAddr>> {
    let resolve =
        move || std::net::ToSocketAddrs::to_socket_addrs(&(host.as_str(), port)).map(Vec::from_iter);
    // Aborts when it is dropped: a look-up that nobody waits for any more does not take a thread from
    // others, unless it has begun.
    let mut lookup = JoinSet::new();
    lookup.spawn_blocking(resolve);
    let looked_up = lookup.join_next().await.expect("it has one task");
    looked_up.unwrap_or_else(|error| Err(io::Error::other(error.to_string())))
}

/// Connects to a target: the first of several addresses that answers.
pub(crate) async fn connect_target<K: 'static>(target: Target) -> io::Result<Stream<K>> {
    let addresses = match target {
        Target::One(address) => return connect_one(address).await,
        Target::Several(addresses) => addresses,
        Target::Name(host, port) => lookup(host, port).await?,
    };
    // Boxed: most callers have one address, and their futures should not have room for this.
    Box::pin(connect_any(addresses)).await
}

async fn connect_one<K>(address: SocketAddr) -> io::Result<Stream<K>> {
    connect(&address.into(), Domain::for_address(address)).await
}

/// Addresses of both families in turn, beginning with the first one's.
fn alternating(addresses: Vec<SocketAddr>) -> VecDeque<SocketAddr> {
    let Some(first) = addresses.first().copied() else { return VecDeque::new() };
    let (same, other): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv6() == first.is_ipv6());
    let (mut same, mut other) = (same.into_iter(), other.into_iter());
    let mut all = VecDeque::new();
    loop {
        let next = [same.next(), other.next()];
        if next == [None, None] {
            return all;
        }
        all.extend(next.into_iter().flatten());
    }
}

async fn connect_any<K: 'static>(addresses: Vec<SocketAddr>) -> io::Result<Stream<K>> {
    let mut left = alternating(addresses);
    let mut attempts = JoinSet::new();
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "there is no address to connect to");
    loop {
        if let Some(address) = left.pop_front() {
            attempts.spawn(connect_one(address));
        }
        let connected = match left.is_empty() {
            true => attempts.join_next().await,
            false => match runtime::timeout(ATTEMPT_DELAY, attempts.join_next()).await {
                Ok(connected) => connected,
                Err(_) => continue,
            },
        };
        match connected {
            Some(Ok(Ok(stream))) => return Ok(stream),
            // The next one need not wait.
            Some(Ok(Err(error))) => failed = error,
            Some(Err(error)) => failed = io::Error::other(error),
            None => return Err(failed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_alternate_and_the_resolvers_order_stays_within_each() {
        let parse = |addresses: &[&str]| addresses.iter().map(|one| one.parse().unwrap()).collect::<Vec<_>>();
        let addresses = parse(&["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1", "2.2.2.2:1"]);
        let expected = parse(&["[::1]:1", "1.1.1.1:1", "[::2]:1", "2.2.2.2:1", "[::3]:1"]);
        assert_eq!(alternating(addresses), expected);
        assert!(alternating(Vec::new()).is_empty());
    }
}
