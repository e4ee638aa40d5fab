//! SIGINT and SIGTERM as a future, for a graceful stop; SIGHUP as a stream, for reading files again.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use policies::signals::{Registration, intercept, on_hangup};

#[derive(Default)]
struct SignalState {
    received: bool,
    waker: Option<Waker>,
}

impl SignalState {
    fn receive(state: &Mutex<SignalState>) {
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        state.received = true;
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }
}

/// Waits for SIGINT or SIGTERM.
///
/// From this call on, the first of these signals no longer kills the process. The second one does, after the
/// host's settings have been restored.
///
/// # Errors
/// If the signal handler can't be installed.
pub fn terminated() -> io::Result<Terminated> {
    let state = Arc::new(Mutex::new(SignalState::default()));
    let shared = Arc::clone(&state);
    let registration = intercept(move || SignalState::receive(&shared))?;
    Ok(Terminated { state, _registration: registration })
}

/// Waits for each SIGHUP. From this call on the signal no longer kills the process.
///
/// # Errors
/// If the signal handler can't be installed.
pub fn hangups() -> io::Result<Hangups> {
    let state = Arc::new(Mutex::new(SignalState::default()));
    let shared = Arc::clone(&state);
    let registration = on_hangup(move || SignalState::receive(&shared))?;
    Ok(Hangups { state, _registration: registration })
}

/// The signals of [`hangups`].
pub struct Hangups {
    state: Arc<Mutex<SignalState>>,
    _registration: Registration,
}

impl Hangups {
    /// Waits for the next signal. Signals that come before this is called are returned as one.
    pub async fn next(&mut self) {
        std::future::poll_fn(|context| {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if std::mem::take(&mut state.received) {
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
    state: Arc<Mutex<SignalState>>,
    _registration: Registration,
}

impl Future for Terminated {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.received {
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
