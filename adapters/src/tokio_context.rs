//! A tokio runtime beside Lull's, for crates that insist on one.
//!
//! ```
//! use std::time::Duration;
//!
//! #[runtime::main(workers = 2)]
//! async fn main() -> std::io::Result<()> {
//!     let _tokio = adapters::tokio_context::start().await?;
//!     // On a worker of Lull, by a timer of tokio's thread.
//!     tokio::time::sleep(Duration::from_millis(1)).await;
//!     // On tokio's thread.
//!     assert_eq!(tokio::spawn(async { 20 + 1 }).await.unwrap(), 21);
//!     Ok(())
//! }
//! ```
//!
//! # What it costs
//! One thread runs tokio's reactor, its timers, and what is spawned by `tokio::spawn`. Each time
//! one of its sockets or timers is ready, it wakes a worker: two switches of threads where a socket
//! of Lull has none. Its sockets are not aligned with NAPIs, and no policy polls them. So it is for
//! what is rare or slow, such as a request to another service now and then; what carries the load
//! belongs on [`net`].
//!
//! `tokio::task::spawn_blocking` works, on further threads. `block_in_place` and
//! `tokio::task::spawn_local` don't.

use std::cell::RefCell;
use std::io;
use std::sync::{Arc, PoisonError, Weak};
use std::thread;

use futures_channel::oneshot;
use runtime::JoinHandle;
use tokio::runtime::{Builder, Handle};
use tokio::sync::Mutex;

thread_local! {
    /// The context that this worker is in. A thread leaves tokio's contexts in the reverse order
    /// only, so it enters one at a time.
    static CURRENT: RefCell<Weak<Shared>> = const { RefCell::new(Weak::new()) };
}

/// Of two that start at the same time each would be on some of the workers.
static STARTING: Mutex<()> = Mutex::const_new(());

fn current() -> Option<Arc<Shared>> {
    CURRENT.with_borrow(Weak::upgrade)
}

/// Starts a thread with tokio's runtime, and enters its context on all workers, until the result is
/// dropped. Where there is a context already, the result shares it.
///
/// # Panics
/// Outside of a runtime of Lull.
pub async fn start() -> io::Result<TokioContext> {
    let _starting = STARTING.lock().await;
    if let Some(shared) = current() {
        return Ok(TokioContext(shared));
    }
    let tokio = Builder::new_current_thread().enable_all().build()?;
    let handle = tokio.handle().clone();
    let (stop, stopped) = oneshot::channel::<()>();
    let run = move || {
        // Ends when the context is dropped.
        let _ = tokio.block_on(stopped);
        // Does not wait for closures of `spawn_blocking` that still run.
        tokio.shutdown_background();
    };
    thread::Builder::new().name("tokio".to_owned()).spawn(run)?;
    let shared = Arc::new(Shared { handle, _stop: stop, workers: std::sync::Mutex::default() });
    for worker in 0..runtime::workers() {
        let (enter, entered) = oneshot::channel();
        let (handle, weak) = (shared.handle.clone(), Arc::downgrade(&shared));
        // The context is the thread's: while this task waits, it is there for all others of the
        // worker.
        let entering = runtime::spawn_on(worker, move || async move {
            CURRENT.set(weak);
            let _guard = handle.enter();
            let _ = enter.send(());
            std::future::pending::<()>().await;
        });
        shared.workers.lock().unwrap_or_else(PoisonError::into_inner).push(entering);
        entered.await.map_err(|_| io::Error::other(format!("worker {worker} has stopped")))?;
    }
    Ok(TokioContext(shared))
}

/// Tokio's context on all workers, see [`start`]. Dropping it leaves the context and ends tokio's
/// thread, unless others share it.
#[derive(Debug)]
#[must_use = "the context ends when this is dropped"]
pub struct TokioContext(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    handle: Handle,
    _stop: oneshot::Sender<()>,
    workers: std::sync::Mutex<Vec<JoinHandle<()>>>,
}

impl TokioContext {
    /// The handle of tokio's runtime, for example to spawn on it.
    pub fn handle(&self) -> &Handle {
        &self.0.handle
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let workers = self.workers.get_mut().unwrap_or_else(PoisonError::into_inner);
        workers.iter().for_each(JoinHandle::abort);
    }
}
