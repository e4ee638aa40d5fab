//! A connection's task on its worker: it receives for the connection's thread.

use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_io::AsyncBufRead;

use super::batch::BatchUser;
use super::dispatcher_metrics::add;
use super::slot::{Delivery, Slot, SlotUse};
use super::state::DispatcherState;
use crate::stream::Stream;

/// Puts what a connection receives into its slot, until the thread ends. Dropped before, it closes the connection, and the
/// thread's reads and writes fail.
#[derive(Debug)]
pub(super) struct Pump<K> {
    /// `None` once the thread has dropped its side.
    stream: Option<Stream<K>>,
    slot: Arc<Slot>,
    batch: BatchUser,
    dispatcher: Arc<DispatcherState>,
    worker: usize,
    state: Reading,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    Open,
    /// The slot is full.
    Full,
    /// The stream has ended, and the slot says how.
    Ended,
}

impl<K> Pump<K> {
    pub(super) fn new(
        stream: Stream<K>,
        slot: Arc<Slot>,
        dispatcher: Arc<DispatcherState>,
        worker: usize,
    ) -> Self {
        let batch = BatchUser::join(dispatcher.wake_batch());
        Self { stream: Some(stream), slot, batch, dispatcher, worker, state: Reading::Open }
    }

    /// Ready when the thread has ended.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self.slot.poll_use(context) {
            SlotUse::Ended => {
                self.stream = None;
                return Poll::Ready(());
            }
            SlotUse::Dropped => self.stream = None,
            SlotUse::Reads => {}
        }
        let Some(stream) = &mut self.stream else { return Poll::Pending };
        if self.state == Reading::Full && self.slot.has_room(context) {
            self.state = Reading::Open;
        }
        while self.state == Reading::Open {
            let counters = self.dispatcher.counters.of(self.worker);
            let wake = match ready!(Pin::new(&mut *stream).poll_fill_buf(context)) {
                Ok([]) => {
                    self.state = Reading::Ended;
                    self.slot.end(None)
                }
                Err(error) => {
                    self.state = Reading::Ended;
                    self.slot.end(Some(error))
                }
                Ok(bytes) => {
                    let Delivery { taken, wake, full } = self.slot.deliver(bytes, context);
                    Pin::new(&mut *stream).consume(taken);
                    add(&counters.received_bytes, taken);
                    add(&counters.found_running, usize::from(wake.is_none()));
                    if full {
                        add(&counters.full, 1);
                        self.state = Reading::Full;
                    }
                    wake
                }
            };
            if let Some(thread) = wake {
                add(&counters.wakes, 1);
                self.batch.wake(thread);
            }
        }
        Poll::Pending
    }
}

impl<K> Drop for Pump<K> {
    fn drop(&mut self) {
        let Some(stream) = &self.stream else { return };
        // The thread may wait for room to write, in poll(2). Fails if the connection is broken already.
        let _ = stream.socket().shutdown(Shutdown::Both);
        let why = "the task that receives for this connection was aborted, or the runtime has ended";
        if let Some(thread) = self.slot.end(Some(io::Error::new(io::ErrorKind::ConnectionAborted, why))) {
            thread.unpark();
        }
    }
}
