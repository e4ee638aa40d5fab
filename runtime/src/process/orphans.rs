//! Children that nobody waits for any more, which would otherwise be zombies until the program
//! ends.

use std::process::Child;
use std::sync::{Mutex, PoisonError};

use super::watched_process::WatchedProcess;
use crate::task::spawn::spawn;
use crate::worker::current;

/// Those that no worker waits for: their runtime has ended before them.
static LEFT: Mutex<Vec<Child>> = Mutex::new(Vec::new());

/// Waits for a process in a task of this worker, unless it has ended.
pub(super) fn wait_for(mut process: WatchedProcess) {
    if has_ended(process.try_wait()) {
        return;
    }
    let mut orphan = Orphan(Some(process));
    // Not while a thread's locals are dropped, for example. Then the orphan is left for the next
    // spawn, as it is when the worker drops the task.
    if current::try_with(|_| ()).is_some() {
        drop(spawn(async move { orphan.wait().await }));
    }
}

/// Reaps those that have ended since they were left.
pub(super) fn reap_left() {
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    left.retain_mut(|child| !has_ended(child.try_wait()));
}

/// Leaves a child for [`reap_left`], unless it has ended.
pub(super) fn leave(mut child: Child) {
    if !has_ended(child.try_wait()) {
        LEFT.lock().unwrap_or_else(PoisonError::into_inner).push(child);
    }
}

/// An error means that there is nobody to wait for: the kernel, or other code of the program, has
/// reaped the child.
fn has_ended<T>(waited: std::io::Result<Option<T>>) -> bool {
    !matches!(waited, Ok(None))
}

/// A process that is waited for until its task is dropped.
struct Orphan(Option<WatchedProcess>);

impl Orphan {
    async fn wait(&mut self) {
        if let Some(process) = &mut self.0
            && process.wait().await.is_ok()
        {
            self.0 = None;
        }
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        if let Some(process) = self.0.take() {
            leave(process.into_child());
        }
    }
}
