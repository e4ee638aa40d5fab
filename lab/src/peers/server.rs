//! Starts an echo server on one of the runtimes.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use policies::{Cpus, GraceTime, Policy};
use runtime::DriverKind;
use serde::{Deserialize, Serialize};
use socket2::{Domain, Socket, Type};

use super::peer::Peer;
use super::request_shape::RequestShape;
use super::{bare_epoll, compio, descriptor_limit, lull, monoio, tokio};

/// What an echo server process runs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EchoServerSpec {
    /// The runtime.
    pub peer: Peer,
    /// The server's core.
    pub core: u32,
    /// The sizes of requests and replies.
    pub shape: RequestShape,
    /// The address to listen on.
    pub address: Ipv4Addr,
    /// How Lull's runtime handles the network; `None` leaves everything as it is. Other runtimes have no such choice.
    pub network: Option<EchoServerNetwork>,
    /// Time that the server spends computing for each request.
    pub work: Duration,
}

/// How Lull's runtime handles the network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EchoServerNetwork {
    /// The policy.
    pub policy: Policy,
    /// The driver.
    pub driver: DriverKind,
    /// The interface.
    pub interface: String,
    /// The core that does the network work under the packing policy.
    pub packing_core: u32,
    /// The grace time.
    pub grace_time: GraceTime,
}

/// Serves on a free port until the process is killed. Calls `ready` once it listens, with the address, and for Lull with
/// what its worker runs and why it runs something else than the requested policy.
///
/// # Errors
/// If the core or the port can't be had, if the runtime can't be started, or if `ready` fails.
pub fn serve(
    spec: &EchoServerSpec,
    ready: impl FnOnce(SocketAddr, Option<String>, Vec<String>) -> io::Result<()>,
) -> io::Result<()> {
    descriptor_limit::raise()?;
    Cpus::one(spec.core).pin(None)?;
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((spec.address, 0)).into())?;
    socket.listen(4096)?;
    let listener: TcpListener = socket.into();
    let address = listener.local_addr()?;
    let lull_driver = match spec.peer {
        Peer::LullUring => Some(DriverKind::Uring),
        Peer::LullEpoll => Some(DriverKind::Epoll),
        _ => None,
    };
    if let Some(driver) = lull_driver {
        return lull::serve(listener, spec, driver, |ran, steps_down| ready(address, Some(ran), steps_down));
    }
    ready(address, None, Vec::new())?;
    match spec.peer {
        Peer::LullUring | Peer::LullEpoll => Ok(()),
        Peer::Tokio => tokio::serve(listener, spec.shape),
        Peer::Monoio => monoio::serve(listener, spec.shape),
        Peer::Compio => compio::serve(listener, spec.shape),
        Peer::BareEpoll => bare_epoll::serve(&listener, spec.shape),
    }
}
