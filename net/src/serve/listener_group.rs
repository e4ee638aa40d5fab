//! Starts serving: a listener for each worker, in one reuseport group.

use std::io;
use std::io::ErrorKind::{AddrInUse, PermissionDenied};
use std::panic::Location;
use std::sync::Arc;

use super::accept::Acceptor;
use super::connections::{ListenerFailure, ServeState};
use super::serving::Serving;
use super::steering::Steering;
use crate::listener::Listener;
use crate::stream::generic::Stream;
use crate::tcp::{Tcp, extend_reuseport_group};
use crate::unix::Unix;

impl Listener<Tcp> {
    /// Serves every connection with `handler`, on the worker that owns the connection's NAPI.
    ///
    /// Each worker gets a listener in one reuseport group. The kernel lets only sockets of one user
    /// into a group, so for a listening socket that another user has made one worker accepts, and
    /// hands connections over. If the runtime has an interface with NAPIs, a program
    /// (`SO_ATTACH_REUSEPORT_CBPF`) steers a connection by its receive queue to the listener of the
    /// worker that owns the queue. After accept, `SO_INCOMING_NAPI_ID` is checked, and a connection
    /// that came to the wrong worker is handed over. A connection without a NAPI goes to the worker
    /// with the fewest connections.
    ///
    /// A handler that panics ends its own connection only. A worker whose driver doesn't take its
    /// listener is in [`Serving::failures`]; the others accept its share.
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
        let caller = self.caller().unwrap_or(Location::caller());
        self.serve_with(handler, ServeState::default(), caller)
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
        let caller = self.caller().unwrap_or(Location::caller());
        self.serve_with(handler, ServeState::paused(), caller)
    }

    fn serve_with<H, F>(
        self,
        handler: H,
        state: ServeState,
        spawned: &'static Location<'static>,
    ) -> io::Result<Serving>
    where
        H: Fn(Stream<Tcp>) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + 'static,
    {
        let workers = runtime::workers();
        let backlog = self.backlog();
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
        // Without the program the kernel spreads connections by hash, and they are handed over.
        let steering = match !others.is_empty() && !queues.is_empty() {
            true => Steering::attach(self.socket(), queues, workers as u32).ok().map(Arc::new),
            false => None,
        };
        let state = Arc::new(state.with_limit(self.connection_limit()));
        let acceptor = Acceptor { state: Arc::clone(&state), steering, handler, spawned };
        // The i-th member of the group is worker i's. On worker 0 this listener stays as it is.
        let drains = !self.is_passed_in();
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
                    Err(error) => {
                        tracing::error!(worker, %error, "a worker can't accept connections");
                        acceptor.state.add_failure(ListenerFailure { worker, error: Arc::new(error) });
                    }
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
    ///
    /// # Errors
    /// Never, so far; the signature is that of TCP listeners.
    #[track_caller]
    pub fn serve<H, F>(self, handler: H) -> io::Result<Serving>
    where
        H: Fn(Stream<Unix>) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + 'static,
    {
        let caller = self.caller().unwrap_or(Location::caller());
        Ok(self.serve_with(handler, ServeState::default(), caller))
    }

    /// As [`serve`](Self::serve), but connections wait in the backlog until [`Serving::resume`] is
    /// called.
    ///
    /// # Errors
    /// Never, so far.
    #[track_caller]
    pub fn serve_paused<H, F>(self, handler: H) -> io::Result<Serving>
    where
        H: Fn(Stream<Unix>) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + 'static,
    {
        let caller = self.caller().unwrap_or(Location::caller());
        Ok(self.serve_with(handler, ServeState::paused(), caller))
    }

    fn serve_with<H, F>(self, handler: H, state: ServeState, spawned: &'static Location<'static>) -> Serving
    where
        H: Fn(Stream<Unix>) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + 'static,
    {
        let state = Arc::new(state.with_limit(self.connection_limit()));
        let acceptor = Acceptor { state: Arc::clone(&state), steering: None, handler, spawned };
        let accepting = runtime::spawn(acceptor.accept_all(self, Vec::new(), true));
        Serving::new(state, vec![accepting])
    }
}
