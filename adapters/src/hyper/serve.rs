//! HTTP servers.

use std::io;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::server::conn::auto;
use net::{AcceptErrors, Alignment, Serving, ShutdownReport};

use super::connection::{ConnectionContext, serve_connection};
use super::listen::{Listen, MakeService};
use super::rt::{Executor, Timer};
use super::shutdown::Shutdown;

/// How long [`Serve::with_graceful_shutdown`] waits for requests in progress, unless
/// [`Serve::shutdown_limit`] sets another time.
/// Less than Kubernetes waits before it kills (30 s, `terminationGracePeriodSeconds`).
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(25);
/// hyper's own limit for the head of a request, which begins only when the version is known.
const FIRST_BYTES_LIMIT: Duration = Duration::from_secs(30);
/// How long a connection of HTTP/1 may be idle: longer than proxies keep theirs, which is 60 s
/// mostly.
const IDLE_LIMIT: Duration = Duration::from_secs(75);

/// Serves HTTP/1 and HTTP/2 on a listener, each connection on the worker that owns its NAPI (see
/// [`TcpListener::serve`](net::TcpListener)). Await the result, or [start](Serve::start) it.
///
/// `make` is called for each connection. No write waits for an acknowledgment (`TCP_NODELAY`).
/// Which protocol a client speaks is found out by its first bytes.
///
/// ```
/// use std::convert::Infallible;
///
/// use hyper::body::Incoming;
/// use hyper::service::service_fn;
/// use hyper::{Request, Response};
/// # use futures_util::{AsyncReadExt, AsyncWriteExt};
/// # use net::TcpStream;
///
/// async fn hello(_: Request<Incoming>) -> Result<Response<String>, Infallible> {
///     Ok(Response::new(format!("hello from worker {}", runtime::current_worker())))
/// }
///
/// #[runtime::main(workers = 1)]
/// async fn main() -> std::io::Result<()> {
///     let listener = net::TcpListener::bind("127.0.0.1:0")?;
///     let address = listener.local_addr()?;
///     let server = adapters::hyper::serve(listener, |_: &_| service_fn(hello)).start()?;
///     # let mut client = TcpStream::connect(address).await?;
///     # client.write_all(b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n").await?;
///     # let mut answer = String::new();
///     # client.read_to_string(&mut answer).await?;
///     # assert!(answer.ends_with("\r\n\r\nhello from worker 0"), "{answer}");
///     server.shutdown(std::time::Duration::from_secs(1)).await;
///     Ok(())
/// }
/// ```
#[track_caller]
pub fn serve<L: Listen, M: MakeService>(listener: L, make: M) -> Serve<L, M> {
    let mut builder = auto::Builder::new(Executor::new());
    builder.http1().timer(Timer::new()).header_read_timeout(IDLE_LIMIT);
    // WebSockets over HTTP/2 (RFC 8441).
    builder.http2().timer(Timer::new()).enable_connect_protocol();
    Serve {
        listener,
        caller: Location::caller(),
        make,
        builder,
        first_bytes_limit: Some(FIRST_BYTES_LIMIT),
        idle_limit: None,
        stall_limit: None,
        http1_only: false,
        signal: None,
        shutdown_limit: SHUTDOWN_LIMIT,
        #[cfg(feature = "tls")]
        tls: None,
        #[cfg(feature = "tls")]
        h2_required: false,
    }
}

/// A server that is set up, see [`serve`]. Awaited, it serves until its shutdown; without one, for
/// ever.
#[must_use = "a server serves when it is awaited or started"]
pub struct Serve<L, M> {
    listener: L,
    caller: &'static Location<'static>,
    make: M,
    builder: auto::Builder<Executor>,
    first_bytes_limit: Option<Duration>,
    idle_limit: Option<Duration>,
    stall_limit: Option<Duration>,
    http1_only: bool,
    signal: Option<Pin<Box<dyn Future<Output = io::Result<()>>>>>,
    shutdown_limit: Duration,
    #[cfg(feature = "tls")]
    tls: Option<crate::tls::Acceptor>,
    /// Whether TLS clients have to choose HTTP/2.
    #[cfg(feature = "tls")]
    h2_required: bool,
}

impl<L: Listen, M: MakeService> Serve<L, M> {
    /// Shuts down when `signal` is ready: accepts no more, answers the requests in progress, and
    /// asks the clients of open connections to go. Then the awaited server returns, also an error
    /// of `signal`, which need not be `Send`: `with_graceful_shutdown(runtime::signal::terminated())`.
    /// One that never ends has to name its output: `std::future::pending::<()>()`.
    pub fn with_graceful_shutdown(mut self, signal: impl Future<Output: Signalled> + 'static) -> Self {
        self.signal = Some(Box::pin(async { sealed::Signalled::into_result(signal.await) }));
        self
    }

    /// How long a graceful shutdown waits for requests and upgraded connections before it drops
    /// them, and logs how many. Default: 25 s.
    pub fn shutdown_limit(mut self, limit: Duration) -> Self {
        self.shutdown_limit = limit;
        self
    }

    /// How long an HTTP/1 client may take for the head of a request, and for its first byte; an
    /// idle connection is closed after it. Default: 75 s, and 30 s for the first byte. `None`: any
    /// time.
    ///
    /// Behind a proxy it has to be longer than the proxy keeps idle connections (60 s by default in
    /// nginx and AWS's load balancers): otherwise some requests are sent on a connection that is
    /// being closed, and fail (status 502).
    pub fn header_read_timeout(mut self, limit: Option<Duration>) -> Self {
        self.builder.http1().header_read_timeout(limit);
        self.first_bytes_limit = limit;
        self
    }

    /// How long a client of HTTP/2 may send nothing, or nothing but pings and the like while it has
    /// no request in progress, before its connection is asked to end (GOAWAY), after the requests
    /// in progress. One that doesn't is closed. It is looked at once in this time, so it may take
    /// twice as long. Connections of HTTP/1 are limited by
    /// [`header_read_timeout`](Self::header_read_timeout). Default: `None`, any time.
    pub fn idle_timeout(mut self, limit: Option<Duration>) -> Self {
        self.idle_limit = limit;
        self
    }

    /// How long a client may take nothing of what is sent to it, before its connection is closed. A
    /// client of HTTP/2 that takes only some of its streams' responses is not closed. Default:
    /// `None`, any time.
    pub fn stall_timeout(mut self, limit: Option<Duration>) -> Self {
        self.stall_limit = limit;
        self
    }

    /// Closes connections of HTTP/2. Let a TLS acceptor offer `http/1.1` only (ALPN), so that
    /// clients don't choose it. Default: both.
    pub fn http1_only(mut self) -> Self {
        self.http1_only = true;
        self
    }

    /// Sets any other of hyper's options: buffers, windows, keep-alive pings, limits. Timer and
    /// executor are set.
    ///
    /// Its `http1_only` and `http2_only` have no effect, since connections may be upgraded:
    /// [`Serve::http1_only`] has one. `writev` and `pipeline_flush` have none, either: a
    /// [`FileBody`](super::FileBody) needs the former, and must not be copied as the latter does.
    pub fn configure(mut self, configure: impl FnOnce(&mut auto::Builder<Executor>)) -> Self {
        configure(&mut self.builder);
        self
    }

    /// Serves TLS only. Let the acceptor offer `h2` and `http/1.1` by ALPN: see
    /// [`AcceptorBuilder::http`](crate::tls::AcceptorBuilder::http).
    #[cfg(feature = "tls")]
    pub fn tls(mut self, acceptor: crate::tls::Acceptor) -> Self {
        self.tls = Some(acceptor);
        self
    }

    /// Closes TLS connections on which HTTP/2 was not agreed on (ALPN), as gRPC wants it.
    #[cfg(all(feature = "tls", feature = "tonic"))]
    pub(crate) fn require_h2(mut self) -> Self {
        self.h2_required = true;
        self
    }

    /// Serves in the background. A signal of
    /// [`with_graceful_shutdown`](Self::with_graceful_shutdown) is ignored: call
    /// [`Server::shutdown`].
    ///
    /// # Errors
    /// If the other workers' listeners can't be made, or tokio's thread (the feature
    /// `tokio-context`). `InvalidInput` if the TLS acceptor of a gRPC server does not offer `h2`.
    pub fn start(mut self) -> io::Result<Server> {
        #[cfg(feature = "tokio-context")]
        crate::tokio_context::enter()?;
        // If hyper copied what bodies give it, a `FileBody` would be lost: its bytes are in the
        // file only.
        self.builder.http1().writev(true).pipeline_flush(false);
        #[cfg(feature = "tls")]
        if self.h2_required && self.tls.as_ref().is_some_and(|acceptor| !acceptor.offers("h2")) {
            let problem =
                "gRPC needs HTTP/2: the server's TLS acceptor has to offer h2 (AcceptorBuilder::alpn)";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        #[cfg(feature = "tls")]
        let encrypted = self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        let encrypted = false;
        let shutdown = Arc::new(Shutdown::default());
        let context = Arc::new(ConnectionContext {
            make: self.make,
            builder: self.builder,
            shutdown: Arc::clone(&shutdown),
            is_tcp: L::IS_TCP,
            first_bytes_limit: self.first_bytes_limit,
            idle_limit: self.idle_limit,
            stall_limit: self.stall_limit,
            http1_only: self.http1_only,
            #[cfg(feature = "tls")]
            tls: self.tls,
            #[cfg(feature = "tls")]
            h2_required: self.h2_required,
        });
        let serving = self.listener.serve_paused(self.caller, move |stream, arrival| {
            let peer = L::peer(&stream, arrival, encrypted);
            serve_connection(stream, peer, Arc::clone(&context))
        })?;
        serving.resume();
        Ok(Server { serving, shutdown })
    }

    async fn run(mut self) -> io::Result<()> {
        let signal = self.signal.take();
        let limit = self.shutdown_limit;
        let server = self.start()?;
        match signal {
            Some(signal) => {
                let signalled = signal.await;
                server.shutdown(limit).await;
                signalled
            }
            None => std::future::pending().await,
        }
    }
}

impl<L, M> IntoFuture for Serve<L, M>
where
    L: Listen + 'static,
    M: MakeService,
{
    type Output = io::Result<()>;
    type IntoFuture = Pin<Box<dyn Future<Output = io::Result<()>>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl<L: std::fmt::Debug, M> std::fmt::Debug for Serve<L, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Serve").field("listener", &self.listener).finish_non_exhaustive()
    }
}

/// What a signal of [`Serve::with_graceful_shutdown`] returns: `()`, or `io::Result<()>` as
/// [`terminated`](runtime::signal::terminated) and [`ctrl_c`](runtime::signal::ctrl_c) do.
pub trait Signalled: sealed::Signalled {}

impl Signalled for () {}
impl Signalled for io::Result<()> {}

mod sealed {
    pub trait Signalled {
        fn into_result(self) -> std::io::Result<()>;
    }

    impl Signalled for () {
        fn into_result(self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Signalled for std::io::Result<()> {
        fn into_result(self) -> std::io::Result<()> {
            self
        }
    }
}

/// A server that runs in the background. Dropping it doesn't stop it.
#[derive(Debug)]
#[must_use = "keep it for its counters and its graceful shutdown"]
pub struct Server {
    serving: Serving,
    shutdown: Arc<Shutdown>,
}

impl Server {
    /// The number of open connections, with those that were upgraded, and those that have had their
    /// last answer and whose clients have not closed yet (for two seconds at most).
    pub fn connections(&self) -> usize {
        self.serving.connections()
    }

    /// Numbers of connections since the start.
    pub fn alignment(&self) -> Alignment {
        self.serving.alignment()
    }

    /// How often a connection could not be accepted.
    pub fn accept_errors(&self) -> AcceptErrors {
        self.serving.accept_errors()
    }

    /// Accepts no more, answers the requests in progress, and closes each connection after its last
    /// answer. One without a request in progress is closed after two seconds, or four, also if its
    /// client does nothing. What has not ended after `limit` is dropped, and a warning says how
    /// many. An upgraded connection, such as a WebSocket, ends by itself or at `limit`.
    pub async fn shutdown(mut self, limit: Duration) -> ShutdownReport {
        self.serving.stop_accepting().await;
        let open = self.serving.connections();
        self.shutdown.begin();
        let _ = runtime::timeout(limit, self.serving.drained()).await;
        let mut report = ShutdownReport::default();
        report.aborted = self.serving.connections();
        report.finished = open.saturating_sub(report.aborted);
        if report.aborted > 0 {
            let (aborted, finished) = (report.aborted, report.finished);
            tracing::warn!(aborted, finished, ?limit, "the shutdown's limit has ended open connections");
        }
        self.serving.shutdown(Duration::ZERO).await;
        report
    }
}
