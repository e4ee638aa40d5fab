//! A limit on how long a future is awaited.

use std::future::Future;
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use super::sleep::{Sleep, sleep, sleep_until};
use crate::coop;

/// Awaits a future for at most `duration`; then it is dropped.
///
/// # Errors
/// [`Elapsed`] if the future was not ready in time.
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Result<F::Output, Elapsed> {
    limited(sleep(duration), future).await
}

/// Awaits a future until `deadline`; then it is dropped.
///
/// # Errors
/// [`Elapsed`] if the future was not ready by then.
pub async fn timeout_at<F: Future>(deadline: Instant, future: F) -> Result<F::Output, Elapsed> {
    limited(sleep_until(deadline), future).await
}

async fn limited<F: Future>(sleep: Sleep, future: F) -> Result<F::Output, Elapsed> {
    let mut future = std::pin::pin!(future);
    let mut sleep = std::pin::pin!(sleep);
    std::future::poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        // Also when the future has used up the poll's budget: it may do so in each poll.
        ready!(coop::without_budget(|| sleep.as_mut().poll(context)));
        Poll::Ready(Err(Elapsed))
    })
    .await
}

/// A [`timeout`] has expired. Converts to an [`io::Error`](std::io::Error) of the kind `TimedOut`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the timeout has expired")]
pub struct Elapsed;

impl From<Elapsed> for std::io::Error {
    fn from(elapsed: Elapsed) -> Self {
        std::io::Error::new(std::io::ErrorKind::TimedOut, elapsed)
    }
}
