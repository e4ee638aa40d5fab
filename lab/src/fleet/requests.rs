//! What the fleet asks, and how it recognises the answers.

use std::net::{SocketAddr, SocketAddrV4};

use loadgen::stream::{RequestStream, Response, ResponseStream};
use loadgen::{Config, Workload};
use policies::{Cpus, Policy};
use runtime::Builder;
use serde::{Deserialize, Serialize};

use crate::Error;

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

/// Stores the records of memcached's workload through the kernel, before a fleet has the queue.
pub fn store_records(requests: &FleetRequests, server: SocketAddrV4) -> Result<(), Error> {
    let FleetRequests::Memcached(workload) = requests else { return Ok(()) };
    let workload = (**workload).clone();
    let config = Config { servers: vec![SocketAddr::from(server).into()], workload, ..Config::default() };
    let builder = Builder::new().ignore_environment().policy(Policy::Vanilla).workers(1);
    let runtime = builder.cores(Cpus::of_thread(None)?).build()?;
    Ok(runtime.block_on(loadgen::load_records(&config))?)
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a fleet has one")]
pub(super) enum RequestSource {
    Memcached(RequestStream),
    Fixed(Vec<u8>),
}

impl RequestSource {
    pub(super) fn new(requests: &FleetRequests, seed: u64) -> Result<Self, Error> {
        Ok(match requests {
            FleetRequests::Memcached(workload) => Self::Memcached(RequestStream::new(workload, seed)?),
            FleetRequests::Text { request, reply: Some(_) } if !request.is_empty() => {
                Self::Fixed(request.clone().into_bytes())
            }
            FleetRequests::Text { .. } => {
                return Err("a fleet needs a request, and to know the length of its reply".into());
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
    pub(super) fn feed(&mut self, bytes: &[u8], mut report: impl FnMut(Response)) -> Result<(), Error> {
        match self {
            Self::Memcached(stream) => Ok(stream.feed(bytes, report)?),
            Self::Fixed { size, received } => {
                *received += bytes.len();
                while *received >= *size {
                    *received -= *size;
                    report(Response::Done);
                }
                Ok(())
            }
        }
    }
}
