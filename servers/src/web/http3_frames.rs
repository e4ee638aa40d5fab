//! Limits the length of what h3 reads completely before it looks at it: every frame but those with
//! data. So what it keeps of a connection's frames that have begun is limited.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h3::error::Code;
use h3::quic::{self, ConnectionErrorIncoming, OpenStreams, StreamErrorIncoming, StreamId, WriteBuf};
use h3_quinn::quinn::{self, VarInt};

/// The stream with a client's settings (RFC 9114, section 6.2.1). The only one in one direction
/// whose frames h3 reads.
const CONTROL_STREAM: u64 = 0;
/// A frame with a part of a body (section 7.2.1).
const DATA: u64 = 0;

type SendStream = h3_quinn::SendStream<Bytes>;

/// A connection that is closed when a frame is longer than allowed, or those that have begun are
/// together.
pub struct CheckedConnection {
    http: h3_quinn::Connection,
    quic: quinn::Connection,
    longest: u64,
    begun: Begun,
}

impl CheckedConnection {
    /// `most`: the bytes of all frames that have begun.
    pub fn new(quic: quinn::Connection, longest: u64, most: u64) -> Self {
        let begun = Begun { bytes: Arc::default(), most };
        Self { http: h3_quinn::Connection::new(quic.clone()), quic, longest, begun }
    }

    fn check<S>(&self, stream: S, first: Next) -> Checked<S> {
        let frames = Frames::new(first, self.longest, self.begun.clone());
        Checked { stream, frames, quic: self.quic.clone() }
    }
}

impl quic::Connection<Bytes> for CheckedConnection {
    type RecvStream = Checked<h3_quinn::RecvStream>;
    type OpenStreams = Self;

    fn poll_accept_recv(
        &mut self,
        task: &mut Context<'_>,
    ) -> Poll<Result<Self::RecvStream, ConnectionErrorIncoming>> {
        let stream = ready!(quic::Connection::<Bytes>::poll_accept_recv(&mut self.http, task))?;
        Poll::Ready(Ok(self.check(stream, Next::StreamType)))
    }

    fn poll_accept_bidi(
        &mut self,
        task: &mut Context<'_>,
    ) -> Poll<Result<Self::BidiStream, ConnectionErrorIncoming>> {
        let stream = ready!(self.http.poll_accept_bidi(task))?;
        Poll::Ready(Ok(self.check(stream, Next::Type)))
    }

    fn opener(&self) -> Self {
        Self { begun: self.begun.clone(), ..Self::new(self.quic.clone(), self.longest, self.begun.most) }
    }
}

impl OpenStreams<Bytes> for CheckedConnection {
    type BidiStream = Checked<h3_quinn::BidiStream<Bytes>>;
    type SendStream = SendStream;

    fn poll_open_bidi(
        &mut self,
        task: &mut Context<'_>,
    ) -> Poll<Result<Self::BidiStream, StreamErrorIncoming>> {
        let stream = ready!(self.http.poll_open_bidi(task))?;
        Poll::Ready(Ok(self.check(stream, Next::Type)))
    }

    fn poll_open_send(&mut self, task: &mut Context<'_>) -> Poll<Result<SendStream, StreamErrorIncoming>> {
        self.http.poll_open_send(task)
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        OpenStreams::<Bytes>::close(&mut self.http, code, reason);
    }
}

/// A stream whose frames are looked at as they come.
pub struct Checked<S> {
    stream: S,
    frames: Frames,
    quic: quinn::Connection,
}

impl<S: quic::RecvStream<Buf = Bytes>> quic::RecvStream for Checked<S> {
    type Buf = Bytes;

    fn poll_data(&mut self, task: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        let part = ready!(self.stream.poll_data(task))?;
        if part.as_ref().is_some_and(|part| !self.frames.accept(part)) {
            let reason = "a frame is too long, or too many have begun";
            let code = VarInt::from_u64(Code::H3_EXCESSIVE_LOAD.value()).unwrap_or(VarInt::MAX);
            self.quic.close(code, reason.as_bytes());
            return Poll::Ready(Err(StreamErrorIncoming::Unknown(reason.into())));
        }
        Poll::Ready(Ok(part))
    }

    fn stop_sending(&mut self, code: u64) {
        self.stream.stop_sending(code);
    }

    fn recv_id(&self) -> StreamId {
        self.stream.recv_id()
    }
}

impl<S: quic::SendStream<Bytes>> quic::SendStream<Bytes> for Checked<S> {
    fn poll_ready(&mut self, task: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.stream.poll_ready(task)
    }

    fn send_data<T: Into<WriteBuf<Bytes>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        self.stream.send_data(data)
    }

    fn poll_finish(&mut self, task: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.stream.poll_finish(task)
    }

    fn reset(&mut self, code: u64) {
        self.stream.reset(code);
    }

    fn send_id(&self) -> StreamId {
        self.stream.send_id()
    }
}

impl quic::BidiStream<Bytes> for Checked<h3_quinn::BidiStream<Bytes>> {
    type SendStream = SendStream;
    type RecvStream = Checked<h3_quinn::RecvStream>;

    fn split(self) -> (Self::SendStream, Self::RecvStream) {
        let (send, stream) = self.stream.split();
        (send, Checked { stream, frames: self.frames, quic: self.quic })
    }
}

/// What comes next on a stream.
#[derive(Clone, Copy)]
enum Next {
    StreamType,
    Type,
    Length {
        is_data: bool,
    },
    Payload {
        left: u64,
        is_data: bool,
    },
    /// It has no frames.
    Anything,
}

/// The bytes that have come of a connection's frames that have begun, without those with data.
#[derive(Clone)]
struct Begun {
    bytes: Arc<AtomicU64>,
    most: u64,
}

struct Frames {
    next: Next,
    number: Number,
    longest: u64,
    begun: Begun,
    /// How many of them are this stream's.
    counted: u64,
}

impl Drop for Frames {
    fn drop(&mut self) {
        self.uncount();
    }
}

impl Frames {
    fn new(next: Next, longest: u64, begun: Begun) -> Self {
        Self { next, number: Number::default(), longest, begun, counted: 0 }
    }

    /// Counts bytes of a frame that has begun. Returns whether there may be as many.
    fn count(&mut self, length: u64) -> bool {
        self.counted += length;
        self.begun.bytes.fetch_add(length, Ordering::Relaxed) + length <= self.begun.most
    }

    /// A frame has come to its end.
    fn uncount(&mut self) {
        self.begun.bytes.fetch_sub(std::mem::take(&mut self.counted), Ordering::Relaxed);
    }

    /// Whether no frame that begins in these bytes is too long, and not too much has come of those
    /// that have begun.
    fn accept(&mut self, mut bytes: &[u8]) -> bool {
        while let [first, rest @ ..] = bytes {
            if matches!(self.next, Next::Anything) {
                return true;
            }
            if let Next::Payload { left, is_data } = self.next {
                let (part, rest) =
                    bytes.split_at(bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
                let (length, left) = (part.len() as u64, left - part.len() as u64);
                if left == 0 {
                    self.uncount();
                    self.next = Next::Type;
                } else if is_data || self.count(length) {
                    self.next = Next::Payload { left, is_data };
                } else {
                    return false;
                }
                bytes = rest;
                continue;
            }
            bytes = rest;
            let Some(number) = self.number.add(*first) else { continue };
            self.next = match self.next {
                Next::StreamType if number == CONTROL_STREAM => Next::Type,
                Next::Type => Next::Length { is_data: number == DATA },
                Next::Length { is_data } if !is_data && number > self.longest => return false,
                Next::Length { .. } if number == 0 => Next::Type,
                Next::Length { is_data } => Next::Payload { left: number, is_data },
                Next::StreamType | Next::Payload { .. } | Next::Anything => Next::Anything,
            };
        }
        true
    }
}

/// A number of 1 to 8 bytes (RFC 9000, section 16).
#[derive(Default)]
struct Number {
    value: u64,
    /// How many of its bytes are to come.
    left: u8,
}

impl Number {
    /// The number, if this was its last byte.
    fn add(&mut self, byte: u8) -> Option<u64> {
        if self.left == 0 {
            *self = Self { value: u64::from(byte & 0x3f), left: (1 << (byte >> 6)) - 1 };
        } else {
            *self = Self { value: self.value << 8 | u64::from(byte), left: self.left - 1 };
        }
        (self.left == 0).then_some(self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(most: u64) -> Begun {
        Begun { bytes: Arc::default(), most }
    }

    /// However the bytes are split.
    fn accepts(first: Next, bytes: &[u8]) -> bool {
        let frames = || Frames::new(first, 100, begun(1000));
        let mut bytewise = frames();
        let by_bytes = bytes.chunks(1).all(|byte| bytewise.accept(byte));
        assert_eq!(frames().accept(bytes), by_bytes);
        by_bytes
    }

    #[test]
    fn all_frames_but_data_are_limited() {
        let frame = |kind: u8, length: u8| [vec![kind, 0x40, length], vec![0xff; length.into()]].concat();
        let long = 0xc0_00_01_00_00_00_00_00_u64.to_be_bytes();
        let request = [frame(1, 100), frame(0, 200), frame(0x21, 100), frame(0, 0), frame(1, 3)].concat();
        assert!(accepts(Next::Type, &request));
        assert!(!accepts(Next::Type, &frame(1, 101)));
        assert!(!accepts(Next::Type, &[&request[..], &[1], &long].concat()));
        assert!(!accepts(Next::Type, &[&request[..], &[0x40, 0x21], &long].concat()));
        assert!(accepts(Next::Type, &[&request[..], &[0], &long, &[1; 1000]].concat()));
    }

    #[test]
    fn frames_that_have_begun_are_limited_together_until_they_end() {
        let begun = begun(100);
        let mut streams = [(); 3].map(|()| Frames::new(Next::Type, 100, begun.clone()));
        // Heads of 50 bytes, of which 40 have come.
        let head = [&[1, 50][..], &[0xff; 40]].concat();
        assert_eq!(streams.each_mut().map(|stream| stream.accept(&head)), [true, true, false]);
        let [mut first, second, third] = streams;
        drop((second, third));
        assert!(first.accept(&[0xff; 10]) && begun.bytes.load(Ordering::Relaxed) == 0);
        // A part of a body is none of them, nor is a frame that comes as a whole.
        assert!(first.accept(&[0, 0x40, 200, 1, 1]) && begun.bytes.load(Ordering::Relaxed) == 0);
        let mut other = Frames::new(Next::Type, 100, begun.clone());
        assert!(other.accept(&[&head[..], &[0xff; 10], &head].concat()));
        assert_eq!(begun.bytes.load(Ordering::Relaxed), 40);
    }

    #[test]
    fn in_one_direction_only_the_control_stream_has_frames() {
        assert!(accepts(Next::StreamType, &[0, 4, 2, 1, 0, 7, 1, 0]));
        assert!(!accepts(Next::StreamType, &[0, 4, 0x40, 101]));
        assert!(accepts(Next::StreamType, &[2, 4, 0x40, 101]));
    }
}
