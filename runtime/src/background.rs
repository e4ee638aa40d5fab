//! A runtime whose workers all have a thread of their own.

use std::ops::Deref;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::config::BuildError;
use crate::config::Config;
use crate::config::Hooks;
use crate::handle::Handle;
use crate::host_policy::HostHooks;
use crate::runtime::{Runtime, ends_by};
use crate::thread_settings::with_settings_from_before;

/// How long putting the host's settings back may take.
const RESTORING: Duration = Duration::from_secs(1);

/// A running runtime whose workers all have a thread, for programs that have no `block_on` at their
/// heart: made by [`Builder::build_background`](crate::Builder::build_background). It is used by
/// its [`Handle`], to which it dereferences.
///
/// ```
/// use runtime::Builder;
///
/// let runtime = Builder::new().workers(2).build_background()?;
/// let answer = runtime.spawn_on(0, || async { runtime::current_worker() });
/// assert_eq!(runtime.block_on(answer).unwrap(), 0);
/// # Ok::<(), runtime::BuildError>(())
/// ```
///
/// It is `Send` and `Sync`, and can be a `static`. Dropping it does what dropping a [`Runtime`]
/// does; it must not be dropped on one of its own workers, for whose end it would wait.
pub struct BackgroundRuntime {
    handle: Handle,
    /// Taken by the drop.
    owner: Option<thread::JoinHandle<()>>,
    deadline: Arc<OnceLock<Instant>>,
}

impl BackgroundRuntime {
    pub(crate) fn new(config: Config, hooks: Hooks, host_hooks: HostHooks) -> Result<Self, BuildError> {
        let failed = |source| BuildError::Worker { worker: 0, source };
        let deadline = Arc::new(OnceLock::new());
        let (started, start) = mpsc::channel();
        let owned = Arc::clone(&deadline);
        let thread = config.options.threads.builder(0);
        let own = move || match Runtime::new(config, hooks, host_hooks) {
            Ok(runtime) => runtime.run_in_background(&owned, |handle| _ = started.send(handle)),
            Err(error) => _ = started.send(Err(error)),
        };
        let owner = with_settings_from_before(|| thread.spawn(own));
        let owner = Some(owner.map_err(failed)?);
        match start.recv() {
            Ok(handle) => Ok(Self { handle: handle?, owner, deadline }),
            Err(_) => Err(failed(std::io::Error::other("the thread panicked at its start"))),
        }
    }

    /// As [`Runtime::shutdown_timeout`].
    pub fn shutdown_timeout(self, limit: Duration) {
        if let Some(deadline) = Instant::now().checked_add(limit) {
            let _ = self.deadline.set(deadline);
        }
    }
}

impl Deref for BackgroundRuntime {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for BackgroundRuntime {
    fn drop(&mut self) {
        self.handle.stop();
        let Some(owner) = self.owner.take() else { return };
        // The thread has to put the host's settings back, after it has waited for the others until
        // the deadline.
        let by = |deadline: &Instant| ends_by(&owner, *deadline + RESTORING);
        if self.deadline.get().is_none_or(by) {
            // The panic hook has reported a panic.
            let _ = owner.join();
        }
    }
}

opaque_debug!(BackgroundRuntime, "BackgroundRuntime", |it| "workers" = it.workers());
