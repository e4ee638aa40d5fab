//! Finds connections on which nothing comes.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use runtime::Sleep;

use super::http_socket::Reads;

/// Looks at a connection's reads once in a limit. So an idle one is found after the limit to twice of it.
#[derive(Debug)]
pub(super) struct IdleLimit {
    limit: Duration,
    sleep: Sleep,
    reads: Reads,
    /// The number of reads at the last look.
    seen: u64,
    /// Whether the connection was asked to end, and the number of reads at that time.
    asked: Option<u64>,
}

/// What is to be done with an idle connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Idle {
    /// Ask it to end after the requests in progress.
    Ask,
    /// The client has not answered that: end it.
    End,
}

impl IdleLimit {
    pub(super) fn new(limit: Duration, reads: Reads) -> Self {
        let seen = reads.get();
        Self { limit, sleep: runtime::sleep(limit), reads, seen, asked: None }
    }

    /// Ready when the connection was idle. A client that was asked to end, and has answered since, is left alone: it waits for
    /// its requests in progress, however long they take.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Idle> {
        loop {
            ready!(Pin::new(&mut self.sleep).poll(context));
            let reads = self.reads.get();
            let is_idle = reads == self.seen;
            self.seen = reads;
            self.sleep = runtime::sleep(self.limit);
            match self.asked {
                None if is_idle => {
                    self.asked = Some(reads);
                    return Poll::Ready(Idle::Ask);
                }
                Some(asked) if asked == reads => return Poll::Ready(Idle::End),
                _ => {}
            }
        }
    }
}
