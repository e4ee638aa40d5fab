//! Spawning tasks with names.

use std::future::Future;
use std::panic::Location;

use super::join::JoinHandle;
use crate::task::spawn::{spawn_local, spawn_remote};
use crate::task_core::identity::Identity;

/// Spawns a task with a name, which [`Stall`](crate::Stall) and [`JoinHandle::name`] give.
///
/// ```
/// # #[runtime::main(driver = "epoll")]
/// # async fn main() {
/// let task = runtime::task::Builder::new().name("greeter").spawn(async { "hello" });
/// assert_eq!(task.name(), Some("greeter"));
/// assert_eq!(task.await.unwrap(), "hello");
/// # }
/// ```
#[derive(Debug, Default)]
#[must_use = "a builder does nothing until it spawns"]
pub struct Builder {
    name: Option<String>,
    spawned: Option<&'static Location<'static>>,
}

impl Builder {
    /// A task without a name.
    pub fn new() -> Self {
        Self::default()
    }

    /// The name that reports of stalls show. Default: none.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Where the task was spawned, as reports say it. Default: where [`Builder::spawn`] is called.
    /// For libraries whose users are to see their own line.
    pub fn location(mut self, location: &'static Location<'static>) -> Self {
        self.spawned = Some(location);
        self
    }

    /// As [`runtime::spawn`](crate::spawn).
    #[track_caller]
    pub fn spawn<F>(self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        spawn_local(self.identity(Location::caller()), future)
    }

    /// As [`runtime::spawn_on`](crate::spawn_on).
    ///
    /// # Panics
    /// Outside of a runtime, or if there is no such worker.
    #[track_caller]
    pub fn spawn_on<F, Fut>(self, worker: usize, make: F) -> JoinHandle<Fut::Output>
    where
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future + 'static,
        Fut::Output: Send + 'static,
    {
        spawn_remote(self.identity(Location::caller()), worker, make)
    }

    fn identity(self, caller: &'static Location<'static>) -> Identity {
        let mut identity = Identity::new(self.spawned.unwrap_or(caller));
        identity.name = self.name.map(Box::new);
        identity
    }
}
