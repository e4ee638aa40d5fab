//! Serving datagrams: a socket for each worker, in one reuseport group.

use std::io;
use std::io::ErrorKind::{AddrInUse, PermissionDenied};
use std::net::SocketAddr;
use std::panic::Location;

use runtime::{JoinHandle, task};
use socket2::{SockFilter, Socket, Type};

use super::listener_group::steer_by_owner;
use crate::listener::BindOptions;
use crate::udp::UdpSocket;

/// By what the kernel chooses the worker of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum UdpSteering {
    /// By its receive queue: the worker that polls the queue gets it. Without a queue (loopback),
    /// by hash.
    Queue,
    /// By a hash of its addresses and ports: the runtime has no interface with a queue for each
    /// worker, or the kernel has refused the program.
    Hash,
}

/// Datagrams that are being served. Dropping it doesn't stop the serving.
#[derive(Debug)]
#[must_use = "keep it to stop the serving"]
pub struct UdpServing {
    address: SocketAddr,
    steering: UdpSteering,
    tasks: Vec<JoinHandle<()>>,
}

impl UdpServing {
    /// The address that is served.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// By what the kernel chooses the worker of a datagram.
    pub fn steering(&self) -> UdpSteering {
        self.steering
    }

    /// Drops the handlers, each on its worker, and with them the sockets. Returns when all are
    /// dropped.
    pub async fn stop(self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        for task in self.tasks {
            // Cancelled, or its handler has ended before.
            let _ = task.await;
        }
    }
}

impl UdpSocket {
    /// Binds the sockets of a service, in one reuseport group: what [`UdpSocket::serve`] gives to
    /// handlers, for libraries that take sockets. If there are as many as workers, the i-th is for
    /// worker i, which takes it over by [`UdpSocket::from_std`].
    ///
    /// # Errors
    /// `AddrInUse` if another socket has the address, or the error of another system call.
    ///
    /// # Panics
    /// Outside of a runtime, or for no sockets.
    #[doc(alias = "SO_REUSEPORT")]
    pub fn bind_group(
        address: SocketAddr,
        options: &BindOptions,
        sockets: usize,
    ) -> io::Result<Vec<std::net::UdpSocket>> {
        assert!(sockets > 0, "a group has sockets");
        let (sockets, _) = steered_group(Self::bind_with(address, options)?, sockets)?;
        Ok(sockets.into_iter().map(Into::into).collect())
    }

    /// Serves the datagrams of this address on all workers: `handler` is called once on each, with
    /// a socket.
    ///
    /// The sockets are new, in one reuseport group in place of this one. What this one has received
    /// is dropped; options other than those of binding are set by the handler. If the runtime has
    /// an interface with a queue for each worker, a program (`SO_ATTACH_REUSEPORT_CBPF`) steers a
    /// datagram by its receive queue to the worker that owns the queue. Otherwise the kernel spreads
    /// datagrams by hash ([`UdpServing::steering`]).
    ///
    /// When a handler returns or panics, its socket is closed: the kernel gives its datagrams to
    /// others, and not by queue any more. The kernel lets only sockets of one user into a group, so
    /// one that another user has made is served as it is, by the calling worker.
    ///
    /// # Errors
    /// If the other sockets can't be made.
    #[doc(alias = "SO_ATTACH_REUSEPORT_CBPF")]
    #[track_caller]
    pub fn serve<H, F>(self, handler: H) -> io::Result<UdpServing>
    where
        H: Fn(UdpSocket) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + 'static,
    {
        let spawned = Location::caller();
        let address = self.local_addr()?;
        let workers = runtime::workers();
        let (sockets, steering) = steered_group(self, workers)?;
        let first = if sockets.len() < workers { runtime::current_worker() } else { 0 };
        let serve_on = |(worker, socket): (usize, Socket)| {
            let handler = handler.clone();
            task::Builder::new().location(spawned).spawn_on(worker, move || async move {
                match UdpSocket::from_std(socket.into()) {
                    Ok(socket) => handler(socket).await,
                    Err(error) => tracing::error!(worker, %error, "a worker can't receive datagrams"),
                }
            })
        };
        let tasks = (first..).zip(sockets).map(serve_on).collect();
        Ok(UdpServing { address, steering, tasks })
    }
}

/// Replaces a socket by a reuseport group of this many, the i-th of which is worker i's, and steers
/// datagrams to them by queue. Only the socket is returned if it is another user's.
fn steered_group(first: UdpSocket, count: usize) -> io::Result<(Vec<Socket>, UdpSteering)> {
    let queues = runtime::__net::owned_queues();
    // Of several workers that share a queue the kernel has to choose.
    let by_queue = count == runtime::workers() && queues.len() >= count;
    if count == 1 {
        let steering = if by_queue { UdpSteering::Queue } else { UdpSteering::Hash };
        return Ok((vec![first.into_std()?.into()], steering));
    }
    let sockets = group(first, count)?;
    if sockets.len() == 1 {
        return Ok((sockets, UdpSteering::Hash));
    }
    // Datagrams of loopback, which can't be handed over as connections are, are left to the hash.
    let steered = by_queue.then(|| steer_by_owner(&sockets[0], &queues, count, true));
    sockets.iter().try_for_each(Socket::detach_filter)?;
    let steering = match steered {
        Some(Ok(())) => UdpSteering::Queue,
        Some(Err(error)) => {
            tracing::info!(%error, "datagrams are spread by hash, as they can't be steered by queue");
            UdpSteering::Hash
        }
        None => UdpSteering::Hash,
    };
    Ok((sockets, steering))
}

/// As [`steered_group`], of sockets that receive nothing yet.
///
/// The kernel stores the NAPI of the first datagram in a socket, and none of later ones, so that
/// the first must not come before it can be steered.
fn group(first: UdpSocket, count: usize) -> io::Result<Vec<Socket>> {
    let address = first.local_addr()?;
    let first = Socket::from(first.into_std()?);
    let options = BindOptions::of(&first, address, 0)?;
    let device = first.device()?;
    let member = || -> io::Result<Socket> {
        let socket = options.socket(address, Type::DGRAM)?;
        if let Some(device) = &device {
            socket.bind_device(Some(device))?;
        }
        // "Keep 0 bytes."
        socket.attach_filter(&[SockFilter::new(0x06, 0, 0, 0)])?;
        socket.set_reuse_port(true)?;
        socket.bind(&address.into())?;
        Ok(socket)
    };
    // It was bound without the option, so two programs never share an address by mistake. Now it
    // lets others of this user join (`net/ipv4/udp.c`, `udp_lib_lport_inuse`).
    first.set_reuse_port(true)?;
    match member() {
        Err(error) if [AddrInUse, PermissionDenied].contains(&error.kind()) => {
            tracing::info!(%error, "one worker receives for all, as no sockets can be added to its address");
            first.set_reuse_port(false)?;
            Ok(vec![first])
        }
        second => {
            let second = second?;
            // The second is the group's first member then.
            drop(first);
            std::iter::once(Ok(second)).chain((1..count).map(|_| member())).collect()
        }
    }
}
