//! SIGINT and SIGTERM as a future, for a graceful stop; SIGHUP, for reading files again.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use policies::signals::{Registration, intercept, on_hangup};

#[derive(Default)]
struct State {
    came: bool,
    waker: Option<Waker>,
}

impl State {
    fn come(state: &Mutex<State>) {
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        state.came = true;
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }
}

/// Waits for SIGINT or SIGTERM.
///
/// From the call on, the first of them no longer kills the process; the second one does, after the
/// host's settings have been put back.
pub fn terminated() -> io::Result<Terminated> {
    let state = Arc::new(Mutex::new(State::default()));
    let shared = Arc::clone(&state);
    let registration = intercept(move || State::come(&shared))?;
    Ok(Terminated { state, _registration: registration })
}

/// Waits for SIGHUP, as often as it comes. From the call on it no longer kills the process.
pub fn hangups() -> io::Result<Hangups> {
    let state = Arc::new(Mutex::new(State::default()));
    let shared = Arc::clone(&state);
    let registration = on_hangup(move || State::come(&shared))?;
    Ok(Hangups { state, _registration: registration })
}

/// The signals of [`hangups`].
pub struct Hangups {
    state: Arc<Mutex<State>>,
    _registration: Registration,
}

impl Hangups {
    /// The next one; those that come close together are one.
    pub async fn next(&mut self) {
        std::future::poll_fn(|context| {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if std::mem::take(&mut state.came) {
                return Poll::Ready(());
            }
            state.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl std::fmt::Debug for Hangups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hangups").finish_non_exhaustive()
    }
}

/// The future of [`terminated`].
#[must_use = "futures do nothing unless awaited"]
pub struct Terminated {
    state: Arc<Mutex<State>>,
    _registration: Registration,
}

impl Future for Terminated {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.came {
            return Poll::Ready(());
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl std::fmt::Debug for Terminated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Terminated").finish_non_exhaustive()
    }
}
