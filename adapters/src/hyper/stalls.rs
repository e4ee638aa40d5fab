//! Finds streams of HTTP/2 whose clients take nothing of their responses.
//!
//! hyper takes a part of a body and keeps it until the client opens the stream's window. Until then
//! it doesn't poll the body, so that no timer in there is seen; and on the socket nothing is
//! written that could take too long. So the time is looked at from here, and the stream's task is
//! aborted, which resets the stream and drops the body with all that it holds.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use runtime::{AbortHandle, Sleep};
use slab::Slab;

use super::activity::{Activity, clock};

/// Who has to act next for a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaited {
    /// The service, or the source of its body.
    Server,
    /// The client has to take a part of the body.
    Client,
    /// The client has to take parts of other streams.
    OtherStreams,
}

#[derive(Debug)]
pub(super) struct Stream {
    awaited: Cell<Awaited>,
    since: Cell<Duration>,
    task: RefCell<Option<AbortHandle>>,
}

impl Stream {
    pub(super) fn set(&self, awaited: Awaited) {
        // A stream that waited for room has used up that time: else a client that takes nothing
        // could hold it twice as long.
        if self.awaited.replace(awaited) != Awaited::OtherStreams {
            self.since.set(clock());
        }
    }

    pub(super) fn set_task(&self, task: AbortHandle) {
        *self.task.borrow_mut() = Some(task);
    }

    /// When the client has had enough time, if it is awaited.
    fn deadline(&self, limit: Duration) -> Option<Duration> {
        (self.awaited.get() != Awaited::Server).then(|| self.since.get() + limit)
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Streams(Rc<RefCell<Slab<Rc<Stream>>>>);

impl Streams {
    pub(super) fn add(&self) -> OpenStream {
        let (awaited, since) = (Cell::new(Awaited::Server), Cell::new(clock()));
        let stream = Rc::new(Stream { awaited, since, task: RefCell::default() });
        let key = self.0.borrow_mut().insert(Rc::clone(&stream));
        OpenStream { streams: self.clone(), stream, key }
    }
}

#[derive(Debug)]
pub(super) struct OpenStream {
    streams: Streams,
    pub(super) stream: Rc<Stream>,
    key: usize,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.streams.0.borrow_mut().try_remove(self.key);
    }
}

/// Looks at the streams of a connection, when the first of them is due.
#[derive(Debug)]
pub(super) struct StallLimit {
    limit: Duration,
    streams: Streams,
    /// None while the connection is idle.
    sleep: Option<Sleep>,
}

impl StallLimit {
    pub(super) fn new(limit: Duration, streams: Streams) -> Self {
        Self { limit, streams, sleep: None }
    }

    /// Resets streams that stall. Ready when the connection has to end: no request is in progress,
    /// and the client takes nothing of what was sent.
    pub(super) fn poll(&mut self, context: &mut Context<'_>, activity: &Activity) -> Poll<()> {
        loop {
            let Some(sleep) = &mut self.sleep else {
                if self.streams.0.borrow().is_empty() && !activity.has_unsent() {
                    return Poll::Pending;
                }
                self.sleep = Some(runtime::sleep(self.limit));
                continue;
            };
            ready!(Pin::new(sleep).poll(context));
            self.sleep = None;
            let now = clock();
            let mut next: Option<Duration> = None;
            let mut stalled = Vec::new();
            for (_, stream) in &*self.streams.0.borrow() {
                match stream.deadline(self.limit) {
                    Some(deadline) if deadline <= now => stalled.push(Rc::clone(stream)),
                    deadline => next = next.into_iter().chain(deadline).min(),
                }
            }
            if self.streams.0.borrow().is_empty() && activity.has_unsent() {
                let deadline = activity.progress() + self.limit;
                if deadline <= now {
                    return Poll::Ready(());
                }
                next = Some(deadline);
            }
            // Their ends take them out of the table.
            for stream in stalled {
                tracing::debug!("a client takes nothing of a response: its stream is reset");
                stream.task.borrow_mut().take().iter().for_each(AbortHandle::abort);
            }
            if let Some(deadline) = next {
                self.sleep = Some(runtime::sleep(deadline.saturating_sub(now)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// Streams whose tasks never end, as hyper's while it waits for a window.
    fn open(streams: &Streams, awaited: Awaited) -> (OpenStream, runtime::JoinHandle<()>) {
        let (open, task) = (streams.add(), runtime::spawn(std::future::pending()));
        open.stream.set_task(task.abort_handle());
        open.stream.set(awaited);
        (open, task)
    }

    #[runtime::test(driver = "epoll")]
    async fn a_stream_has_one_period_whatever_its_client_makes_it_wait_for() {
        runtime::time::pause();
        let (streams, activity) = (Streams::default(), Activity::new());
        let mut stalls = StallLimit::new(LIMIT, streams.clone());
        let mut look = || {
            assert!(stalls.poll(&mut Context::from_waker(Waker::noop()), &activity).is_pending());
        };
        let (holds_room, first) = open(&streams, Awaited::Client);
        let (waits, second) = open(&streams, Awaited::OtherStreams);
        let (_served, third) = open(&streams, Awaited::Server);
        look();
        runtime::time::advance(LIMIT * 9 / 10).await;
        // It takes something, which leaves room for the second one, of which it takes nothing.
        holds_room.stream.set(Awaited::Client);
        waits.stream.set(Awaited::OtherStreams);
        waits.stream.set(Awaited::Client);
        look();
        runtime::time::advance(LIMIT / 10).await;
        look();
        runtime::yield_now().await;
        assert_eq!([&first, &second, &third].map(runtime::JoinHandle::is_finished), [false, true, false]);
        drop(waits);
        runtime::time::advance(LIMIT * 9 / 10).await;
        look();
        runtime::yield_now().await;
        assert!(first.is_finished() && !third.is_finished());
    }
}
