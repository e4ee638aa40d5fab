//! What the fleet asks, and how it recognises the answers.

use loadgen::Workload;
use loadgen::stream::{Outcome, RequestStream, ResponseStream};
use serde::{Deserialize, Serialize};

use super::error::FleetError;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FleetRequests {
    Memcached(Box<Workload>),
    /// The same text in each request, and replies of one length, for a server of any protocol.
    Text {
        request: String,
        /// Bytes of a reply. `None`: as many as the server's first reply has, which a comparison
        /// finds out.
        reply: Option<usize>,
    },
}

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
            FleetRequests::Text { request, reply: Some(_) } if !request.is_empty() => {
                Self::Fixed(request.clone().into_bytes())
            }
            FleetRequests::Text { .. } => {
                return Err(FleetError::Config(
                    "a fleet needs a request, and to know the length of its reply".to_owned(),
                ));
            }
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

    /// Appends a `set` of a record. Only memcached's protocol has records.
    pub(super) fn append_set(&mut self, record: u64, out: &mut Vec<u8>) {
        if let Self::Memcached(stream) = self {
            stream.append_set(record, out);
        }
    }
}

#[derive(Debug)]
pub(super) enum ReplyParser {
    Memcached(ResponseStream),
    Fixed { size: usize, received: usize },
}

impl ReplyParser {
    pub(super) fn new(requests: &FleetRequests) -> Self {
        match requests {
            FleetRequests::Memcached(_) => Self::Memcached(ResponseStream::default()),
            FleetRequests::Text { reply, .. } => Self::Fixed { size: reply.unwrap_or(1).max(1), received: 0 },
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
