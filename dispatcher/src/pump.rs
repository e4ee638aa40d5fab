//! A connection's task on its worker: it receives for the connection's thread.

use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_io::AsyncBufRead;

use crate::batch::BatchUser;
use crate::metrics::add;
use crate::slot::{Delivery, Slot, SlotUse};
use crate::state::DispatcherState;
use net::Stream;

/// Puts what a connection receives into its slot, until the thread ends. Dropped before, it closes the connection, and the
/// thread's reads and writes fail.
#[derive(Debug)]
pub(crate) struct Pump<K> {
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
    Full,
    /// The stream has ended, and the slot says how.
    Ended,
}

impl<K> Pump<K> {
    pub(crate) fn new(
        stream: Stream<K>,
        slot: Arc<Slot>,
        dispatcher: Arc<DispatcherState>,
        worker: usize,
    ) -> Self {
        let batch = BatchUser::join(dispatcher.wake_batch());
        Self { stream: Some(stream), slot, batch, dispatcher, worker, state: Reading::Open }
    }

    /// Ready when the thread has ended.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
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
        // The thread may drain the slot during this loop, so a full slot does not bound it. Without a limit one connection could
        // occupy the worker.
        let mut left = self.dispatcher.settings.buffer_size;
        while self.state == Reading::Open {
            if left == 0 {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
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
                    let bytes = &bytes[..bytes.len().min(left)];
                    let Delivery { taken, wake, full } = self.slot.deliver(bytes, context);
                    left -= taken;
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
        let _ = stream.shared_socket().shutdown(Shutdown::Both);
        let why = "the task that receives for this connection was aborted, or the runtime has ended";
        if let Some(thread) = self.slot.end(Some(io::Error::new(io::ErrorKind::ConnectionAborted, why))) {
            thread.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, ErrorKind, Write};
    use std::net::TcpListener;
    use std::time::Duration;

    use crate::{BlockingStream, Builder, Placement};
    use net::TcpStream;

    #[runtime::test]
    async fn a_poll_hands_out_one_buffer_although_the_thread_drains_it_meanwhile() {
        // More than one read of the stream.
        const CAPACITY: usize = 64 << 10;
        const LENGTH: usize = 64 << 20;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let writing = std::thread::spawn(move || peer.write_all(&vec![1; LENGTH]).unwrap());
        let dispatcher = Builder::new().buffer_size(CAPACITY).placement(Placement::AnyCore).build();
        let running = dispatcher.run(stream, |mut stream: BlockingStream| {
            let mut sum = 0;
            // It never sleeps for long, and so drains the slot while the worker fills it.
            stream.set_read_timeout(Some(Duration::from_nanos(1))).unwrap();
            loop {
                let length = match stream.fill_buf() {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                    bytes => bytes.unwrap().len(),
                };
                stream.consume(length);
                sum += length;
                if length == 0 {
                    return sum;
                }
            }
        });
        let mut running = Box::pin(running);
        let sum = std::future::poll_fn(|context| {
            let before = dispatcher.metrics().received_bytes;
            let polled = running.as_mut().poll(context);
            let handed_out = dispatcher.metrics().received_bytes - before;
            assert!(handed_out <= CAPACITY as u64, "{handed_out}");
            polled
        });
        assert_eq!(sum.await.unwrap(), LENGTH);
        writing.join().unwrap();
    }
}
