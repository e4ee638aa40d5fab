//! A call that blocks, on a thread of the pool.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::handle::spawn_blocking;

/// Runs a call on a thread of the pool. It is run also if the future is dropped before a thread has
/// begun it, because dropping the handle of a task detaches the task.
///
/// # Errors
/// Those of the call. `Other` if the runtime ends before the call has begun, or no thread can be
/// had.
pub(crate) async fn pool_call<T, F>(call: F) -> io::Result<T>
where
    F: FnOnce() -> io::Result<T> + Send + 'static,
    T: Send + 'static,
{
    let call = move || catch_unwind(AssertUnwindSafe(call));
    match spawn_blocking(call).await {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => resume_unwind(panic),
        // The call never ran: the runtime has ended, or no thread could be started.
        Err(error) => Err(io::Error::other(error.to_string())),
    }
}
