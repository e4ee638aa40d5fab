//! The handle of an address that is being served.

use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use runtime::JoinHandle;

use super::connections::ServeState;
use crate::serve::counts::{AcceptErrors, Alignment};

/// A listener that is being served. Dropping it doesn't stop the serving.
///
/// ```
/// use std::time::Duration;
///
/// use futures_util::{AsyncReadExt, AsyncWriteExt};
/// use net::{TcpListener, TcpStream};
///
/// #[runtime::main(workers = 2)]
/// async fn main() -> std::io::Result<()> {
///     let listener = TcpListener::bind("127.0.0.1:0")?;
///     let address = listener.local_addr()?;
///     let serving = listener.serve(|mut stream: TcpStream| async move {
///         let _ = stream.write_all(b"hello").await;
///         // Until the client closes, or the shutdown ends what is read.
///         while let Ok(1..) = stream.read(&mut [0; 64]).await {}
///     })?;
///
///     let mut client = TcpStream::connect(address).await?;
///     client.read_exact(&mut [0; 5]).await?;
///     assert_eq!(serving.connections(), 1);
///     // Loopback has no NAPI.
///     assert_eq!(serving.alignment().without_napi, 1);
///
///     let report = serving.shutdown(Duration::from_secs(5)).await;
///     assert_eq!((report.finished, report.aborted), (1, 0));
///     Ok(())
/// }
/// ```
#[must_use = "keep it for its counters and its graceful shutdown"]
pub struct Serving {
    state: Arc<ServeState>,
    accepting: Vec<JoinHandle<()>>,
}

/// The result of a graceful shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Handlers that finished by themselves within the deadline.
    pub finished: usize,
    /// Handlers that were dropped at the deadline.
    pub aborted: usize,
}

impl AddAssign for ShutdownReport {
    fn add_assign(&mut self, other: Self) {
        self.finished += other.finished;
        self.aborted += other.aborted;
    }
}

impl Serving {
    pub(super) fn new(state: Arc<ServeState>, accepting: Vec<JoinHandle<()>>) -> Self {
        Self { state, accepting }
    }

    /// Numbers of connections since the serving began.
    pub fn alignment(&self) -> Alignment {
        self.state.counters.read()
    }

    /// The number of open connections.
    pub fn connections(&self) -> usize {
        self.state.connections()
    }

    /// Begins to accept, after `serve_paused`.
    pub fn resume(&self) {
        self.state.resume();
    }

    /// How often a connection could not be accepted.
    pub fn accept_errors(&self) -> AcceptErrors {
        self.state.accept_errors.clone()
    }

    /// Stops accepting, and closes the listeners. Open connections are served on, until they end or
    /// [`Serving::shutdown`] ends them, and so are those that a ring has accepted ahead or that
    /// wait in the backlog. The backlog of a listener from
    /// [`from_std`](crate::TcpListener::from_std) is left to whoever else has the socket; the
    /// kernel resets it if nobody does. Before [`Serving::resume`] nothing is served. What waits in
    /// a backlog while the process has no descriptor left to accept it with (see
    /// [`accept_errors`](Self::accept_errors)) is reset.
    pub async fn stop_accepting(&mut self) {
        self.state.stopped_accepting.store(true, Ordering::SeqCst);
        for task in self.accepting.drain(..) {
            task.abort();
            // It ends cancelled; its listener is closed by then.
            let _ = task.await;
        }
    }

    /// Waits until no connection is open. One task at a time can wait.
    pub async fn drained(&self) {
        std::future::poll_fn(|context| self.state.poll_drained(context)).await;
    }

    /// Stops accepting, then lets handlers finish.
    ///
    /// The reading side of every connection is shut down: a handler that waits for a request reads
    /// the end of the stream, and one that works on a request can still write its response.
    /// Handlers that have not finished after `deadline` are dropped, each on its worker. It returns
    /// when all of them are: a handler whose drop blocks, or whose worker is blocked, delays it.
    pub async fn shutdown(mut self, deadline: Duration) -> ShutdownReport {
        self.state.stopping.store(true, Ordering::SeqCst);
        self.stop_accepting().await;
        let open = self.state.shutdown_reading();
        if runtime::timeout(deadline, self.drained()).await.is_ok() {
            return ShutdownReport { finished: open, aborted: 0 };
        }
        let aborted = self.state.abort();
        self.drained().await;
        ShutdownReport { finished: open.saturating_sub(aborted), aborted }
    }
}

impl std::fmt::Debug for Serving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Serving").field("alignment", &self.alignment()).finish_non_exhaustive()
    }
}
