//! A workload's requests and their responses as bytes, for load generators that have a transport of
//! their own.
//!
//! ```
//! use loadgen::Workload;
//! use loadgen::stream::{RequestStream, Response, ResponseStream};
//!
//! let mut requests = RequestStream::new(&Workload { records: 1, ..Workload::default() }, 7)?;
//! let mut bytes = Vec::new();
//! let keys = requests.append_next(&mut bytes);
//! assert!(bytes.starts_with(b"get 0") && keys == 1);
//!
//! let mut responses = Vec::new();
//! ResponseStream::default().feed(b"VALUE k 0 2\r\nhi\r\nEND\r\n", |it| responses.push(it))?;
//! assert_eq!(responses, [Response::Values(1)]);
//! # Ok::<(), loadgen::Error>(())
//! ```

use crate::config::Protocol;
use crate::error::Error;
pub use crate::protocol::message::Response;
use crate::protocol::message::ResponseSink;
use crate::protocol::request_writer::RequestWriter;
use crate::protocol::text::TextParser;
use crate::workload::Workload;
use crate::workload::mix::Operation;

/// Requests of a workload in memcached's text protocol.
#[derive(Debug)]
pub struct RequestStream(RequestWriter);

impl RequestStream {
    /// Requests drawn with `seed`.
    ///
    /// # Errors
    /// If a request of the workload depends on the response to an earlier one (`cas`, `fill`), or
    /// if responses would have to be compared (`verify`).
    pub fn new(workload: &Workload, seed: u64) -> Result<Self, Error> {
        let unsupported = [
            (workload.mix.contains(Operation::Cas), "cas, which follows a gets"),
            (workload.fill, "filling, which follows a miss"),
            (workload.verify, "verifying, which compares responses"),
        ];
        match unsupported.iter().find(|(present, _)| *present) {
            Some((_, what)) => {
                Err(Error::Config(format!("a stream of requests does not support {what}: leave it out")))
            }
            None => Ok(Self(RequestWriter::new(workload, Protocol::Text, seed, 0, 1))),
        }
    }

    pub fn append_next(&mut self, out: &mut Vec<u8>) -> u16 {
        self.0.next(out).keys
    }
}

/// Splits received bytes into responses.
#[derive(Debug, Default)]
pub struct ResponseStream(TextParser);

struct Reporting<F>(F);

impl<F: FnMut(Response)> ResponseSink for Reporting<F> {
    fn response(&mut self, response: Response) -> Result<(), Error> {
        (self.0)(response);
        Ok(())
    }
}

impl ResponseStream {
    /// Parses the next bytes of the stream, and reports each response that they complete.
    ///
    /// # Errors
    /// If they are not responses of the text protocol.
    pub fn feed(&mut self, bytes: &[u8], report: impl FnMut(Response)) -> Result<(), Error> {
        self.0.feed(bytes, &mut Reporting(report))
    }
}
