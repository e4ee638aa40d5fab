//! What connect and bind take for an address.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// What [`TcpStream::connect`](crate::Stream::connect),
/// [`TcpListener::bind`](crate::Listener::bind), [`UdpSocket::bind`](crate::UdpSocket::bind),
/// [`UdpSocket::send_to`](crate::UdpSocket::send_to) and [`lookup_host`](crate::lookup_host) take for
/// an address, as the trait of the same name in the standard library and in tokio. Only this crate
/// implements it.
///
/// - A [`SocketAddr`], or a slice, an array or a `Vec` of them.
/// - A pair of an address and a port: `(IpAddr, u16)`, `(Ipv4Addr, u16)`, `(Ipv6Addr, u16)`,
///   `([u8; 4], u16)`.
/// - A string with a port, `"127.0.0.1:80"`, `"[::1]:80"` or `"example.org:80"`, or a pair of a
///   host and a port, `("example.org", 80)`.
///
/// A host that is not an address is a name. A name has to be looked up, which `async` functions do
/// on a thread for blocking work. [`TcpListener::bind`](crate::Listener::bind) and the others that
/// are not `async` never block: to them a name is an error (`InvalidInput`).
///
/// ```
/// use std::net::{Ipv4Addr, SocketAddr};
/// use net::{TcpListener, TcpStream, lookup_host};
///
/// # #[runtime::main(driver = "epoll")]
/// # async fn main() -> std::io::Result<()> {
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let port = listener.local_addr()?.port();
/// TcpStream::connect(("localhost", port)).await?;
/// TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
/// TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).await?;
/// let by_name = TcpListener::bind(lookup_host("localhost:0").await?)?;
/// assert!(by_name.local_addr()?.ip().is_loopback());
/// # Ok(())
/// # }
/// ```
pub trait ToSocketAddrs: sealed::ToTarget {}

impl<T: ToTarget + ?Sized> ToSocketAddrs for T {}

/// Where to connect or bind.
#[derive(Debug)]
pub enum Target {
    /// One address, which needs no allocation.
    One(SocketAddr),
    /// The addresses in the order in which they are tried.
    Several(Vec<SocketAddr>),
    /// A host to look up, and the port.
    Name(String, u16),
}

mod sealed {
    /// The method of [`ToSocketAddrs`](super::ToSocketAddrs).
    pub trait ToTarget {
        /// Parses the address. `InvalidInput` if it has no valid port.
        fn to_target(&self) -> std::io::Result<super::Target>;
    }
}

pub(crate) use sealed::ToTarget;

/// Implements the trait for types that convert to a `SocketAddr`.
macro_rules! impl_for_addresses {
    ($($type:ty),*) => {$(
        impl ToTarget for $type {
            fn to_target(&self) -> io::Result<Target> {
                Ok(Target::One(SocketAddr::from(*self)))
            }
        }
    )*};
}

impl_for_addresses!(
    SocketAddr,
    SocketAddrV4,
    SocketAddrV6,
    (IpAddr, u16),
    (Ipv4Addr, u16),
    (Ipv6Addr, u16),
    ([u8; 4], u16)
);

/// Implements the trait for collections of addresses.
macro_rules! impl_for_slices {
    ($([$($generics:tt)*] $type:ty),*) => {$(
        impl<$($generics)*> ToTarget for $type {
            fn to_target(&self) -> io::Result<Target> {
                Ok(Target::Several(self.to_vec()))
            }
        }
    )*};
}

impl_for_slices!([] [SocketAddr], [] Vec<SocketAddr>, [const N: usize] [SocketAddr; N]);

impl<T: ToTarget + ?Sized> ToTarget for &T {
    fn to_target(&self) -> io::Result<Target> {
        (**self).to_target()
    }
}

impl ToTarget for str {
    fn to_target(&self) -> io::Result<Target> {
        if let Ok(address) = self.parse() {
            return Ok(Target::One(address));
        }
        let port = self.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let Some((host, port)) = port else {
            let message = format!("{self:?} is not a host and a port, such as \"example.org:80\"");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        };
        (host, port).to_target()
    }
}

impl ToTarget for String {
    fn to_target(&self) -> io::Result<Target> {
        self.as_str().to_target()
    }
}

impl ToTarget for (&str, u16) {
    fn to_target(&self) -> io::Result<Target> {
        let (host, port) = *self;
        Ok(match host.parse::<IpAddr>() {
            Ok(address) => Target::One(SocketAddr::new(address, port)),
            Err(_) => Target::Name(host.to_owned(), port),
        })
    }
}

impl ToTarget for (String, u16) {
    fn to_target(&self) -> io::Result<Target> {
        (self.0.as_str(), self.1).to_target()
    }
}

/// Calls `action` with one address after the other until it succeeds. `InvalidInput` for a name,
/// without a call, and without any address; else the error of the last address.
pub(crate) fn first_that_works<T>(
    addresses: &impl ToSocketAddrs,
    action: impl Fn(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let several = match addresses.to_target()? {
        Target::One(address) => return action(address),
        Target::Several(addresses) => addresses,
        Target::Name(host, _) => {
            let message = format!("{host:?} is a name, which has to be looked up first (net::lookup_host)");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
    };
    let mut failed = no_address();
    for address in several {
        match action(address) {
            Err(error) => failed = error,
            done => return done,
        }
    }
    Err(failed)
}

pub(crate) fn no_address() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "there is no address")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_host_that_is_no_address_is_a_name() {
        let expected = SocketAddr::from(([127, 0, 0, 1], 80));
        let is_expected = |given: &dyn ToTarget| matches!(given.to_target(), Ok(Target::One(address)) if address == expected);
        assert!(is_expected(&"127.0.0.1:80"));
        assert!(is_expected(&String::from("127.0.0.1:80")));
        assert!(is_expected(&("127.0.0.1", 80)));
        assert!(is_expected(&([127, 0, 0, 1], 80)));
        assert!(is_expected(&(Ipv4Addr::LOCALHOST, 80)));
        assert!(is_expected(&&expected));
        assert!(matches!("[::1]:80".to_target(), Ok(Target::One(address)) if address.is_ipv6()));
        assert!(matches!("example.org:80".to_target(), Ok(Target::Name(host, 80)) if host == "example.org"));
        assert!(matches!(("localhost", 1).to_target(), Ok(Target::Name(..))));
        for without_port in ["example.org", "127.0.0.1", "example.org:http", "example.org:70000", ""] {
            assert_eq!(without_port.to_target().unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn addresses_are_tried_in_order_until_one_works() {
        let ports = [1, 2, 3].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let works = |from: u16| {
            move |address: SocketAddr| match address.port() {
                port if port >= from => Ok(port),
                port => Err(io::Error::other(port.to_string())),
            }
        };
        assert_eq!(first_that_works(&&ports[..], works(2)).unwrap(), 2);
        assert_eq!(first_that_works(&ports, works(4)).unwrap_err().to_string(), "3");
        let none = first_that_works(&Vec::new(), works(0)).unwrap_err();
        let name = first_that_works(&"localhost:1", works(0)).unwrap_err();
        assert_eq!((none.kind(), name.kind()), (io::ErrorKind::InvalidInput, io::ErrorKind::InvalidInput));
    }
}
