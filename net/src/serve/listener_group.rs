//! Starts serving: a listener for each worker, in one reuseport group, of which the kernel chooses
//! one by the connection's receive queue.

use std::io;
use std::io::ErrorKind::{AddrInUse, PermissionDenied};
use std::panic::Location;
use std::sync::Arc;

use runtime::__net::OwnedQueue;
use socket2::Socket;

use super::accept::Acceptor;
use super::connections::ServeState;
use super::serving::Serving;
use crate::listener::{Arrival, Listener};
use crate::sockopt;
use crate::stream::generic::Stream;
use crate::tcp::{Tcp, extend_reuseport_group};
use crate::unix::Unix;

impl Listener<Tcp> {
    /// Serves every connection with `handler`, on the worker that owns the connection's NAPI.
    ///
    /// Each worker gets a listener in one reuseport group. The kernel lets only sockets of one user
    /// into a group, so for a listening socket that another user has made one worker accepts, and
    /// hands connections over. If the runtime has an interface with a queue for each worker, a
    /// program (`SO_ATTACH_REUSEPORT_CBPF`) steers a connection by its receive queue to the listener of the
    /// worker that owns the queue. After accept, `SO_INCOMING_NAPI_ID` is checked, and a connection
    /// that came to the wrong worker is handed over. A connection without a NAPI goes to the worker
    /// with the fewest connections, and with fewer queues than workers to the one with the fewest of
    /// those that share its queue.
    ///
    /// A handler that panics ends its own connection only. If a worker's driver doesn't take its
    /// listener, that is logged, and the others accept its share.
    ///
    /// # Errors
    /// If the other workers' listeners can't be made.
    #[doc(alias = "SO_ATTACH_REUSEPORT_CBPF")]
    #[track_caller]
    pub fn serve<H, F>(self, handler: H) -> io::Result<Serving>
    where
        H: Fn(Stream<Tcp>) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + 'static,
    {
        self.serve_at(move |stream, _| handler(stream), false, Location::caller())
    }

    /// As [`serve`](Self::serve), but connections wait in the backlog until [`Serving::resume`] is
    /// called. The listeners are all there: meanwhile the process can drop the privileges that
    /// their addresses need.
    #[track_caller]
    pub fn serve_paused<H, F>(self, handler: H) -> io::Result<Serving>
    where
        H: Fn(Stream<Tcp>) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + 'static,
    {
        self.serve_paused_arrivals(move |stream, _| handler(stream))
    }

    /// For libraries that serve for an application: as [`serve_paused`](Self::serve_paused), with
    /// what is known of the connection.
    #[doc(hidden)]
    #[track_caller]
    pub fn serve_paused_arrivals<H, F>(self, handler: H) -> io::Result<Serving>
    where
        H: Fn(Stream<Tcp>, Arrival) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + 'static,
    {
        self.serve_at(handler, true, Location::caller())
    }

    fn serve_at<H, F>(self, handler: H, paused: bool, line: &'static Location<'static>) -> io::Result<Serving>
    where
        H: Fn(Stream<Tcp>, Arrival) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + 'static,
    {
        let workers = runtime::workers();
        let backlog = self.backlog;
        let others = match workers {
            1 => Vec::new(),
            // A socket that another user has made, as root's that systemd passes: then this
            // listener accepts for all workers, and hands connections over.
            _ => match extend_reuseport_group(self.socket(), backlog, workers - 1) {
                Err(error) if [AddrInUse, PermissionDenied].contains(&error.kind()) => {
                    tracing::info!(%error, "one worker accepts for all, as no listeners can be added to its address");
                    self.socket().set_reuse_port(false)?;
                    Vec::new()
                }
                others => others?,
            },
        };
        let queues = runtime::__net::owned_queues();
        if !others.is_empty() && queues.len() >= workers {
            // Without the program the kernel spreads connections by hash, and they are handed over.
            let _ = steer_by_owner(self.socket(), &queues, workers, false);
        }
        let acceptor = self.acceptor(handler, paused, line);
        let state = Arc::clone(&acceptor.state);
        // The i-th member of the group is worker i's. On worker 0 this listener stays as it is.
        let drains = !self.passed_in;
        let mut accepting = Vec::new();
        let mut sockets = Vec::new();
        if runtime::current_worker() == 0 {
            accepting.push(runtime::spawn(acceptor.clone().accept_all(self, Vec::new(), drains)));
        } else {
            let (socket, ahead) = self.into_socket()?;
            sockets.push((0, socket, ahead));
        }
        sockets.extend((1..).zip(others).map(|(worker, socket)| (worker, socket, Vec::new())));
        accepting.extend(sockets.into_iter().map(|(worker, socket, ahead)| {
            let acceptor = acceptor.clone();
            runtime::spawn_on(worker, move || async move {
                match Listener::<Tcp>::from_socket(socket, backlog) {
                    Ok(listener) => acceptor.accept_all(listener, ahead, drains || worker > 0).await,
                    Err(error) => tracing::error!(worker, %error, "a worker can't accept connections"),
                }
            })
        }));
        Ok(Serving::new(state, accepting))
    }
}

impl Listener<Unix> {
    /// Serves every connection with `handler`, on the worker with the fewest connections.
    ///
    /// A handler that panics ends its own connection only.
    /// It returns no error so far; the signature is that of TCP listeners.
    #[track_caller]
    pub fn serve<H, F>(self, handler: H) -> io::Result<Serving>
    where
        H: Fn(Stream<Unix>) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + 'static,
    {
        Ok(self.serve_at(move |stream, _| handler(stream), false, Location::caller()))
    }

    /// As [`serve`](Self::serve), but connections wait in the backlog until [`Serving::resume`] is
    /// called.
    #[track_caller]
    pub fn serve_paused<H, F>(self, handler: H) -> io::Result<Serving>
    where
        H: Fn(Stream<Unix>) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + 'static,
    {
        self.serve_paused_arrivals(move |stream, _| handler(stream))
    }

    /// For libraries that serve for an application: as [`serve_paused`](Self::serve_paused), with
    /// what is known of the connection.
    #[doc(hidden)]
    #[track_caller]
    pub fn serve_paused_arrivals<H, F>(self, handler: H) -> io::Result<Serving>
    where
        H: Fn(Stream<Unix>, Arrival) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + 'static,
    {
        Ok(self.serve_at(handler, true, Location::caller()))
    }

    fn serve_at<H, F>(self, handler: H, paused: bool, line: &'static Location<'static>) -> Serving
    where
        H: Fn(Stream<Unix>, Arrival) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + 'static,
    {
        let acceptor = self.acceptor(handler, paused, line);
        let state = Arc::clone(&acceptor.state);
        let accepting = runtime::spawn(acceptor.accept_all(self, Vec::new(), true));
        Serving::new(state, vec![accepting])
    }
}

impl<K> Listener<K> {
    /// `line`: the one that serves, unless the listener has been given another.
    fn acceptor<H>(&self, handler: H, paused: bool, line: &'static Location<'static>) -> Acceptor<H> {
        let state = ServeState::new(self.connection_limit, paused);
        Acceptor { state, handler, spawned: self.caller.unwrap_or(line) }
    }
}

/// Makes a reuseport group, of which worker `i` has the `i`-th member, choose by receive queue: the
/// member of the worker that owns the queue. `hashes_loopback`: what comes by loopback is spread by
/// hash.
pub(super) fn steer_by_owner(
    socket: &Socket,
    queues: &[OwnedQueue],
    workers: usize,
    hashes_loopback: bool,
) -> io::Result<()> {
    let first = runtime::__net::first_queue_number();
    let table: Vec<_> = queues.iter().map(|owned| (owned.queue + first, owned.worker as u32)).collect();
    sockopt::steer_by_queue(socket, &table, workers as u32, hashes_loopback)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use socket2::{Domain, Type};

    use super::*;

    fn listening(address: SocketAddr) -> Socket {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_reuse_port(true).unwrap();
        socket.bind(&address.into()).unwrap();
        socket.listen(16).unwrap();
        socket
    }

    #[test]
    fn the_kernel_chooses_the_listener_by_the_table() {
        // Packets of loopback have queue 0.
        for table in [vec![(0, 1)], vec![(7, 0), (0, 1)], vec![(7, 1), (0, 0)]] {
            let first = listening("127.0.0.1:0".parse().unwrap());
            let address = first.local_addr().unwrap().as_socket().unwrap();
            let second = listening(address);
            sockopt::steer_by_queue(&first, &table, 2, false).unwrap();
            let expected = table.iter().find(|(queue, _)| *queue == 0).unwrap().1;
            let (chosen, other) = if expected == 0 { (&first, &second) } else { (&second, &first) };
            for socket in [chosen, other] {
                socket.set_nonblocking(true).unwrap();
            }
            let clients: Vec<_> = (0..16).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
            assert!(clients.iter().all(|_| chosen.accept().is_ok()), "{table:?}");
            assert!(other.accept().is_err(), "{table:?}");
        }
    }
}
