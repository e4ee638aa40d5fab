//! How a socket is bound.

use std::net::SocketAddr;

use socket2::{Domain, Socket, Type};

use crate::listener::BACKLOG;

/// Options of a socket that is bound to an address.
///
/// ```
/// use net::{BindOptions, TcpListener};
///
/// # #[runtime::main(driver = "epoll")]
/// # async fn main() -> std::io::Result<()> {
/// let options = BindOptions::new().backlog(128).only_v6(true);
/// let listener = TcpListener::bind_with("[::]:0", &options)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "options do nothing until a socket is bound with them"]
pub struct BindOptions {
    backlog: i32,
    only_v6: Option<bool>,
    mode: Option<u32>,
}

impl Default for BindOptions {
    fn default() -> Self {
        Self { backlog: BACKLOG, only_v6: None, mode: None }
    }
}

impl BindOptions {
    /// A backlog of 4096, and IPv4 beside IPv6 as the system has it.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of connections that may wait to be accepted. Default: 4096. The kernel caps it at
    /// `net.core.somaxconn`.
    pub fn backlog(mut self, backlog: i32) -> Self {
        self.backlog = backlog;
        self
    }

    /// Whether an IPv6 address takes IPv6 only. Default: as the system has it
    /// (`net.ipv6.bindv6only`, which is 0): `[::]` takes IPv4 too, and the addresses of its IPv4
    /// peers are mapped (`::ffff:192.0.2.1`,
    /// [`Ipv6Addr::to_canonical`](std::net::Ipv6Addr::to_canonical)). It has no effect on IPv4
    /// addresses.
    #[doc(alias = "IPV6_V6ONLY")]
    pub fn only_v6(mut self, only: bool) -> Self {
        self.only_v6 = Some(only);
        self
    }

    /// The permissions of a Unix domain socket's path, such as `0o700`: who may write to the path
    /// may connect (`unix(7)`). The path has them before anybody can connect. Default: what the
    /// umask leaves. It has no effect on IP addresses.
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = Some(mode & 0o7777);
        self
    }

    pub(crate) fn listen_backlog(&self) -> i32 {
        self.backlog
    }

    pub(crate) fn path_mode(&self) -> Option<u32> {
        self.mode
    }

    /// A socket with these options, not bound yet.
    pub(crate) fn socket(&self, address: SocketAddr, kind: Type) -> std::io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(address), kind.nonblocking().cloexec(), None)?;
        if let Some(only) = self.only_v6.filter(|_| address.is_ipv6()) {
            socket.set_only_v6(only)?;
        }
        Ok(socket)
    }

    /// The options with which `first` was bound, for further members of its reuseport group.
    pub(crate) fn of(first: &Socket, address: SocketAddr, backlog: i32) -> std::io::Result<Self> {
        let only_v6 = if address.is_ipv6() { Some(first.only_v6()?) } else { None };
        Ok(Self { backlog, only_v6, mode: None })
    }
}
