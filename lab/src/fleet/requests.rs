//! What the fleet asks, and how it recognises the answers.

use loadgen::Workload;
use loadgen::stream::{Outcome, RequestStream, ResponseStream};
use serde::{Deserialize, Serialize};

use super::FleetError;

/// What the fleet's requests look like.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FleetRequests {
    /// memcached's text protocol.
    Memcached(Box<Workload>),
    /// The same request again and again, and replies of a fixed size, which are not looked at.
    Fixed {
        /// The request.
        request: Vec<u8>,
        /// Bytes of a reply.
        reply: usize,
    },
}

/// Writes requests.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a fleet has one")]
pub(super) enum RequestSource {
    Memcached(RequestStream),
    Fixed(Vec<u8>),
}

impl RequestSource {
    pub(super) fn new(requests: &FleetRequests, seed: u64) -> Result<Self, FleetError> {
        Ok(match requests {
            FleetRequests::Memcached(workload) => Self::Memcached(RequestStream::new(workload, seed)?),
            FleetRequests::Fixed { request, .. } => Self::Fixed(request.clone()),
        })
    }

    /// Appends the next request. Returns the number of values that its response should have.
    #[inline]
    pub(super) fn append_next(&mut self, out: &mut Vec<u8>) -> u16 {
        match self {
            Self::Memcached(stream) => stream.append_next(out),
            Self::Fixed(bytes) => {
                out.extend_from_slice(bytes);
                0
            }
        }
    }

    /// Appends a `set` of a record. Returns whether the protocol has records.
    pub(super) fn append_set(&mut self, record: u64, out: &mut Vec<u8>) -> bool {
        match self {
            Self::Memcached(stream) => {
                stream.append_set(record, out);
                true
            }
            Self::Fixed(_) => false,
        }
    }
}

/// Splits the bytes of one connection into replies.
#[derive(Debug)]
pub(super) enum ReplyParser {
    Memcached(ResponseStream),
    Fixed { size: usize, received: usize },
}

impl ReplyParser {
    pub(super) fn new(requests: &FleetRequests) -> Self {
        match requests {
            FleetRequests::Memcached(_) => Self::Memcached(ResponseStream::default()),
            FleetRequests::Fixed { reply, .. } => Self::Fixed { size: (*reply).max(1), received: 0 },
        }
    }

    #[inline]
    pub(super) fn feed(&mut self, bytes: &[u8], mut report: impl FnMut(Outcome)) -> Result<(), FleetError> {
        match self {
            Self::Memcached(stream) => Ok(stream.feed(bytes, report)?),
            Self::Fixed { size, received } => {
                *received += bytes.len();
                while *received >= *size {
                    *received -= *size;
                    report(Outcome::Done);
                }
                Ok(())
            }
        }
    }
}
