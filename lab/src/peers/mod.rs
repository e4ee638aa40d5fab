//! The same echo server on Lull and on the runtimes that a user would choose instead. Each server
//! is a process on one core.

#[cfg(feature = "adapters")]
mod axum;
pub(crate) mod lull;
mod mio;
mod runtimes;
mod spec;

use std::io;
use std::net::{SocketAddr, TcpListener};

use policies::Cpus;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

pub use self::spec::{EchoServerSpec, Peer, PeerService, RequestShape};

/// Serves on a free port until the process is killed. Calls `ready` once it listens, with the
/// address, and for Lull with what its worker runs and why it runs something else than the
/// requested policy.
pub fn serve(
    spec: &EchoServerSpec,
    ready: impl FnOnce(SocketAddr, Option<String>, Vec<String>) -> io::Result<()>,
) -> io::Result<()> {
    raise_descriptor_limit()?;
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
            return axum::serve_on_lull(listener, spec, ready);
        }
        return lull::serve(listener, spec, ready);
    }
    ready(address, None, Vec::new())?;
    match spec.peer {
        #[cfg(feature = "adapters")]
        Peer::Tokio if spec.service == PeerService::Axum => axum::serve_on_tokio(listener),
        Peer::Tokio => runtimes::serve_on_tokio(listener, spec.shape),
        Peer::Monoio => runtimes::serve_on_monoio(listener, spec.shape),
        Peer::Compio => runtimes::serve_on_compio(listener, spec.shape),
        Peer::Mio => mio::serve(listener, spec.shape),
        Peer::Lull => Ok(()),
    }
}

pub fn raise_descriptor_limit() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    Ok(())
}
