//! Notices an accept loop that leaves the other workers without work.

use std::cell::Cell;

/// After this many connections of a listener it is looked whether other workers do anything.
const CONNECTIONS: u32 = 64;

/// Counts the connections that a listener's worker has accepted for itself.
#[derive(Debug, Default)]
pub(crate) struct LoneWorker(Cell<u32>);

impl LoneWorker {
    /// A connection was accepted onto the calling worker. Warns once, if no other worker has ever
    /// polled a task by then.
    pub(crate) fn accepted(&self) {
        let count = self.0.get();
        if count > CONNECTIONS {
            return;
        }
        self.0.set(count + 1);
        let here = runtime::current_worker();
        if count == CONNECTIONS && runtime::workers() > 1 {
            let metrics = runtime::metrics();
            let mut others = metrics.iter().enumerate().filter(|(worker, _)| *worker != here);
            if others.all(|(_, metrics)| metrics.polls == 0) {
                let idle = metrics.len() - 1;
                tracing::warn!(
                    worker = here,
                    idle,
                    "one worker serves all connections, and the others are idle: a task stays on the worker that spawned it; \
                     let TcpListener::serve accept on all workers"
                );
            }
        }
    }
}
