//! Tokio's runtime on a thread beside the workers, for code that insists on it.
//!
//! The servers of this crate and `SendIo` call [`enter`]: below a handler `tokio::time`,
//! `tokio::spawn` and what is made of them work. A program that has none of these calls it once:
//!
//! ```
//! use std::time::Duration;
//!
//! #[runtime::main(workers = 2)]
//! async fn main() -> std::io::Result<()> {
//!     adapters::tokio_context::enter()?;
//!     // On a worker of Lull, by a timer of tokio's thread.
//!     tokio::time::sleep(Duration::from_millis(1)).await;
//!     // On tokio's thread.
//!     assert_eq!(tokio::spawn(async { 20 + 1 }).await.unwrap(), 21);
//!     Ok(())
//! }
//! ```
//!
//! # What it costs
//! The thread sleeps until a timer or socket of tokio's is due, or a task is spawned there; a
//! process has one. Each time one is ready it wakes a worker: two switches of threads where Lull's
//! own has none. Its sockets are not aligned with NAPIs, and no policy polls them. So it is for what
//! is rare or slow; what carries the load belongs on [`net`] and on Lull's timers. The book's page
//! *Which crates work* says what a timer costs each way.
//!
//! `tokio::task::spawn_blocking` works, on further threads. `block_in_place` and
//! `tokio::task::spawn_local` don't.
//!
//! # Without it
//! With `default-features = false` there is no such thread, and what needs tokio's runtime panics
//! with *there is no reactor running*. The `clippy.toml` on that page makes Clippy warn about such calls.

use std::cell::Cell;
use std::future::pending;
use std::io;
use std::num::NonZeroU64;
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};
use std::thread;

use runtime::__net::with_settings_from_before;
use rustix::thread::{current_timer_slack, sched_getaffinity, sched_setaffinity, set_current_timer_slack};
use tokio::runtime::{Builder, EnterGuard, Handle};

thread_local! {
    /// Whether a task of this worker's holds an [`Entered`].
    static HAS_ENTERED: Cell<bool> = const { Cell::new(false) };
}

/// Enters tokio's context on all workers of the calling task's runtime, until the runtime ends. The
/// first call of the process starts tokio's thread. On a worker whose thread is in a context of
/// tokio's already, that one stays; once it is left, the next call enters this one.
///
/// # Errors
/// If the thread can't be started.
///
/// # Panics
/// Outside of a runtime of Lull.
#[track_caller]
pub fn enter() -> io::Result<()> {
    if has_entered() {
        return Ok(());
    }
    let tokio = tokio()?;
    let here = runtime::current_worker();
    enter_here(tokio);
    for worker in (0..runtime::workers()).filter(|&worker| worker != here) {
        drop(runtime::spawn_on(worker, move || async move { enter_here(tokio) }));
    }
    Ok(())
}

/// The context is the thread's. It is left when the worker drops its tasks.
struct Entered {
    _guard: Option<EnterGuard<'static>>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        HAS_ENTERED.set(false);
    }
}

/// Whether this worker is in a context since [`enter`], and still.
fn has_entered() -> bool {
    HAS_ENTERED.get() && Handle::try_current().is_ok()
}

fn enter_here(tokio: &'static Handle) {
    if has_entered() {
        return;
    }
    HAS_ENTERED.set(true);
    // Contexts are left in the reverse order only: who has entered another one before may leave it
    // before the runtime ends.
    let is_in_context = Handle::try_current().is_ok();
    let entered = Entered { _guard: (!is_in_context).then(|| tokio.enter()) };
    drop(runtime::spawn(async move {
        let _entered = entered;
        pending::<()>().await;
    }));
}

/// The process's only one.
fn tokio() -> io::Result<&'static Handle> {
    static TOKIO: OnceLock<Handle> = OnceLock::new();
    static STARTING: Mutex<()> = Mutex::new(());
    let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handle) = TOKIO.get() {
        return Ok(handle);
    }
    let handle = start()?;
    Ok(TOKIO.get_or_init(|| handle))
}

fn start() -> io::Result<Handle> {
    let (send, started) = mpsc::channel();
    let run = move || {
        let (cores, slack) = (sched_getaffinity(None).ok(), current_timer_slack().ok());
        // Tokio starts a thread for blocking work from the one that asks for it: a worker, whose
        // core and timer slack it would inherit.
        let leave_core = move || {
            if let Some(cores) = &cores {
                let _ = sched_setaffinity(None, cores);
            }
            let _ = set_current_timer_slack(slack.and_then(NonZeroU64::new));
        };
        match Builder::new_current_thread().enable_all().on_thread_start(leave_core).build() {
            Ok(tokio) => {
                let _ = send.send(Ok(tokio.handle().clone()));
                tokio.block_on(pending::<()>());
            }
            Err(error) => drop(send.send(Err(error))),
        }
    };
    with_settings_from_before(|| thread::Builder::new().name("tokio".to_owned()).spawn(run))?;
    started.recv().map_err(io::Error::other)?
}
