//! A call that blocks, on a thread of the pool.

use std::io;
use std::panic::resume_unwind;

use crate::handle::spawn_blocking;

/// Runs a call on a thread of the pool. It is run also if the future is dropped before a thread has begun it, because
/// dropping the handle of a task detaches the task.
///
/// # Errors
/// Those of the call. `Other` if the runtime ends before the call has.
pub(super) async fn pool_call<T, F>(call: F) -> io::Result<T>
where
    F: FnOnce() -> io::Result<T> + Send + 'static,
    T: Send + 'static,
{
    match spawn_blocking(call).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_cancelled) => Err(io::Error::other("the runtime has ended")),
        },
    }
}
