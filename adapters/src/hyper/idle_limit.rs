//! Finds connections of HTTP/2 on which nothing comes, or nothing but frames that ask for nothing.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use runtime::Sleep;

use super::activity::Activity;
use super::http_socket::SocketUsage;

/// Looks once in a limit whether something was read of a connection, and whether it had a request.
/// So an idle one is found after the limit to twice of it.
#[derive(Debug)]
pub(super) struct IdleLimit {
    limit: Duration,
    sleep: Sleep,
    socket: Rc<SocketUsage>,
    activity: Arc<Activity>,
    /// The numbers of reads and of requests at the last look.
    seen: (u64, u64),
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
    pub(super) fn new(limit: Duration, socket: Rc<SocketUsage>, activity: Arc<Activity>) -> Self {
        let seen = (socket.reads.get(), activity.begun());
        Self { limit, sleep: runtime::sleep(limit), socket, activity, seen, asked: None }
    }

    /// Ready when the connection was idle. A client that was asked to end, has answered since, and
    /// has requests in progress is left alone: it waits for them, however long they take.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Idle> {
        loop {
            ready!(Pin::new(&mut self.sleep).poll(context));
            let (reads, requests) = (self.socket.reads.get(), self.activity.begun());
            let asks_for_nothing = !self.activity.is_busy() && requests == self.seen.1;
            let is_idle = reads == self.seen.0 || asks_for_nothing;
            self.seen = (reads, requests);
            self.sleep = runtime::sleep(self.limit);
            match self.asked {
                None if is_idle => {
                    self.asked = Some(reads);
                    return Poll::Ready(Idle::Ask);
                }
                Some(asked) if asked == reads || asks_for_nothing => return Poll::Ready(Idle::End),
                _ => {}
            }
        }
    }
}
