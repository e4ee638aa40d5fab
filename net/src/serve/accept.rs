//! The accept loop of one listener, and the tasks of the connections that it accepts.

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::panic::{AssertUnwindSafe, Location};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use runtime::__net::CountedConnection;
use runtime::task;
use socket2::Socket;

use super::connections::{ConnectionSlot, Place, ServeState};
use crate::listener::{Accepted, Arrival, Listener, accept};
use crate::sockopt;
use crate::stream::generic::Stream;

/// Accepts connections until its task is aborted, and serves each on the worker that owns its NAPI.
#[derive(Clone)]
pub(super) struct Acceptor<H> {
    pub(super) state: Arc<ServeState>,
    pub(super) handler: H,
    pub(super) spawned: &'static Location<'static>,
}

impl<H> Acceptor<H> {
    /// `ahead`: connections that were accepted before. `drains`: at a stop nobody else would accept
    /// what waits in the backlog.
    pub(super) fn accept_all<K, F>(
        self,
        listener: Listener<K>,
        ahead: Vec<Socket>,
        drains: bool,
    ) -> impl Future<Output = ()>
    where
        K: 'static,
        H: Fn(Stream<K>, Arrival) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + 'static,
    {
        // Made before the first poll: a stop may come first.
        let accepted = ahead.into_iter().map(accepted_ahead).collect();
        let state = Arc::clone(&self.state);
        let serve = Box::new(move |accepted, place| self.serve::<K, F>(accepted, place));
        let mut accepting = Accepting { state, serve, listener: Some(listener), accepted, drains };
        async move {
            std::future::poll_fn(|context| accepting.state.poll_resumed(context)).await;
            // Before the serving began.
            accepting.serve_accepted().await;
            while let Some(listener) = &accepting.listener {
                match listener.accept_socket().await {
                    Ok(accepted) => {
                        accepting.accepted.push_back(accepted);
                        accepting.serve_accepted().await;
                    }
                    Err(error) => back_off(&error, &accepting.state).await,
                }
            }
        }
    }

    fn serve<K, F>(&self, (socket, peer): Accepted, place: Place)
    where
        K: 'static,
        H: Fn(Stream<K>, Arrival) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + 'static,
    {
        let here = runtime::current_worker();
        let napi = sockopt::napi_of(&socket);
        let owner = runtime::__net::worker_of_napi(napi);
        if owner != here {
            self.state.counters.count_rehomed();
        }
        let counted = CountedConnection::on(owner);
        let (state, handler, (slot, key)) = (&self.state, self.handler.clone(), place);
        let serve = move || ServedConnection {
            handled: call_handler(&slot.state, socket, Arrival { peer, napi }, handler),
            _slot: slot,
            _counted: counted,
        };
        // Reports name the line that serves, which is the application's.
        let task = task::Builder::new().location(self.spawned);
        let task = if owner == here { task.spawn(serve()) } else { task.spawn_on(owner, serve) };
        state.set_task(key, || task.abort_handle());
    }
}

/// A listener that is accepted from. When the accepting ends, its drop serves the connections that
/// nobody else can any more: those that were accepted ahead, and the backlog of a socket that is
/// closed with it.
struct Accepting<K> {
    state: Arc<ServeState>,
    serve: Box<dyn Fn(Accepted, Place)>,
    /// Taken by the drop.
    listener: Option<Listener<K>>,
    /// Accepted, and not served yet: before the serving began, or without a place.
    accepted: VecDeque<Accepted>,
    drains: bool,
}

impl<K> Accepting<K> {
    /// Serves what was accepted, each once it has a place.
    async fn serve_accepted(&mut self) {
        while let Some((socket, _)) = self.accepted.front() {
            let place = self.state.add(socket).await;
            let Some(accepted) = self.accepted.pop_front() else { return };
            (self.serve)(accepted, place);
        }
    }
}

impl<K> Drop for Accepting<K> {
    fn drop(&mut self) {
        let Some(listener) = self.listener.take() else { return };
        let state = &self.state;
        // Else the runtime ends. And no handler may run before the application has resumed the
        // serving.
        if !state.stopped_accepting.load(Ordering::SeqCst) || state.is_paused() {
            return;
        }
        let serve = |accepted: Accepted| {
            if let Some(place) = state.try_add(&accepted.0) {
                (self.serve)(accepted, place);
            }
        };
        std::mem::take(&mut self.accepted).into_iter().for_each(serve);
        // The kernel goes on filling the backlog while it is emptied. More than it holds at once
        // would be a flood, which would keep the worker here.
        let waiting = (listener.backlog as u32).min(LARGEST_BACKLOG);
        let Ok((socket, ahead)) = listener.into_socket() else { return };
        ahead.into_iter().map(accepted_ahead).for_each(serve);
        if self.drains {
            for accepted in backlog(&socket).take(waiting as usize + 1) {
                accepted.into_iter().for_each(serve);
            }
        }
    }
}

fn accepted_ahead(socket: Socket) -> Accepted {
    (Arc::new(socket), None)
}

/// A backlog that is negative or larger asks for the largest that the kernel allows
/// (`net.core.somaxconn`).
const LARGEST_BACKLOG: u32 = 65_535;

/// The connections that wait to be accepted. `None` is one that was gone, which doesn't end them.
fn backlog(listener: &Socket) -> impl Iterator<Item = Option<Accepted>> {
    std::iter::from_fn(|| match accept(listener) {
        Ok(accepted) => Some(Some(accepted)),
        Err(error) if concerns_peer(&error) => Some(None),
        Err(_) => None,
    })
}

/// How long a listener waits after an error, which another attempt at once would only meet again.
/// Connections wait in the backlog meanwhile.
const PAUSE: Duration = Duration::from_millis(20);

/// A connection that was gone before it was accepted doesn't matter. Everything else concerns this
/// host: it has no descriptors or no memory left, mostly.
async fn back_off(error: &io::Error, state: &ServeState) {
    if concerns_peer(error) {
        return runtime::yield_now().await;
    }
    if let Some(failed) = state.accept_errors.count() {
        tracing::warn!(%error, failed, "connections can't be accepted, and wait");
    }
    runtime::sleep(PAUSE).await;
}

/// accept(2) returns the errors that a new connection has had since.
fn concerns_peer(error: &io::Error) -> bool {
    let of_peer = [
        libc::ECONNABORTED,
        libc::ECONNRESET,
        libc::EHOSTDOWN,
        libc::EHOSTUNREACH,
        libc::EINTR,
        libc::ENETDOWN,
        libc::ENETUNREACH,
        libc::ENONET,
        libc::ENOPROTOOPT,
        libc::EOPNOTSUPP,
        libc::EPERM,
        libc::EPROTO,
        libc::ETIMEDOUT,
    ];
    error.raw_os_error().is_some_and(|code| of_peer.contains(&code))
}

pin_project! {
    /// The task of a connection. An async block would hold the handler's future twice: where it is
    /// captured and where it is awaited.
    struct ServedConnection<F> {
        // Dropped in order: when its slot is freed nobody uses the connection any more.
        #[pin]
        handled: Option<F>,
        _slot: ConnectionSlot,
        _counted: CountedConnection,
    }
}

impl<F: Future<Output = ()>> Future for ServedConnection<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match self.project().handled.as_pin_mut() {
            Some(handled) => handled.poll(context),
            None => Poll::Ready(()),
        }
    }
}

/// Takes a connection onto this worker and calls its handler. `None` if the handler panics or the
/// driver can't register the connection.
fn call_handler<K, H, F>(state: &ServeState, socket: Arc<Socket>, arrival: Arrival, handler: H) -> Option<F>
where
    H: Fn(Stream<K>, Arrival) -> F,
{
    let stream = match Stream::accepted(socket, arrival.napi) {
        Ok(stream) => stream,
        Err(error) => {
            tracing::error!(%error, "a connection was closed, as it could not be registered with the driver");
            return None;
        }
    };
    state.counters.count_accepted(arrival.napi);
    if state.stopping.load(Ordering::SeqCst) {
        // Accepted before the shutdown and started after it.
        let _ = stream.shutdown(Shutdown::Read);
    }
    // The panic hook has reported a panic, and the other connections go on. Its payload is leaked,
    // as it may panic when it is dropped.
    let handled = std::panic::catch_unwind(AssertUnwindSafe(|| handler(stream, arrival)));
    handled.map_err(std::mem::forget).ok()
}
