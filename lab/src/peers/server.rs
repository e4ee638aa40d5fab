//! Starts an echo server on one of the runtimes.

use std::io;
use std::net::{SocketAddr, TcpListener};

use policies::Cpus;
use runtime::DriverKind;
use socket2::{Domain, Socket, Type};

use super::echo_server_spec::EchoServerSpec;
use super::peer::Peer;
use super::service::PeerService;
use super::{bare_epoll, compio, descriptor_limit, lull, lull_threads, monoio, plain_threads, tokio};

/// Serves on a free port until the process is killed. Calls `ready` once it listens, with the address, and for Lull with
/// what its worker runs and why it runs something else than the requested policy.
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
    if !matches!(spec.service, PeerService::Echo | PeerService::Threads) {
        return serve_application(listener, spec, lull_driver, |ran, steps_down| {
            ready(address, ran, steps_down)
        });
    }
    if let Some(driver) = lull_driver {
        return lull::serve(listener, spec, driver, |ran, steps_down| ready(address, Some(ran), steps_down));
    }
    if spec.peer == Peer::LullThreads {
        return lull_threads::serve(listener, spec, |ran, steps_down| ready(address, Some(ran), steps_down));
    }
    ready(address, None, Vec::new())?;
    match spec.peer {
        Peer::LullUring | Peer::LullEpoll | Peer::LullThreads => Ok(()),
        Peer::PlainThreads => plain_threads::serve(&listener, spec.shape),
        Peer::Tokio => tokio::serve(listener, spec.shape),
        Peer::Monoio => monoio::serve(listener, spec.shape),
        Peer::Compio => compio::serve(listener, spec.shape),
        Peer::BareEpoll => bare_epoll::serve(&listener, spec.shape),
    }
}

#[cfg(feature = "adapters")]
fn serve_application(
    listener: TcpListener,
    spec: &EchoServerSpec,
    lull_driver: Option<DriverKind>,
    ready: impl FnOnce(Option<String>, Vec<String>) -> io::Result<()>,
) -> io::Result<()> {
    use super::applications;
    if let Some(driver) = lull_driver {
        let ready = |ran, steps_down| ready(Some(ran), steps_down);
        return applications::serve_on_lull(listener, spec, driver, ready);
    }
    ready(None, Vec::new())?;
    applications::serve_on_tokio(listener, spec)
}

#[cfg(not(feature = "adapters"))]
fn serve_application(
    _: TcpListener,
    _: &EchoServerSpec,
    _: Option<DriverKind>,
    _: impl FnOnce(Option<String>, Vec<String>) -> io::Result<()>,
) -> io::Result<()> {
    Err(io::Error::other("this lab was built without the feature `adapters`"))
}
