//! Starts an echo server on one of the runtimes.

use std::io;
use std::net::{SocketAddr, TcpListener};

use policies::Cpus;
use socket2::{Domain, Socket, Type};

use super::echo_server_spec::EchoServerSpec;
use super::service::Peer;
#[cfg(feature = "adapters")]
use super::service::PeerService;
use super::{bare_epoll, compio, descriptor_limit, lull, monoio, tokio};

/// Serves on a free port until the process is killed. Calls `ready` once it listens, with the
/// address, and for Lull with what its worker runs and why it runs something else than the
/// requested policy.
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
    if spec.peer == Peer::Lull {
        let ready = |ran, steps_down| ready(address, Some(ran), steps_down);
        #[cfg(feature = "adapters")]
        if spec.service == PeerService::Axum {
            return super::applications::serve_on_lull(listener, spec, ready);
        }
        return lull::serve(listener, spec, ready);
    }
    ready(address, None, Vec::new())?;
    match spec.peer {
        #[cfg(feature = "adapters")]
        Peer::Tokio if spec.service == PeerService::Axum => super::applications::serve_on_tokio(listener),
        Peer::Tokio => tokio::serve(listener, spec.shape),
        Peer::Monoio => monoio::serve(listener, spec.shape),
        Peer::Compio => compio::serve(listener, spec.shape),
        Peer::BareEpoll => bare_epoll::serve(&listener, spec.shape),
        Peer::Lull => Ok(()),
    }
}
