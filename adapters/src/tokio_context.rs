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
//! One thread runs tokio's reactor, its timers, and what is spawned by `tokio::spawn`. Each time one of its sockets or
//! timers is ready, it wakes a worker: two switches of threads where a socket of Lull has none. Its sockets are not
//! aligned with NAPIs, and no policy polls them. So it is for what is rare or slow, such as a request to another
//! service now and then; what carries the load belongs on [`net`].
//!
//! `tokio::task::spawn_blocking` works, on further threads. `block_in_place` and `tokio::task::spawn_local` don't.

use std::io;
use std::thread;

use futures_channel::oneshot;
use runtime::JoinHandle;
use tokio::runtime::{Builder, Handle};

/// Starts a thread with tokio's runtime, and enters its context on all workers, until the result is dropped.
///
/// # Errors
/// If the runtime or the thread can't be started.
///
/// # Panics
/// Outside of a runtime of Lull.
pub async fn start() -> io::Result<TokioContext> {
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
    let mut context = TokioContext { handle, _stop: stop, workers: Vec::new() };
    for worker in 0..runtime::workers() {
        let (enter, entered) = oneshot::channel();
        let handle = context.handle.clone();
        // The context is the thread's: while this task waits, it is there for all others of the worker.
        context.workers.push(runtime::spawn_on(worker, move || async move {
            let _guard = handle.enter();
            let _ = enter.send(());
            std::future::pending::<()>().await;
        }));
        entered.await.map_err(|_| io::Error::other(format!("worker {worker} has stopped")))?;
    }
    Ok(context)
}

/// Tokio's context on all workers, see [`start`]. Dropping it leaves the context and ends tokio's thread.
#[derive(Debug)]
#[must_use = "the context ends when this is dropped"]
pub struct TokioContext {
    handle: Handle,
    _stop: oneshot::Sender<()>,
    workers: Vec<JoinHandle<()>>,
}

impl TokioContext {
    /// The handle of tokio's runtime, for example to spawn on it.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for TokioContext {
    fn drop(&mut self) {
        self.workers.iter().for_each(JoinHandle::abort);
    }
}
