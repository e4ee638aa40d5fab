//! Runs a connection over a byte stream, and reconnects it.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Instant;

use futures_util::{AsyncBufRead, AsyncWrite};

use crate::connection::Connection;
use crate::error::Error;
use crate::protocol::ResponseDecoder;
use crate::stats::Metric;
use crate::transport::BoxedTransport;
use crate::workload::verify::ExpectedValue;

enum SessionEnd {
    Done,
    Reconnect,
}

/// Reads from a connection per poll, before other tasks get their turn.
const READS_PER_POLL: u32 = 4;

impl Connection {
    /// Runs the connection until the worker stops and, in the open loop, all requests have
    /// responses.
    pub(crate) async fn run(&self, mut stream: BoxedTransport) -> Result<(), Error> {
        loop {
            match self.session(stream).await? {
                SessionEnd::Done => return Ok(()),
                SessionEnd::Reconnect => {
                    let begun = Instant::now();
                    stream = self.worker.connector.connect(&self.server).await?;
                    let took = begun.elapsed();
                    self.worker.recorder.borrow_mut().record(begun, Metric::Connect, took);
                    self.reconnecting.set(false);
                }
            }
        }
    }

    async fn session(&self, mut stream: BoxedTransport) -> Result<SessionEnd, Error> {
        let mut decoder = ResponseDecoder::new(self.worker.config.protocol);
        let mut expected = ExpectedValue::default();
        let mut think_timer = pin!(None::<runtime::Sleep>);
        self.issue(Instant::now());
        poll_fn(|context| {
            loop {
                let polled = self.poll_stream(context, &mut stream, &mut decoder, &mut expected);
                if let Poll::Ready(ended) = polled {
                    return Poll::Ready(ended);
                }
                let Some(until) = self.think_deadline() else { break };
                if think_timer.as_ref().as_pin_ref().is_none_or(|sleep| sleep.deadline() != until) {
                    think_timer.set(Some(runtime::sleep_until(until)));
                }
                let Some(sleep) = think_timer.as_mut().as_pin_mut() else { break };
                if sleep.poll(context).is_pending() {
                    break;
                }
                think_timer.set(None);
                self.issue(Instant::now());
            }
            Poll::Pending
        })
        .await
    }

    fn poll_stream(
        &self,
        context: &mut Context<'_>,
        stream: &mut BoxedTransport,
        decoder: &mut ResponseDecoder,
        expected: &mut ExpectedValue,
    ) -> Poll<Result<SessionEnd, Error>> {
        for reads in 0.. {
            if reads == READS_PER_POLL {
                // There may be more to read, but the schedule and other connections have to run,
                // too.
                context.waker().wake_by_ref();
                break;
            }
            let readable = Pin::new(&mut *stream).poll_fill_buf(context);
            let Poll::Ready(chunk) = readable.map_err(Error::Connection)? else { break };
            if chunk.is_empty() {
                return Poll::Ready(Err(Error::Connection(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the server closed the connection",
                ))));
            }
            let length = chunk.len();
            let now = Instant::now();
            self.handle_responses(chunk, decoder, expected, now)?;
            Pin::new(&mut *stream).consume(length);
            self.issue(now);
            // Send the next requests before reading further responses.
            self.poll_send(context, stream)?;
        }
        self.poll_send(context, stream)?;
        if self.in_flight.borrow().is_empty() {
            if self.worker.stopping.get() && !self.has_waiting() {
                return Poll::Ready(Ok(SessionEnd::Done));
            }
            // A server may respond before it has received all of a request: finish sending first.
            if self.reconnecting.get() && self.out.borrow().is_empty() && !self.unflushed.get() {
                return Poll::Ready(Ok(SessionEnd::Reconnect));
            }
        }
        self.register_waker(context);
        Poll::Pending
    }

    fn poll_send(&self, context: &mut Context<'_>, stream: &mut BoxedTransport) -> Result<(), Error> {
        let mut out = self.out.borrow_mut();
        if out.is_empty() && !self.unflushed.get() {
            return Ok(());
        }
        // Directly before the system call, so that service time includes only the kernel and the
        // server.
        let now = Instant::now();
        let unsent = self.unsent.replace(0);
        for request in self.in_flight.borrow_mut().iter_mut().rev().take(unsent) {
            self.mark_sent(request, now);
        }
        let mut sent = 0;
        while sent < out.len() {
            match Pin::new(&mut *stream).poll_write(context, &out[sent..]) {
                Poll::Ready(result) => sent += result.map_err(Error::Connection)?,
                Poll::Pending => break,
            }
        }
        out.drain(..sent);
        if sent > 0 || self.unflushed.get() {
            // TLS buffers what the socket doesn't accept.
            let flushed = Pin::new(&mut *stream).poll_flush(context).map_err(Error::Connection)?;
            self.unflushed.set(flushed.is_pending());
        }
        if sent > 0 {
            self.worker.recorder.borrow_mut().counts(now).sent += sent as u64;
        }
        Ok(())
    }
}
