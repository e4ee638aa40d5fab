//! What a connection of the load says, and how it counts replies.

use std::io;

use futures_util::AsyncWriteExt;
use net::TcpStream;

use super::http2_frames::Http2Calls;
use super::request_shape::RequestShape;
use super::service::PeerService;

pub(super) enum Dialogue {
    /// The same bytes each time, and replies of a fixed size.
    Bytes {
        /// As many requests as are in flight.
        requests: Vec<u8>,
        reply: usize,
        partial: usize,
    },
    Calls(Box<Http2Calls>),
}

impl Dialogue {
    /// Does what comes before the first request on a new connection.
    pub(super) async fn open(
        service: PeerService,
        shape: RequestShape,
        stream: &mut TcpStream,
    ) -> io::Result<Self> {
        let bytes = |request: Vec<u8>, reply| Self::Bytes {
            requests: request.repeat(shape.depth),
            reply,
            partial: 0,
        };
        Ok(match service {
            PeerService::Echo | PeerService::Threads | PeerService::Axum => {
                bytes(service.request(shape), shape.reply)
            }
            PeerService::Grpc => {
                let calls = Http2Calls::new(shape.depth);
                stream.write_all(&calls.opening()).await?;
                Self::Calls(Box::new(calls))
            }
        })
    }

    /// The bytes of as many requests as are in flight.
    pub(super) fn requests(&mut self) -> io::Result<&[u8]> {
        match self {
            Self::Bytes { requests, .. } => Ok(requests),
            Self::Calls(calls) => calls.requests(),
        }
    }

    /// The number of replies that these bytes complete.
    pub(super) fn replies(&mut self, received: &[u8]) -> io::Result<usize> {
        match self {
            Self::Bytes { reply, partial, .. } => {
                *partial += received.len();
                let complete = *partial / *reply;
                *partial %= *reply;
                Ok(complete)
            }
            Self::Calls(calls) => calls.replies(received),
        }
    }

    /// Whether a reply has begun and not ended. Frames of HTTP/2 are no replies only.
    pub(super) fn is_within_a_reply(&self) -> bool {
        matches!(self, Self::Bytes { partial: 1.., .. })
    }
}
