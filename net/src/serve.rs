//! Aligned accept: each connection is served on the worker that owns its NAPI.

use std::future::Future;
use std::io;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pin_project_lite::pin_project;
use runtime::io::CountedConnection;
use runtime::{AbortHandle, JoinHandle};
use serde::Serialize;
use slab::Slab;
use socket2::Socket;

use crate::listener::{Listener, join_group};
use crate::sockopt;
use crate::stream::{Stream, Tcp, Unix};

/// Where connections went, since the serving began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Alignment {
    /// Connections taken on.
    pub accepted: u64,
    /// Of those, served by the worker that polls their NAPI.
    pub aligned: u64,
    /// Of those, with a NAPI that is not their worker's: another interface's, or a queue more than
    /// there are workers.
    pub misaligned: u64,
    /// Of those, without a NAPI (loopback, Unix sockets); they go to the least loaded worker.
    pub without_napi: u64,
    /// Handed over from the worker that accepted them to the one that serves them.
    pub rehomed: u64,
}

#[derive(Default)]
struct Counters {
    accepted: AtomicU64,
    aligned: AtomicU64,
    misaligned: AtomicU64,
    without_napi: AtomicU64,
    rehomed: AtomicU64,
}

struct Connection {
    /// Tells it from those that had its place before: a task's handle must not end up with another.
    number: u64,
    socket: Weak<Socket>,
    /// There once the connection's task is spawned.
    task: Option<AbortHandle>,
}

#[derive(Default)]
struct Shared {
    counters: Counters,
    connections: Mutex<Slab<Connection>>,
    next: AtomicU64,
    stopping: AtomicBool,
    /// Waits for the last connection to end.
    drained: Mutex<Option<Waker>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection's place in the list; dropped with the connection's task, however that ends.
struct Place {
    shared: Arc<Shared>,
    key: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut connections = lock(&self.shared.connections);
        connections.try_remove(self.key);
        let last = connections.is_empty();
        drop(connections);
        if last {
            // Woken outside the lock.
            let waker = lock(&self.shared.drained).take();
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

/// A listener that is being served. Dropping it lets the serving go on.
#[must_use = "keep it for its counters and its graceful shutdown"]
pub struct Serving {
    shared: Arc<Shared>,
    accepting: Vec<JoinHandle<()>>,
}

/// How a graceful shutdown went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShutdownReport {
    /// Handlers that finished by themselves within the deadline.
    pub finished: usize,
    /// Handlers that had to be dropped.
    pub aborted: usize,
}

impl Serving {
    /// Where connections went so far.
    pub fn alignment(&self) -> Alignment {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.shared.counters;
        Alignment {
            accepted: get(&counters.accepted),
            aligned: get(&counters.aligned),
            misaligned: get(&counters.misaligned),
            without_napi: get(&counters.without_napi),
            rehomed: get(&counters.rehomed),
        }
    }

    /// Connections that are open now.
    pub fn connections(&self) -> usize {
        lock(&self.shared.connections).len()
    }

    /// Stops accepting, then lets handlers finish.
    ///
    /// The reading side of every connection is shut down: a handler that waits for a request sees the
    /// end of the stream, one that is at work can still write its answer. Handlers that have not
    /// finished after `deadline` are dropped.
    pub async fn shutdown(self, deadline: Duration) -> ShutdownReport {
        self.shared.stopping.store(true, Ordering::SeqCst);
        for task in self.accepting {
            task.abort();
            // Ends cancelled; what matters is that its listener is closed by then.
            let _ = task.await;
        }
        let open = {
            let connections = lock(&self.shared.connections);
            for socket in connections.iter().filter_map(|(_, connection)| connection.socket.upgrade()) {
                // Fails where the peer was faster.
                let _ = socket.shutdown(std::net::Shutdown::Read);
            }
            connections.len()
        };
        let drained = std::future::poll_fn(|context| {
            *lock(&self.shared.drained) = Some(context.waker().clone());
            if lock(&self.shared.connections).is_empty() { Poll::Ready(()) } else { Poll::Pending }
        });
        if runtime::timeout(deadline, drained).await.is_ok() {
            return ShutdownReport { finished: open, aborted: 0 };
        }
        let tasks: Vec<AbortHandle> = lock(&self.shared.connections)
            .iter()
            .filter_map(|(_, connection)| connection.task.clone())
            .collect();
        // Outside of the lock: an aborted task may end at once, and takes it.
        tasks.iter().for_each(AbortHandle::abort);
        ShutdownReport { finished: open.saturating_sub(tasks.len()), aborted: tasks.len() }
    }
}

impl std::fmt::Debug for Serving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Serving").field("alignment", &self.alignment()).finish_non_exhaustive()
    }
}

/// Corrects the steering program by what is seen: the queue that it reads is one too high on hardware
/// and right on veth, so connections may arrive a constant number of workers beside their owner.
struct Steering {
    listeners: u32,
    state: Mutex<SteeringState>,
}

#[derive(Default)]
struct SteeringState {
    shift: u32,
    error: u32,
    streak: u32,
}

/// So many connections in a row with one and the same error are no accident.
const STREAK: u32 = 8;

impl Steering {
    /// Notes that a connection came to `here` and belongs to `owner`.
    fn observe(&self, listener: &Socket, here: usize, owner: usize) {
        let count = self.listeners;
        let error = (owner as u32 + count - here as u32) % count;
        let mut state = lock(&self.state);
        if error == 0 || error != state.error {
            (state.error, state.streak) = (error, u32::from(error != 0));
            return;
        }
        state.streak += 1;
        if state.streak == STREAK {
            let shift = (state.shift + error) % count;
            if sockopt::steer_by_queue(listener, count, shift).is_ok() {
                *state = SteeringState { shift, ..SteeringState::default() };
            }
        }
    }
}

impl Listener<Tcp> {
    /// Serves every connection with `handler`, on the worker that owns the connection's NAPI.
    ///
    /// Each worker gets a listener of its own in one reuseport group. Where the runtime has an
    /// interface with NAPIs, a program (`SO_ATTACH_REUSEPORT_CBPF`) steers a connection by its receive
    /// queue to the listener of the worker that owns the queue. After accept,
    /// `SO_INCOMING_NAPI_ID` is checked, and a connection that came to the wrong worker is handed over.
    ///
    /// # Errors
    /// Where the further listeners can't be made.
    pub fn serve<H, F>(self, handler: H) -> io::Result<Serving>
    where
        H: Fn(Stream<Tcp>) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + 'static,
    {
        let workers = runtime::workers();
        let backlog = self.backlog();
        let others = if workers > 1 { join_group(self.socket(), backlog, workers - 1)? } else { Vec::new() };
        let aligned = workers > 1 && runtime::reports().iter().any(|report| report.napi.is_some());
        // Without the program the kernel spreads connections by hash, and they are handed over.
        let steered = aligned && sockopt::steer_by_queue(self.socket(), workers as u32, 0).is_ok();
        let steering =
            steered.then(|| Arc::new(Steering { listeners: workers as u32, state: Mutex::default() }));
        let shared = Arc::new(Shared::default());
        // The i-th member of the group is worker i's. Where this is worker 0 its listener stays as it is,
        // with what it may have accepted ahead.
        let mut accepting = Vec::new();
        let mut sockets = Vec::new();
        if runtime::current_worker() == 0 {
            let (shared, steering) = (Arc::clone(&shared), steering.clone());
            accepting.push(runtime::spawn(accept_all(self, shared, steering, handler.clone())));
        } else {
            sockets.push((0, self.into_socket()?.0));
        }
        sockets.extend((1..).zip(others));
        accepting.extend(sockets.into_iter().map(|(worker, socket)| {
            let (shared, steering, handler) = (Arc::clone(&shared), steering.clone(), handler.clone());
            runtime::spawn_on(worker, move || async move {
                match Listener::<Tcp>::from_socket(socket, backlog) {
                    Ok(listener) => accept_all(listener, shared, steering, handler).await,
                    Err(error) => eprintln!("lull: worker {worker} cannot accept: {error}"),
                }
            })
        }));
        Ok(Serving { shared, accepting })
    }
}

impl Listener<Unix> {
    /// Serves every connection with `handler`, on the least loaded worker.
    pub fn serve<H, F>(self, handler: H) -> io::Result<Serving>
    where
        H: Fn(Stream<Unix>) -> F + Clone + Send + 'static,
        F: Future<Output = ()> + 'static,
    {
        let shared = Arc::new(Shared::default());
        let accepting = vec![runtime::spawn(accept_all(self, Arc::clone(&shared), None, handler))];
        Ok(Serving { shared, accepting })
    }
}

async fn accept_all<K, H, F>(
    listener: Listener<K>,
    shared: Arc<Shared>,
    steering: Option<Arc<Steering>>,
    handler: H,
) where
    K: 'static,
    H: Fn(Stream<K>) -> F + Clone + Send + 'static,
    F: Future<Output = ()> + 'static,
{
    let here = runtime::current_worker();
    loop {
        match listener.accept_socket().await {
            Ok(socket) => {
                let napi = sockopt::incoming_napi_id(&socket);
                let owner = runtime::io::worker_of_napi(napi);
                if let Some(steering) = steering.as_ref().filter(|_| napi != 0) {
                    steering.observe(listener.socket(), here, owner);
                }
                if owner != here {
                    shared.counters.rehomed.fetch_add(1, Ordering::Relaxed);
                }
                start(&shared, socket, owner, here, handler.clone());
            }
            Err(error) => after_failed_accept(&error).await,
        }
    }
}

/// A connection that was gone before it was accepted is no matter. Where there are no descriptors or
/// no memory, trying again at once would only burn the core: connections wait in the backlog.
async fn after_failed_accept(error: &io::Error) {
    let short_of = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    if error.raw_os_error().is_some_and(|code| short_of.contains(&code)) {
        runtime::sleep(Duration::from_millis(20)).await;
    } else {
        runtime::yield_now().await;
    }
}

fn start<K, H, F>(shared: &Arc<Shared>, socket: Arc<Socket>, owner: usize, here: usize, handler: H)
where
    K: 'static,
    H: Fn(Stream<K>) -> F + Send + 'static,
    F: Future<Output = ()> + 'static,
{
    let counted = CountedConnection::on(owner);
    let number = shared.next.fetch_add(1, Ordering::Relaxed);
    let connection = Connection { number, socket: Arc::downgrade(&socket), task: None };
    let key = lock(&shared.connections).insert(connection);
    let place = Place { shared: Arc::clone(shared), key };
    let serve =
        move || Served { handled: place.shared.begin(socket, handler), _place: place, _counted: counted };
    let task = if owner == here { runtime::spawn(serve()) } else { runtime::spawn_on(owner, serve) };
    let mut connections = lock(&shared.connections);
    if let Some(connection) = connections.get_mut(key).filter(|connection| connection.number == number) {
        connection.task = Some(task.abort_handle());
    }
}

pin_project! {
    /// A connection while it is served. An async block would hold the handler's future twice: where it is
    /// captured and where it is awaited.
    struct Served<F> {
        // Dropped in order: when its place is given back nobody uses the connection any more.
        #[pin]
        handled: Option<F>,
        _place: Place,
        _counted: CountedConnection,
    }
}

impl<F: Future<Output = ()>> Future for Served<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match self.project().handled.as_pin_mut() {
            Some(handled) => handled.poll(context),
            None => Poll::Ready(()),
        }
    }
}

impl Shared {
    /// Takes a connection onto this worker and begins to handle it.
    fn begin<K, H, F>(&self, socket: Arc<Socket>, handler: H) -> Option<F>
    where
        H: Fn(Stream<K>) -> F,
    {
        match Stream::from_socket(socket) {
            Ok(stream) => {
                self.count(&stream);
                // Where it panics the panic hook has told, and the other connections go on.
                // What it was raised with may panic when it is dropped, so it isn't.
                let handled = std::panic::catch_unwind(AssertUnwindSafe(|| handler(stream)));
                handled.map_err(std::mem::forget).ok()
            }
            Err(error) => {
                eprintln!("lull: a connection could not be registered: {error}");
                None
            }
        }
    }

    fn count<K>(&self, stream: &Stream<K>) {
        let add = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
        add(&self.counters.accepted);
        let napi = stream.incoming_napi_id();
        if napi == 0 {
            add(&self.counters.without_napi);
        } else if napi == runtime::io::own_napi() {
            add(&self.counters.aligned);
        } else {
            add(&self.counters.misaligned);
        }
        if self.stopping.load(Ordering::SeqCst) {
            // Accepted before the shutdown and started after it.
            let _ = stream.shutdown(std::net::Shutdown::Read);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_error_is_corrected_after_a_streak_and_an_accident_is_not() {
        let socket = Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.set_reuse_port(true).unwrap();
        socket.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
        socket.listen(1).unwrap();
        let steering = Steering { listeners: 3, state: Mutex::default() };
        for _ in 0..STREAK - 1 {
            steering.observe(&socket, 1, 0);
        }
        steering.observe(&socket, 1, 1);
        assert_eq!(lock(&steering.state).shift, 0);
        for _ in 0..STREAK {
            steering.observe(&socket, 1, 0);
        }
        assert_eq!(lock(&steering.state).shift, 2);
    }
}
