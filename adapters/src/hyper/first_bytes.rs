//! Finds out whether a client has said yet which HTTP it speaks.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::inspected_stream::{Inspect, InspectedStream};
use super::turn::Turn;

/// What an HTTP/2 client sends first (RFC 9113, section 3.4). hyper-util tells the versions apart
/// by it, and has no time limit until it has.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spoken {
    /// Its first bytes may be of either.
    Unknown,
    Http1,
    Http2,
}

/// What the client of a connection speaks, as it is found out.
pub(super) type SpokenCell = Rc<Cell<Spoken>>;

/// Compares the first bytes of a stream with the preface of HTTP/2, and lends the bytes of HTTP/2
/// in turns.
#[derive(Debug)]
pub(super) struct FirstBytes {
    spoken: SpokenCell,
    /// The client has agreed to HTTP/2 already.
    h2_agreed: bool,
    http1_only: bool,
    turn: Turn,
}

impl FirstBytes {
    /// Has the reads of a stream compared. `h2_agreed`: anything but the preface is an error; hyper
    /// would answer it by HTTP/1. `http1_only`: the preface is one.
    pub(super) fn of<S>(
        stream: S,
        h2_agreed: bool,
        http1_only: bool,
    ) -> (InspectedStream<S, Self>, SpokenCell) {
        let spoken = Rc::new(Cell::new(Spoken::Unknown));
        let inspect = Self { spoken: Rc::clone(&spoken), h2_agreed, http1_only, turn: Turn::new() };
        (InspectedStream::new(stream, inspect), spoken)
    }
}

impl Inspect for FirstBytes {
    fn inspect(&mut self, position: usize, bytes: &[u8]) -> io::Result<()> {
        if self.spoken.get() != Spoken::Unknown {
            return Ok(());
        }
        let expected = &PREFACE[position.min(PREFACE.len())..];
        let length = bytes.len().min(expected.len());
        // At the end of the stream there are none.
        if bytes.is_empty() || bytes[..length] != expected[..length] {
            if self.h2_agreed {
                let problem = "the client has agreed to HTTP/2 (ALPN), and doesn't begin with its preface";
                return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
            }
            self.spoken.set(Spoken::Http1);
        } else if length == expected.len() {
            if self.http1_only {
                let problem = "the client speaks HTTP/2, which is turned off";
                return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
            }
            self.spoken.set(Spoken::Http2);
        }
        Ok(())
    }

    /// Limits reads of HTTP/2 only. hyper reads a body of HTTP/1.1 as fast as the handler consumes
    /// it, so there the time between two reads is the handler's, not that of processing the bytes.
    fn poll_room(&mut self, context: &Context<'_>) -> Poll<usize> {
        if self.spoken.get() != Spoken::Http2 {
            return Poll::Ready(usize::MAX);
        }
        self.turn.poll_room(context)
    }

    fn end_turn(&mut self) {
        self.turn.end();
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use futures_io::{AsyncBufRead, AsyncRead};

    use super::*;

    struct Pieces<'a>(&'a [&'a [u8]]);
    impl AsyncBufRead for Pieces<'_> {
        fn poll_fill_buf(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
            Poll::Ready(Ok(self.get_mut().0.first().copied().unwrap_or_default()))
        }

        fn consume(mut self: Pin<&mut Self>, _: usize) {
            self.0 = &self.0[1..];
        }
    }
    impl AsyncRead for Pieces<'_> {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut [u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(0))
        }
    }

    /// Reads `pieces` one after the other. Returns what is known after each.
    async fn spoken_after(pieces: &[&[u8]]) -> Vec<Spoken> {
        let (mut stream, spoken) = FirstBytes::of(Pieces(pieces), false, false);
        let mut after = Vec::new();
        for piece in pieces {
            // Twice: hyper may look again without having taken any.
            for _ in 0..2 {
                poll_fn(|context| Pin::new(&mut stream).poll_fill_buf(context).map_ok(<[u8]>::len))
                    .await
                    .unwrap();
            }
            Pin::new(&mut stream).consume(piece.len());
            after.push(spoken.get());
        }
        after
    }

    #[runtime::test]
    async fn the_version_is_unknown_until_the_preface_is_complete_or_differs() {
        assert_eq!(spoken_after(&[b"GET / HTTP/1.1\r\n"]).await, [Spoken::Http1]);
        assert_eq!(spoken_after(&[b"P", b"OST / HTTP/1.1\r\n"]).await, [Spoken::Unknown, Spoken::Http1]);
        assert_eq!(
            spoken_after(&[b"PRI * HTTP/2.0\r\n", b"\r\nSM\r\n\r", b"\n"]).await,
            [Spoken::Unknown, Spoken::Unknown, Spoken::Http2]
        );
        assert_eq!(spoken_after(&[PREFACE]).await, [Spoken::Http2]);
        assert_eq!(spoken_after(&[b"PRI", b""]).await, [Spoken::Unknown, Spoken::Http1]);
    }

    /// How many of 10,000 bytes after the first ones are lent to somebody who takes his time.
    async fn lent_after(first: &[u8]) -> Vec<usize> {
        let pieces = [first, &[0; 10_000]];
        let (mut stream, _) = FirstBytes::of(Pieces(&pieces), false, false);
        poll_fn(|context| Pin::new(&mut stream).poll_fill_buf(context).map_ok(<[u8]>::len)).await.unwrap();
        Pin::new(&mut stream).consume(first.len());
        let mut lent = Vec::new();
        for _ in 0..5 {
            std::thread::sleep(std::time::Duration::from_micros(50));
            let next = poll_fn(|context| Pin::new(&mut stream).poll_fill_buf(context).map_ok(<[u8]>::len));
            lent.push(next.await.unwrap());
        }
        lent
    }

    #[runtime::test]
    async fn only_bytes_of_http2_come_in_turns() {
        assert_eq!(lent_after(b"POST / HTTP/1.1\r\n").await, [10_000; 5]);
        assert!(lent_after(PREFACE).await.iter().all(|lent| *lent <= 256));
    }
}
