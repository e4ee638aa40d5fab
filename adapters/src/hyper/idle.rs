//! Idle connections: the limit of HTTP/2's, those whose clients only ping included, and the end of
//! all of them in a shutdown.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use runtime::Sleep;

use super::http_socket::SocketUsage;

/// The requests of a connection.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// Up to the last part of their responses.
    in_progress: Cell<usize>,
    begun: Cell<u64>,
}

impl Requests {
    /// Counts a request until the result is dropped.
    pub(super) fn begin(self: &Rc<Self>) -> InProgress {
        self.begun.set(self.begun.get() + 1);
        self.in_progress.set(self.in_progress.get() + 1);
        InProgress(Rc::clone(self))
    }
}

#[derive(Debug)]
pub(super) struct InProgress(Rc<Requests>);

impl InProgress {
    /// The stream has become a WebSocket or a tunnel, of whose end hyper tells nobody: it is in
    /// progress until the connection ends.
    pub(super) fn set_tunnel(&self) {
        self.0.in_progress.set(self.0.in_progress.get() + 1);
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.in_progress.set(self.0.in_progress.get() - 1);
    }
}

/// What is to be done with an idle connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Idle {
    /// Ask it to end after the requests in progress.
    Ask,
    /// The client has not answered that: end it.
    End,
}

/// Checks once in a limit whether something was read of a connection, and whether it had a request.
/// So an idle one is found after the limit to twice of it.
#[derive(Debug)]
pub(super) struct IdleLimit {
    limit: Duration,
    sleep: Sleep,
    socket: Rc<SocketUsage>,
    requests: Rc<Requests>,
    /// The numbers of reads and of requests at the last check.
    seen: (u64, u64),
    /// Whether the connection was asked to end, and the number of reads at that time.
    asked: Option<u64>,
}

impl IdleLimit {
    pub(super) fn new(limit: Duration, socket: Rc<SocketUsage>, requests: Rc<Requests>) -> Self {
        let seen = (socket.reads.get(), requests.begun.get());
        Self { limit, sleep: runtime::sleep(limit), socket, requests, seen, asked: None }
    }

    /// Ready when the connection was idle. A client that was asked to end, has answered since, and
    /// has requests in progress is left alone: it waits for them, however long they take.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Idle> {
        loop {
            ready!(Pin::new(&mut self.sleep).poll(context));
            let (reads, requests) = (self.socket.reads.get(), self.requests.begun.get());
            // What hyper still writes belongs to responses whose last part it has.
            let is_busy = self.requests.in_progress.get() > 0 || self.socket.write_waits.get();
            let asks_for_nothing = !is_busy && requests == self.seen.1;
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

/// Ready when a connection that a shutdown has asked to end waits for its client alone: it has no
/// request in progress, and for one to two intervals nothing of a response was written. Such a client
/// has sent a part of a head, or doesn't answer HTTP/2's PING, which the end of a connection waits
/// for.
#[derive(Debug)]
pub(super) struct Leaving {
    interval: Duration,
    sleep: Sleep,
    socket: Rc<SocketUsage>,
    requests: Rc<Requests>,
    written: u64,
}

impl Leaving {
    pub(super) fn new(interval: Duration, socket: Rc<SocketUsage>, requests: Rc<Requests>) -> Self {
        let written = socket.writes.get();
        Self { interval, sleep: runtime::sleep(interval), socket, requests, written }
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(Pin::new(&mut self.sleep).poll(context));
            let written = self.socket.writes.get();
            let is_busy = self.requests.in_progress.get() > 0 || self.socket.write_waits.get();
            if !is_busy && written == self.written {
                return Poll::Ready(());
            }
            self.written = written;
            self.sleep = runtime::sleep(self.interval);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[runtime::test(driver = "epoll")]
    async fn a_connection_is_idle_after_its_last_request_and_its_last_byte() {
        runtime::time::pause();
        let (socket, requests) = (Rc::new(SocketUsage::default()), Rc::new(Requests::default()));
        let mut limit = IdleLimit::new(LIMIT, Rc::clone(&socket), Rc::clone(&requests));
        let mut after_a_ping = async || {
            socket.reads.set(socket.reads.get() + 1);
            runtime::time::advance(LIMIT).await;
            limit.poll(&mut Context::from_waker(Waker::noop()))
        };
        let (first, second) = (requests.begin(), requests.begin());
        assert_eq!(after_a_ping().await, Poll::Pending);
        drop((first, second));
        socket.write_waits.set(true);
        assert_eq!(after_a_ping().await, Poll::Pending, "bytes wait for the client");
        socket.write_waits.set(false);
        assert_eq!(after_a_ping().await, Poll::Ready(Idle::Ask));
        let tunnel = requests.begin();
        tunnel.set_tunnel();
        drop(tunnel);
        assert_eq!(after_a_ping().await, Poll::Pending, "it may be in use");
        requests.in_progress.set(0);
        assert_eq!(after_a_ping().await, Poll::Ready(Idle::End));
    }
}
