//! Signals: [`ctrl_c`] and [`terminated`] for a graceful stop, and each signal as a stream
//! ([`signal`]).
//!
//! Handlers run on a thread of the process, which wakes the waiting tasks: any worker, on any
//! driver, may wait, and several tasks may wait for one signal.
//!
//! # What becomes of a signal's default action
//!
//! - **SIGINT and SIGTERM** terminate the process whenever nothing in it waits for them, also after
//!   something did. The host's settings that a policy has changed are restored first. A [`Signal`]
//!   waits as long as it exists, [`ctrl_c`] from its first poll until it is ready or dropped, and
//!   [`terminated`] for the first signal only.
//! - **Other signals** lose their default action with the first [`signal`] of their kind, and keep
//!   it lost until the process ends. Programs that the process starts have the default actions
//!   again (`execve(2)`).
//! - SIGKILL and SIGSTOP can't be waited for, nor can SIGILL, SIGFPE and SIGSEGV.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use policies::signals::{Registration, intercept, on_signal};

#[derive(Default)]
struct SignalState {
    received: bool,
    waker: Option<Waker>,
}

/// Listens while it exists.
struct Listener {
    state: Arc<Mutex<SignalState>>,
    _registration: Registration,
}

impl Listener {
    /// `register`: registers a function that the signal calls.
    fn new(register: impl FnOnce(Box<dyn Fn() + Send>) -> io::Result<Registration>) -> io::Result<Self> {
        let state = Arc::new(Mutex::new(SignalState::default()));
        let shared = Arc::clone(&state);
        let receive = move || {
            let mut state = shared.lock().unwrap_or_else(PoisonError::into_inner);
            state.received = true;
            state.waker.take().into_iter().for_each(Waker::wake);
        };
        Ok(Self { state, _registration: register(Box::new(receive))? })
    }

    /// Ready if a signal has come. `takes`: the next poll waits for another one.
    fn poll(&self, context: &Context<'_>, takes: bool) -> Poll<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.received {
            state.received = !takes;
            return Poll::Ready(());
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

/// The number of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SignalKind(i32);

/// The signals that have a name.
macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:ident;)*) => {
        impl SignalKind {
            $($(#[$doc])*
            pub const fn $name() -> Self {
                Self(libc::$number)
            })*
        }
    };
}

kinds! {
    /// SIGALRM: a timer of `setitimer(2)` has expired.
    alarm = SIGALRM;
    /// SIGCHLD: a child process has ended or was stopped.
    child = SIGCHLD;
    /// SIGHUP: the terminal was closed, or by convention: read the configuration again.
    hangup = SIGHUP;
    /// SIGINT: Ctrl-C in the terminal.
    interrupt = SIGINT;
    /// SIGPIPE: a write to a pipe or socket that nobody reads. Lull's sockets never cause it.
    pipe = SIGPIPE;
    /// SIGQUIT: Ctrl-\ in the terminal.
    quit = SIGQUIT;
    /// SIGTERM: a request to terminate, by `kill(1)` or a service manager.
    terminate = SIGTERM;
    /// SIGUSR1, whose meaning the program defines.
    user_defined1 = SIGUSR1;
    /// SIGUSR2, whose meaning the program defines.
    user_defined2 = SIGUSR2;
    /// SIGWINCH: the terminal has another size.
    window_change = SIGWINCH;
}

impl SignalKind {
    /// The signal of a number (`signal(7)`), such as a real-time signal's.
    pub const fn from_raw(number: i32) -> Self {
        Self(number)
    }

    /// The signal's number, as in `signal(7)`.
    pub const fn as_raw_value(self) -> i32 {
        self.0
    }
}

/// Listens to a signal. What that changes for its default action, the [module](self) says.
///
/// ```
/// use runtime::signal::{SignalKind, signal};
///
/// # #[runtime::main(driver = "epoll")]
/// # async fn main() -> std::io::Result<()> {
/// let mut reopen_logs = signal(SignalKind::user_defined1())?;
/// drop(runtime::spawn(async move {
///     loop {
///         reopen_logs.recv().await;
///         println!("SIGUSR1");
///     }
/// }));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `InvalidInput` for SIGKILL, SIGSTOP, SIGILL, SIGFPE and SIGSEGV, and for a number outside of 1
/// to 64. Else if the signal handler can't be installed.
pub fn signal(kind: SignalKind) -> io::Result<Signal> {
    Ok(Signal { kind, listener: Listener::new(|receive| on_signal(kind.0, receive))? })
}

/// The signals of one kind, from [`signal`] on.
pub struct Signal {
    kind: SignalKind,
    listener: Listener,
}

impl Signal {
    /// Waits for the next signal. Signals that come before this is called are returned as one.
    pub async fn recv(&mut self) {
        std::future::poll_fn(|context| self.poll_recv(context)).await;
    }

    /// [`Signal::recv`] for use in a `poll` function, such as `futures_util::stream::poll_fn`.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.listener.poll(context, true)
    }
}

opaque_debug!(Signal, "Signal", |it| "kind" = it.kind);

/// Waits for SIGINT, which Ctrl-C in the terminal sends. It listens from the first poll until it is
/// ready or dropped; outside of that, the signal terminates the process. So a second Ctrl-C ends a
/// graceful stop that hangs. In a loop that goes on after the signal, use a [`signal`] of
/// [`SignalKind::interrupt`], which listens all the time.
///
/// ```no_run
/// # #[runtime::main(driver = "epoll")]
/// # async fn main() -> std::io::Result<()> {
/// runtime::signal::ctrl_c().await?;
/// println!("stopping; press Ctrl-C again to stop at once");
/// # Ok(())
/// # }
/// ```
pub async fn ctrl_c() -> io::Result<()> {
    signal(SignalKind::interrupt())?.recv().await;
    Ok(())
}

/// Waits for SIGINT or SIGTERM: `terminated().await?`.
///
/// From this call on, the first of these signals no longer kills the process. The second one does,
/// after the host's settings have been restored, unless a [`Signal`] of its kind exists.
///
/// # Errors
/// As [`signal`], when it is awaited.
pub fn terminated() -> Terminated {
    Terminated(Listener::new(intercept).map_err(Some))
}

/// The future of [`terminated`].
#[must_use = "futures do nothing unless awaited"]
pub struct Terminated(Result<Listener, Option<io::Error>>);

impl Future for Terminated {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Ok(listener) => listener.poll(context, false).map(Ok),
            Err(error) => match error.take() {
                Some(error) => Poll::Ready(Err(error)),
                None => Poll::Pending,
            },
        }
    }
}

opaque_debug!(Terminated, "Terminated");
